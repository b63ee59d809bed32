"""Tasks of lmms-eval in mill, on a tiny random vision model and images made here, against lmms-eval's own evaluator."""

from __future__ import annotations

import importlib
import io
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model
from mill.api.request import Request
from mill.cli.main import run
from mill.tasks import load
from tests.vlm import make_llava, make_qwen2_audio, make_qwen2_vl

pytestmark = [pytest.mark.usefixtures("lmms_eval"), pytest.mark.xdist_group("lm-eval")]
Mill = Callable[..., tuple[int, str, str]]
CATEGORIES = ("existence", "color", "code_reasoning")
WORDS = ("cat", "dog", "ship", "fox")


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("weights") / "llava")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("MILL_DATA", str(folder))
    monkeypatch.setenv("LMMS_EVAL_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def mill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Mill:
    def called(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        load._opened.clear()  # a command starts without loaded tasks
        status = run([*arguments])
        return status, *capsys.readouterr()

    return called


def picture(number: int) -> Any:
    generator = random.Random(number)
    size = (40 + number, 48)
    return Image.frombytes("RGB", size, generator.randbytes(size[0] * size[1] * 3))


def write_rows(file: Path, rows: Sequence[dict[str, Any]], **features: Any) -> None:
    text = {name: datasets.Value("string") for name in rows[0] if name not in features}
    file.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list([*rows], features=datasets.Features({**text, **features})).to_parquet(str(file))


def write_docvqa(data: Path, answers: Sequence[str] = ("cat",) * 8) -> None:
    rows = [
        {"questionId": str(n), "question": f"what is in picture {n} ?", "image": picture(n), "answers": [answer]}
        for n, answer in enumerate(answers)
    ]
    features = {"image": datasets.Image(), "answers": [datasets.Value("string")]}
    write_rows(data / "lmms-lab-encoder" / "DocVQA" / "DocVQA" / "validation.parquet", rows, **features)


def write_seedbench(data: Path) -> None:
    rows = []
    for n in range(12):
        choices = {f"choice_{letter}": WORDS[(n + at) % 4] for at, letter in enumerate("abcd")}
        row = {"question_id": str(n), "question": f"what is in picture {n} ?", "answer": "C", "data_type": "image"}
        rows.append({**row, **choices, "image": [picture(n), picture(n + 50)]})
    write_rows(data / "lmms-lab-encoder" / "SEED-Bench" / "test.parquet", rows, image=[datasets.Image()])


def write_mme(data: Path) -> None:
    rows = []
    for n in range(6):
        question = f"is there a cat in picture {n} ? Please answer yes or no."
        row = {"question_id": f"q{n}", "image": picture(n), "question": question, "category": CATEGORIES[n % 3]}
        rows += [{**row, "answer": answer} for answer in ("Yes", "No")]
    write_rows(data / "lmms-lab-encoder" / "MME" / "test.parquet", rows, image=datasets.Image())


def write_mmvet(data: Path) -> None:
    same = {"answer": "cat", "capability": "rec"}
    rows = [{"question_id": f"v{n}", "image": picture(n), "question": f"what is in picture {n} ?", **same} for n in range(4)]
    write_rows(data / "lmms-lab-encoder" / "MMVet" / "test.parquet", rows, image=datasets.Image())


def results_of(folder: Path, task: str) -> dict[str, Any]:
    file = next(folder.rglob("results.json"))
    return json.loads(file.read_text(encoding="utf-8"))["tasks"][task]["metrics"]


def samples_of(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.rglob("samples/*.jsonl") for line in file.read_text(encoding="utf-8").splitlines()]
    return list(map(json.loads, lines))


def lmms_eval_scores(
    manager: Any, task: str, answer: Callable[..., Any], *, simple: bool, shots: int | None = None
) -> dict[str, Any]:
    """The scores of lmms-eval's own evaluator for these answers: by document and index of the instance, and in a group by
    task. Prompts of text alone must be those of `answer`."""
    from lmms_eval.api.instance import GenerationResult
    from lmms_eval.api.model import lmms
    from lmms_eval.evaluator import simple_evaluate

    from mill.bridges.lm_eval.library import local_first

    class Recorded(lmms):  # type: ignore[misc]
        is_simple = simple

        def generate_until(self, requests: Iterable[Any]) -> list[Any]:
            if shots is not None:
                return [answer(one.task_name, int(one.doc_id), int(one.idx), one.args[0]) for one in requests]
            return [answer(int(one.doc_id), int(one.idx)) for one in requests]

        def loglikelihood(self, requests: Iterable[Any]) -> list[Any]:
            # 0.7.3 makes a text of a plain pair, which its scoring cannot read.
            return [GenerationResult(pair) for pair in self.generate_until(requests)]

        generate_until_multi_round = generate_until

    with local_first():
        found = simple_evaluate(Recorded(), tasks=[task], task_manager=manager, num_fewshot=shots, bootstrap_iters=100)
    return found["results"][task]


def test_a_generation_task_has_the_scores_of_lmms_eval(
    mill: Mill, data: Path, vlm: Path, task_manager: Any, tmp_path: Path
) -> None:
    write_docvqa(data)
    status, _, err = mill("eval", str(vlm), "lmms-eval:docvqa_val", "--output_dir", str(tmp_path / "first"))
    assert status == 0, err
    texts = [sample["response"] for sample in samples_of(tmp_path / "first")]
    assert len(set(texts)) > 1, "other images, other answers"
    # Right answers, nearly right ones and wrong ones.
    golds = [text if n % 3 == 0 else text[:-1] + "#" if n % 3 == 1 else "ship" for n, text in enumerate(texts)]
    write_docvqa(data, golds)
    status, _, err = mill("eval", str(vlm), "lmms-eval:docvqa_val", "--output_dir", str(tmp_path / "second"))
    assert status == 0, err
    mine = results_of(tmp_path / "second", "lmms-eval:docvqa_val")
    theirs = lmms_eval_scores(task_manager, "docvqa_val", lambda doc, _: texts[doc], simple=False)
    assert 0 < mine["anls"]["value"] < 1
    assert mine["anls"]["value"] == pytest.approx(theirs["anls,none"], rel=1e-12)
    assert mine["anls"]["stderr"] == pytest.approx(theirs["anls_stderr,none"], rel=1e-12)


def test_choices_are_compared_by_their_loss_as_in_lmms_eval(
    mill: Mill, data: Path, vlm: Path, task_manager: Any, tmp_path: Path
) -> None:
    write_seedbench(data)
    status, _, err = mill("eval", str(vlm), "lmms-eval:seedbench_ppl", "--output_dir", str(tmp_path / "out"))
    assert status == 0, err
    samples = samples_of(tmp_path / "out")
    losses = [[-response["score"] for response in sample["responses"][0]] for sample in samples]
    greedy = [[response["is_greedy"] for response in sample["responses"][0]] for sample in samples]
    theirs = lmms_eval_scores(task_manager, "seedbench_ppl", lambda doc, at: (losses[doc][at], greedy[doc][at]), simple=True)
    mine = results_of(tmp_path / "out", "lmms-eval:seedbench_ppl")["acc"]["value"]
    best = [min(range(4), key=one.__getitem__) for one in losses]
    assert mine == theirs["acc,none"] == best.count(2) / 12
    assert 0 < mine < 1
    assert "<image>\n<image>" in samples[0]["prompt"] and samples[0]["continuations"] == [f" {word}" for word in WORDS]


def test_an_aggregation_of_the_task_is_its_own(data: Path, task_manager: Any) -> None:
    write_mme(data)
    theirs = lmms_eval_scores(task_manager, "mme", lambda doc, _: "Yes" if doc % 4 else "No", simple=False)
    from mill.api.task import Opaque
    from mill.bridges.lmms_eval.source import LmmsEvalSource

    (task,), _ = LmmsEvalSource().tasks("mme")
    from mill.api.response import Response

    found: dict[str, list[Any]] = {}
    for sample in task.samples():
        for name, value in task.score(sample, [Response(text="Yes" if int(sample.id) % 4 else "No")]).items():
            assert isinstance(value, Opaque)
            found.setdefault(name, []).append(value.value)
    for name in ("mme_perception_score", "mme_cognition_score"):
        aggregated = task.aggregate(name, found[name])
        assert aggregated is not None and aggregated[0] == theirs[f"{name},none"] > 0


def test_a_group_of_text_tasks_has_the_prompts_and_means_of_lmms_eval(
    mill: Mill, data: Path, tiny_model: Path, task_manager: Any, tmp_path: Path
) -> None:
    from mill.bridges.lmms_eval.source import LmmsEvalSource

    names = [name.removeprefix("mmlu_") for name in LmmsEvalSource().index["mmlu_stem_tasks"].members]
    assert len(names) > 10
    for at, name in enumerate(names):
        folder = data / "hails" / "mmlu_no_train" / name
        folder.mkdir(parents=True)
        for split, count in (("test", 2 + at % 3), ("dev", 3)):
            rows = [
                {"question": f"{split} {n} of {name}", "subject": name, "choices": [*WORDS], "answer": (n + at) % 4}
                for n in range(count)
            ]
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    status, _, err = mill("eval", str(tiny_model), "lmms-eval:mmlu_stem", "--n_shots", "2", "--output_dir", str(out))
    assert status == 0, err
    samples = {(sample["task"].removeprefix("lmms-eval:"), int(sample["id"])): sample for sample in samples_of(out)}

    def answer(task: str, doc: int, at: int, prompt: str) -> tuple[float, bool]:
        sample = samples[task, doc]
        assert sample["prompt"] == prompt and prompt.count("Answer:") == 3
        response = sample["responses"][0][at]
        return -response["score"], response["is_greedy"]

    theirs = lmms_eval_scores(task_manager, "mmlu_stem", answer, simple=True, shots=2)
    file = next(out.rglob("results.json"))
    mine = json.loads(file.read_text(encoding="utf-8"))["benchmarks"]["lmms-eval:mmlu_stem"]["metrics"]["acc"]
    assert 0 < mine["value"] < 1
    assert mine["value"] == pytest.approx(theirs["acc,none"], rel=1e-12)
    assert mine["stderr"] == pytest.approx(theirs["acc_stderr,none"], rel=1e-12)


def test_audio_reaches_a_model_that_takes_it(mill: Mill, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    import numpy as np
    import pyarrow.parquet as pq
    import soundfile

    rows = []
    for n in range(3):
        file = io.BytesIO()
        wave = np.sin(np.linspace(0, 300 * (n + 1), 8000)).astype(np.float32)
        soundfile.write(file, wave, 16_000, format="WAV", subtype="FLOAT")
        audio = {"bytes": file.getvalue(), "path": None}
        rows.append({"audio": audio, "answer": "Cough", "age_group": "18-25", "spk_id": "male_1"})
    file_name = data / "lmms-lab-audio" / "vocalsound" / "test.parquet"
    write_rows(file_name, rows, audio={"bytes": datasets.Value("binary"), "path": datasets.Value("string")})
    # `datasets` writes audio with torchcodec only.
    names = ("answer", "age_group", "spk_id")
    features = {**{name: datasets.Value("string") for name in names}, "audio": datasets.Audio(sampling_rate=16_000)}
    table = pq.read_table(file_name)
    pq.write_table(table.replace_schema_metadata(datasets.Features(features).arrow_schema.metadata), file_name)
    model = make_qwen2_audio(tmp_path / "audio")
    command = ("eval", str(model), "lmms-eval:vocalsound_test", "--max_tokens", "8", "--output_dir", str(tmp_path / "out"))
    status, _, err = mill(*command)
    assert status == 0, err
    samples = samples_of(tmp_path / "out")
    assert samples[0]["unrendered"].startswith("<user> <audio>Classify the human vocal sound")
    assert len({sample["response"] for sample in samples}) > 1, "other audio, other answers"
    status, out, err = mill("eval", str(make_llava(tmp_path / "llava")), "lmms-eval:vocalsound_test")
    assert (status, out) == (2, "") and "needs a model that takes audio" in err


def test_videos_are_files_where_lmms_eval_stores_them(
    mill: Mill, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    av = pytest.importorskip("av")
    import numpy as np

    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    videos = tmp_path / "home" / "perceptiontest_val" / "videos"
    videos.mkdir(parents=True)
    rows = [
        {"video_name": f"v{n}", "question": "what is it ?", "options": ["cat", "dog", "ship"], "answer_id": n}
        | {"question_id": n, "area": "a", "reasoning": "r", "tag": ["t"]}
        for n in range(3)
    ]
    folder = data / "lmms-eval" / "PerceptionTest_Val" / "mc_question_val"
    folder.mkdir(parents=True)
    (folder / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = make_qwen2_vl(tmp_path / "qwen")
    names = [f"lmms-eval:perceptiontest_val_{kind}" for kind in ("mc", "mcppl")]
    command = ("eval", str(model), ",".join(names), "--max_tokens", "8", "--output_dir", str(tmp_path / "out"))
    status, out, err = mill(*command)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert "v0.mp4 does not exist" in err
    for n in range(3):
        with av.open(str(videos / f"v{n}.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", rate=4)
            stream.width = stream.height = 32
            for at in range(4):
                frame = np.full((32, 32, 3), 60 * n + 20 * at, dtype=np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())
    status, _, err = mill(*command)
    assert status == 0, err
    samples = {(sample["task"], sample["id"]): sample for sample in samples_of(tmp_path / "out")}
    assert samples[names[0], "0"]["unrendered"].startswith(
        "<user> <video>what is it ?\nA. cat\nB. dog\nC. ship\nAnswer with"
    )
    scores = [[response["score"] for response in samples[names[1], str(n)]["responses"][0]] for n in range(3)]
    assert len({tuple(one) for one in scores}) == 3, "other videos, other scores"
    assert results_of(tmp_path / "out", names[0])["accuracy"]["n"] == 3
    # A fault of lmms-eval's own: the other task has its score all the same.
    assert f"{names[1]}: accuracy has no value, because its aggregation raised KeyError: 'correct'" in err


def test_a_file_to_submit_is_no_score(mill: Mill, data: Path, vlm: Path, tmp_path: Path) -> None:
    write_docvqa(data)
    folder = data / "lmms-lab-encoder" / "DocVQA" / "DocVQA"
    (folder / "validation.parquet").rename(folder / "test.parquet")
    status, out, err = mill("eval", str(vlm), "lmms-eval:docvqa_test", "--output_dir", str(tmp_path / "out"))
    assert status == 0 and "NaN" in out
    assert "lmms-eval:docvqa_test: submission has no value, because its aggregation gives nothing" in err
    assert len(json.loads((tmp_path / "submissions" / "docvqa_test_for_submission.json").read_text())) == 8


def test_prompts_of_another_model_have_a_name_of_their_own(mill: Mill, data: Path, vlm: Path, tmp_path: Path) -> None:
    write_mme(data)
    status, _, err = mill("eval", str(vlm), "lmms-eval:mme@qwen_vl", "--limit", "2", "--output_dir", str(tmp_path / "out"))
    assert status == 0, err
    (sample, _) = samples_of(tmp_path / "out")
    assert sample["unrendered"] == "<user> <image>is there a cat in picture 0 ? Answer:"
    status, _, err = mill("eval", str(vlm), "lmms-eval:mme@qwen_v", "--output_dir", str(tmp_path / "out"))
    assert status == 2
    assert "no prompts for the model 'qwen_v'; it has prompts for gpt4v, otterhd, plm, qwen_vl, xcomposer2_4khd" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mmee", "unknown task of lmms-eval 'mmee'; did you mean mme"),
        ("unig2u_auxsolidmath_easy_visual_cot", "it generates images between its steps (visual chain of thought)"),
        ("tau2_bench_telecom", "cannot run in mill: it is an agent with tools"),
        ("mmbench_en_dev", "a judge or another web service is called while its scores are aggregated"),
        ("vbench_scene", "its answers are images or videos that a model generates"),
        ("gedit_bench", "its answers are images or videos that a model generates"),
        ("mme", "Couldn't reach 'lmms-lab-encoder/MME' on the Hub"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(mill: Mill, data: Path, vlm: Path, name: str, why: str) -> None:
    status, out, err = mill("eval", str(vlm), f"lmms-eval:{name}", "--output_dir", "out")
    assert (status, out) == (2, ""), err
    assert why in err and err.count("\n") == 1


def test_a_list_of_names_comes_from_an_index(mill: Mill, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mill.bridges.lmms_eval import source

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    status, out, _ = mill("ls", "tasks", "lmms-eval:docvqa")
    assert status == 0
    assert {"lmms-eval:docvqa_val", "lmms-eval:docvqa"} <= set(out.split())
    monkeypatch.setattr(source, "make_index", None)
    assert mill("ls", "tasks", "lmms-eval:docvqa")[1] == out


def test_the_index_names_what_lmms_eval_names(task_manager: Any) -> None:
    from mill.bridges.lmms_eval.library import tasks_folder
    from mill.bridges.lmms_eval.source import for_lmms_eval, make_index

    mine = for_lmms_eval(make_index(tasks_folder()))
    theirs = {name: {**entry, "task": entry.get("task", -1)} for name, entry in task_manager.task_index.items()}
    assert {name: {**entry, "task": entry.get("task", -1)} for name, entry in mine.items()} == theirs


def test_mill_is_a_model_of_lmms_eval(mill: Mill, data: Path, vlm: Path, task_manager: Any, tmp_path: Path) -> None:
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.models.registry_v2 import ModelRegistryV2

    from mill.bridges.lm_eval.library import local_first
    from mill.bridges.lmms_eval.manifest import manifest
    from mill.bridges.lmms_eval.model import MillLmms, MillSimpleLmms

    registry = ModelRegistryV2()
    registry.register_manifest(manifest())
    assert registry.get_model_class("mill") is MillLmms
    assert registry.get_model_class("mill", force_simple=True) is MillSimpleLmms
    write_docvqa(data)
    write_seedbench(data)
    for task, metric, made in (("docvqa_val", "anls", MillLmms), ("seedbench_ppl", "acc", MillSimpleLmms)):
        out = tmp_path / task
        status, _, err = mill("eval", str(vlm), f"lmms-eval:{task}", "--output_dir", str(out))
        assert status == 0, err
        model = made.create_from_arg_string(f"spec={vlm},output_dir={tmp_path / 'recorded'}", {"batch_size": 1})
        with local_first():
            found = simple_evaluate(model, tasks=[task], task_manager=task_manager, log_samples=True, bootstrap_iters=100)
        assert found["results"][task][f"{metric},none"] == results_of(out, f"lmms-eval:{task}")[metric]["value"]
        logged = [sample["resps"][0] for sample in found["samples"][task]]
        mine = [sample["responses"][0] for sample in samples_of(out)]
        if task == "docvqa_val":
            assert [texts[0] for texts in logged] == [responses[0]["text"] for responses in mine]


class Grader(MillModel):
    """Grades the answer about picture n with n / 10. Picture 2 has a grade only where the temperature is above zero."""

    capabilities = ModelCapabilities(supports_chat_template=True)

    @property
    def model_name(self) -> str:
        return "grader"

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        return [self._grade(request) for request in batch]

    def _grade(self, request: Request) -> str:
        assert isinstance(request.context, tuple) and request.options["max_gen_toks"] == 128
        number = request.text.rpartition("what is in picture ")[2].split()[0]
        return "I cannot say" if number == "2" and request.deterministic else f"0.{number}"


def test_a_task_with_a_judge_asks_that_of_mill(mill: Mill, data: Path, vlm: Path, tmp_path: Path) -> None:
    write_mmvet(data)
    register_model("grader")(Grader)
    command = ("eval", str(vlm), "lmms-eval:mmvet", "--max_tokens", "8", "--output_dir", str(tmp_path / "out"))
    status, out, err = mill(*command)
    assert (status, out) == (2, "")
    assert err == "mill: lmms-eval:mmvet needs a judge: --judge MODEL names one\n"
    status, _, err = mill(*command, "--judge", "grader")
    assert status == 0, err
    found = results_of(tmp_path / "out", "lmms-eval:mmvet")["gpt_eval_score"]
    assert found["value"] == pytest.approx(100 * (0.0 + 0.1 + 0.2 + 0.3) / 4) and found["n"] == 4
    judgements = [sample["judgements"] for sample in samples_of(tmp_path / "out")]
    assert judgements == [[["0.0"]], [["0.1"]], [["I cannot say", "0.2"]], [["0.3"]]]
    folder = next((tmp_path / "out").rglob("results.json")).parent
    status, _, err = mill("score", str(folder))
    assert status == 0, err
    assert results_of(tmp_path / "out", "lmms-eval:mmvet")["gpt_eval_score"] == found


def test_images_that_end_too_early_are_still_errors_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """lmms-eval makes Pillow read them, for the whole process, when it is imported."""
    from PIL import ImageFile

    from mill.bridges.lmms_eval import library

    monkeypatch.delitem(sys.modules, "lmms_eval.api.task")
    with library.running("the import"):
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        importlib.import_module("lmms_eval.api.task")
        assert ImageFile.LOAD_TRUNCATED_IMAGES
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
