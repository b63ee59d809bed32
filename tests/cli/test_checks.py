"""The check commands from command line to files, on tiny real models; metrics are compared with direct computations."""

from __future__ import annotations

import json
import shutil
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mill.api.model import ModelCapabilities, StreamContext
from mill.api.registry import import_file
from mill.checks.forced import top_logprobs_of
from mill.checks.result import Check, find_checks, read_check
from mill.cli.main import run
from tests.cli.conftest import Mill
from tests.servers import FaultServer, cut, status
from tests.vlm import byte_level
from tests.waiting import DEADLINE_S

TOY = str(Path(__file__).parents[1] / "toy.py")
NOISE = {"n1": 0.001, "n2": 0.01, "n3": 0.1}
LIMITS = ("--limit", "4", "--max-tokens", "8", "--quiet")


@pytest.fixture(autouse=True)
def eight_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_N", "8")


def toys(mill: Mill, *argv: str, tasks: str = "toy_gen") -> tuple[int, str, str]:
    """Compare two toy models, which have no log-probabilities."""
    models = ("toy[path=a]", "toy[path=b]")
    return mill("compare", *models, "--task_paths", TOY, "--tasks", tasks, "--quiet", "--no-report", *argv)


def only_check(folder: Path) -> Check:
    (file,) = find_checks(folder)
    return read_check(file)


def values(check: Check, index: int = 0) -> dict[str, float]:
    return {name: estimate.value for name, estimate in check.variants[index].metrics.items()}


def computed(folder: Path) -> int:
    """How many requests all sessions of all runs below a folder computed."""
    manifests = [json.loads(file.read_text()) for file in folder.rglob("manifest.json")]
    return sum(session["computed"] for manifest in manifests for session in manifest["sessions"])


def noisy(model: Path, folder: Path, scale: float) -> Path:
    """A copy of a model with noise in its weights."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    draw = torch.Generator().manual_seed(1)
    moved = {name: value + scale * torch.randn(value.shape, generator=draw) for name, value in weights.items()}
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def spec(folder: Path) -> str:
    return f"hf[path={folder},dtype=float32]"


@pytest.fixture(scope="module")
def swept(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The output folder of a sweep over a copy and three levels of noise, made twice."""
    folder = tmp_path_factory.mktemp("sweep")
    models = {"twin": noisy(tiny_model, folder / "twin", 0.0)}
    models |= {name: noisy(tiny_model, folder / name, scale) for name, scale in NOISE.items()}
    named = ",".join(f"{name}={spec(path)}" for name, path in {**models, "base": tiny_model}.items())
    argv = ["sweep", "--models", named, "--baseline", "base", "--no_chat", *LIMITS, "--output", str(folder / "out")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILL_CACHE", str(folder / "cache"))
        assert run(argv) == 0
        first = computed(folder / "out")
        assert run(argv) == 0
    assert computed(folder / "out") == first == 5 * (4 + 4)  # answers and forced texts, once each
    yield folder / "out"


def test_a_copy_of_a_model_answers_and_scores_the_same(swept: Path) -> None:
    check = only_check(swept)
    assert (check.command, check.baseline, [one.label for one in check.variants]) == ("sweep", "base", ["twin", *NOISE])
    found = values(check)
    assert (found["match_rate"], found["similarity"], found["flip_rate"], found["failure_rate"]) == (1.0, 1.0, 0.0, 0.0)
    assert (found["kl_mean"], found["kl_max"], found["top1_agreement"], found["ppl_ratio"]) == (0.0, 0.0, 1.0, 1.0)
    assert check.variants[0].counts["severity_identical"] == check.variants[0].counts["samples"] == 4


def test_divergence_rises_with_the_noise_in_the_weights(swept: Path) -> None:
    twin, *noise = (values(only_check(swept), index)["kl_mean"] for index in range(4))
    assert [twin, *noise] == sorted([twin, *noise])
    assert noise[0] > 1e-4 and noise[1] > 5 * noise[0] and noise[2] > 5 * noise[1]


@pytest.mark.parametrize("name", ["n1", "n3"])
def test_kl_agrees_with_plain_transformers(swept: Path, tiny_model: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check = only_check(swept)
    variant = next(one for one in check.variants if one.label == name)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    folders = (tiny_model, swept.parent / name)
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in folders]
    found: list[float] = []
    for row in variant.rows:
        text = row["texts"][0].rstrip("\ufffd")  # an incomplete character at the end is not scored
        ids = tokenizer(row["prompt"] + text)["input_ids"]
        start = len(tokenizer(row["prompt"])["input_ids"])
        with torch.inference_mode():
            p, q = (model(torch.tensor([ids])).logits[0, start - 1 : -1].double().log_softmax(-1) for model in models)
        positions = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1).tolist()
        assert row["kl_positions"] == pytest.approx(positions, abs=1e-5)
        found += positions
    estimate = variant.metrics["kl_mean"]
    assert estimate.n == len(found) == variant.counts["positions"]
    assert estimate.value == pytest.approx(sum(found) / len(found), abs=1e-5)
    assert variant.metrics["kl_max"].value == pytest.approx(max(found), abs=1e-5)


def test_checks_run_again_leave_one_file(swept: Path) -> None:
    assert len(list(swept.rglob("check.json"))) == len(list(swept.rglob("report.html"))) == 1


def test_runs_of_checks_are_not_collected_with_evaluations(swept: Path, mill: Mill) -> None:
    code, out, _ = mill("collect", "--output_dir", str(swept))
    assert code == 0 and "numerics" in out and "forced" not in out


def test_reports_in_four_forms(swept: Path, mill: Mill, tmp_path: Path) -> None:
    for form, suffix in {"html": ".html", "json": ".json", "md": ".md", "junit": ".xml"}.items():
        code, out, _ = mill("report", str(swept), "--format", form, "--output", f"r{suffix}")
        assert code == 0 and f"written: r{suffix}" in out
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!DOCTYPE html>") or page.startswith("<!doctype html>")
    assert "n3" in page and "://" not in page.replace("http://www.w3.org", "")  # opens without a network
    assert json.loads((tmp_path / "r.json").read_text())["command"] == "sweep"
    table = (tmp_path / "r.md").read_text()
    assert table.count("| KL mean |") == 1 and "| same text |" in table and "answer flips" in table
    suite = ET.parse(tmp_path / "r.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "0")


def test_a_report_goes_to_the_terminal_or_beside_the_check(swept: Path, mill: Mill) -> None:
    code, out, _ = mill("report", str(swept), "--format", "json", "--output", "-")
    assert code == 0 and json.loads(out)["baseline"] == "base"
    (folder,) = (swept / "checks").glob("sweep-*")
    assert mill("report", str(folder), "--format", "md")[0] == 0
    assert (folder / "report.md").exists()


def test_gates_end_with_0_2_or_3(swept: Path, mill: Mill, tmp_path: Path) -> None:
    code, out, _ = mill("gate", str(swept), "--fail-on", "kl_mean>100, failure_rate>0")
    assert code == 0 and "all rules kept: --fail_on kl_mean>100, --fail_on failure_rate>0" in out
    code, out, err = mill("gate", str(swept), "--fail_on", "kl_mean>1e-6, failure_rate>0", "--junit", "gate.xml")
    assert code == 3 and err.startswith("mill: 3 of 8 rules broken: n1: kl_mean is ")
    root = ET.parse(tmp_path / "gate.xml").getroot()
    assert (root[0].get("tests"), root[0].get("failures"), len(root.findall(".//failure"))) == ("8", "3", 3)
    code, _, err = mill("gate", str(swept), "--fail-on", "kl_men>1")
    assert code == 2 and "unknown metric 'kl_men'; did you mean kl_mean" in err


def test_a_rule_of_a_command_breaks_it_after_the_check_was_written(mill: Mill, tmp_path: Path) -> None:
    code, out, err = toys(mill, "--fail-on", "kl_mean>0.1, match_rate<1")
    assert code == 3
    assert "written: " in out and err == "mill: 1 of 2 rules broken: b: kl_mean was not measured\n"
    assert only_check(tmp_path / "results").variants[0].label == "b"
    assert toys(mill, "--fail-on", "match_rate<1, flip_rate>0.5")[0] == 3  # nothing is extracted from these answers
    code, out, _ = toys(mill, "--fail-on", "match_rate<1")
    assert code == 0 and "all rules kept: --fail_on match_rate<1" in out


def test_a_github_job_gets_a_summary(mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert toys(mill)[0] == 0
    assert mill("gate", "results", "--fail-on", "match_rate>0.5")[0] == 3
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("### mill compare: toy\\_gen") == 2 and "| same text | 100.0 % " in summary


def test_a_model_against_itself_needs_labels(mill: Mill, tiny_model: Path, tmp_path: Path) -> None:
    model = spec(tiny_model)
    code, _, err = mill("compare", model, model, *LIMITS)
    assert code == 2 and "set different labels (--label_a and --label_b of compare" in err
    argv = ("--label-a", "before", "--label-b", "after", "--num-prompts", "2", "--max-tokens", "4", "--output", "out")
    code, out, _ = mill("compare", model, model, *argv, "--prompts", "adversarial-numerics", "--quiet")
    assert code == 0 and "compare on numerics, against before" in out
    check = only_check(tmp_path / "out")
    assert check.variants[0].label == "after" and check.variants[0].counts["samples"] == 2
    assert (values(check)["kl_mean"], values(check)["match_rate"]) == (0.0, 1.0)


def test_no_distributions_without_forced_tokens(mill: Mill, tiny_model: Path, tmp_path: Path) -> None:
    argv = ("--label_a", "x", "--label_b", "y", "--forced_tokens", "0", "--prompts", "reasoning", "--output", "out")
    assert mill("compare", spec(tiny_model), spec(tiny_model), *LIMITS, *argv)[0] == 0
    check = only_check(tmp_path / "out")
    assert "kl_mean" not in values(check) and not any("KL" in warning for warning in check.variants[0].warnings)
    assert not (tmp_path / "out/checks/runs").exists()


def other_tokenizer(model: Path, folder: Path) -> Path:
    """A copy whose tokenizer has a different id for every token."""
    from transformers import PreTrainedTokenizerFast

    shutil.copytree(model, folder)
    tokenizer = byte_level("", 300, ["<another>"], bos=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder


def test_different_tokenizers_are_reported_and_have_no_kl(mill: Mill, tiny_model: Path, tmp_path: Path) -> None:
    other = other_tokenizer(tiny_model, tmp_path / "other")
    code, out, _ = mill("compare", spec(tiny_model), spec(other), *LIMITS, "--no-report")
    assert code == 0
    assert "other: 4 of 4 texts are tokenized differently by the two engines and have no KL" in out
    check = only_check(tmp_path / "results")
    assert "kl_mean" not in values(check) and "match_rate" in values(check)


def test_tasks_instead_of_prompts(mill: Mill, tiny_model: Path, tmp_path: Path) -> None:
    other = noisy(tiny_model, tmp_path / "noisy", 0.05)
    argv = ("--tasks", "toy_choice,toy_gen", "--task-paths", TOY, "--no-report", "--output", "out")
    assert mill("compare", spec(tiny_model), spec(other), *LIMITS, *argv)[0] == 0
    check = only_check(tmp_path / "out")
    found = values(check)
    assert check.tasks == ["toy_choice", "toy_gen"]
    assert check.variants[0].counts["samples"] == 8 and check.variants[0].counts["forced_texts"] == 8
    assert found["logprob_shift"] > 0 and found["kl_mean"] > 0
    assert 0 <= found["acc"] <= 1 and [group["task"] for group in check.variants[0].groups] == ["toy_choice", "toy_gen"]


def evaluate(mill: Mill, name: str, *argv: str, tasks: str = "toy_gen,toy_choice", limit: int = 8) -> str:
    options = ("--task_paths", TOY, "--output_dir", name, "--limit", str(limit))
    mill("eval", f"toy[path={name}{''.join(argv)}]", tasks, *options)
    (folder,) = Path(name).glob("*/*")
    return str(folder)


def test_recorded_runs_are_compared_without_their_models(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluate(mill, "a")
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    second = evaluate(mill, "b", ",scale=2")
    code, out, _ = mill("compare", "--runs", first, second, "--task_paths", TOY, "--output", "out", "--no-report")
    assert code == 1  # a request failed
    assert "compare on toy_choice, toy_gen, against a" in out and "16 samples, 1 failed" in out
    check = only_check(Path("out"))
    found = values(check)
    assert (found["failure_rate"], found["match_rate"], found["similarity"]) == (1 / 16, 7 / 8, 7 / 8)  # of eight texts
    scores = [scores_of(folder) for folder in (first, second)]
    shifts = [abs(b - a) for a, b in zip(*scores, strict=True)]
    assert found["logprob_shift"] == pytest.approx(sum(shifts) / len(shifts))
    assert found["logprob_shift_max"] == pytest.approx(max(shifts))
    assert any("so there is no KL" in warning for warning in check.variants[0].warnings)


def scores_of(folder: str) -> list[float]:
    lines = (Path(folder) / "samples/toy_choice.jsonl").read_text().splitlines()
    return [response["score"] for line in lines for response in json.loads(line)["responses"][0]]


def test_recorded_runs_of_a_part_of_the_data_say_so(mill: Mill) -> None:
    first, second = evaluate(mill, "a", tasks="toy_gen", limit=5), evaluate(mill, "b", tasks="toy_gen")
    assert mill("compare", "--runs", first, second, "--task_paths", TOY, "--output", "out", "--no-report")[0] == 0
    assert only_check(Path("out")).warnings == ["toy_gen: first 5 rows, not a random sample (--sample draws one)"]


def test_recorded_runs_with_no_sample_in_common_are_refused(mill: Mill) -> None:
    first, second = evaluate(mill, "a", tasks="toy_gen"), evaluate(mill, "b", tasks="toy_choice")
    code, _, err = mill("compare", "--runs", first, second, "--task_paths", TOY)
    assert code == 2 and "have no sample in common: different tasks" in err


def test_recorded_runs_of_a_task_that_is_gone_are_refused(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "tales.jsonl").write_text('{"prompt": "Once"}\n')
    models = ("toy[path=a]", "toy[path=b]", "--task_paths", TOY)
    assert mill("compare", *models, "--prompts", "tales.jsonl", "--quiet", "--no-report")[0] == 0
    runs = [str(file.parent) for file in sorted((tmp_path / "results").glob("*/*/manifest.json"))]
    refused(mill("compare", "--runs", *runs), "has a task that cannot be loaded: unknown task 'tales'")


def test_failed_requests_are_changed_answers_and_make_the_exit_code_1(
    mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    code, out, _ = toys(mill)
    assert code == 1 and "8 samples, 1 failed" in out
    assert values(only_check(tmp_path))["match_rate"] == 7 / 8
    monkeypatch.delenv("TOY_FAILS")
    assert toys(mill)[0] == 0  # only the failed requests are sent again
    assert computed(tmp_path / "results") == 2 * (8 + 1)


def test_diff_takes_backends_with_arguments(mill: Mill, tmp_path: Path, tiny_model: Path) -> None:
    backends = "hf[dtype=float32],hf[dtype=float16]"
    argv = ("--model", str(tiny_model), "--backends", backends, "--no-chat", *LIMITS, "--no-report")
    code, _, err = mill("diff", *argv)
    assert code == 0, err
    identities = [json.loads(file.read_text())["model"]["identity"] for file in tmp_path.glob("results/*/*/manifest.json")]
    assert sorted(identity["dtype"] for identity in identities) == ["float16", "float32"]
    assert [one.label for one in only_check(tmp_path / "results").variants] == [f"{tiny_model.name} dtype=float16"]


def complete(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
    """A server that answers 5 to completions and 6 to chats, without log-probabilities."""
    if path == "/v1/chat/completions":
        return {"choices": [{"message": {"content": "6"}, "finish_reason": "stop"}]}
    known = path == "/v1/completions" and not {"echo", "prompt_logprobs"} & set(body)
    return {"choices": [{"text": "5", "finish_reason": "stop"}] if known else []}


def test_diff_applies_the_chat_template_by_default(mill: Mill, tmp_path: Path) -> None:
    with FaultServer(complete) as one, FaultServer(complete) as other:
        argv = ("--model", "m", "--backends", "openai-compat,openai-compat", "--base-urls", f"{one.url},{other.url}")
        code, out, _ = mill("diff", *argv, "--no-chat", *LIMITS, "--output", "plain", "--no-report")
        assert code == 0 and "no log-probabilities of a given text" in out
        assert mill("diff", *argv, *LIMITS, "--output", "chat", "--no-report")[0] == 0
    assert set(row_texts(tmp_path / "plain")) == {"5"} and set(row_texts(tmp_path / "chat")) == {"6"}
    assert [one.label for one in only_check(tmp_path / "plain").variants] == [f"m base_url={other.url[7:]}"]


@pytest.mark.parametrize("names", [("org/small", "org/large"), ("llama:8b", "llama:70b")])
def test_one_address_serves_both_models_of_a_comparison(mill: Mill, tmp_path: Path, names: tuple[str, str]) -> None:
    with FaultServer(complete, models=names) as server:
        code, _, err = mill("compare", *names, "--base-url", server.url, *LIMITS, "--no-report")
    assert code == 0 and "mill:" not in err
    assert {body.get("model") for _, body in server.calls} == set(names)
    assert set(row_texts(tmp_path / "results")) == {"6"}  # both answer chat messages


def test_recorded_answers_of_a_server_are_reported(mill: Mill, tmp_path: Path) -> None:
    """The address may serve a different engine by now."""
    with FaultServer(complete) as server:
        argv = ["compare", "toy[path=a]", f"openai-compat[model=m,base_url={server.url}]", "--task_paths", TOY]
        argv += ["--tasks", "toy_gen", "--quiet", "--no-report", "--output", "out"]
        assert "are from an earlier run" not in mill(*argv)[1]
        out = mill(*argv)[1]
    assert "8 of 8 answers are from an earlier run; --fresh sends the requests again" in out
    assert any("earlier run" in warning for warning in only_check(tmp_path / "out").variants[0].warnings)


def test_the_chat_template_is_applied_if_all_models_have_one(mill: Mill, tmp_path: Path) -> None:
    """If one of the servers has no chat endpoint, both get plain text; --chat and --no_chat override that."""

    def plain(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return status(400) if "chat" in path else complete(server, path, body)

    with FaultServer(complete) as one, FaultServer(plain) as other:
        specs = [f"openai-compat[model=m,base_url={server.url}]" for server in (one, other)]
        argv = ("--label_a", "a", "--label_b", "b", *LIMITS, "--no-report")
        assert mill("compare", *specs, *argv, "--output", "auto")[0] == 0
        assert set(row_texts(tmp_path / "auto")) == {"5"}
        code, _, err = mill("compare", *specs, *argv, "--chat", "--output", "chat")
        assert code == 2 and "has no chat template" in err
        assert mill("compare", specs[0], specs[0], *argv, "--no_chat", "--output", "off")[0] == 0
        assert set(row_texts(tmp_path / "off")) == {"5"}


def test_an_address_does_not_apply_to_a_local_model(mill: Mill, tmp_path: Path) -> None:
    with FaultServer(complete, models=("org/name",)) as server:
        argv = ("compare", "toy[path=a]", "openai-compat[model=org/name]", "--task_paths", TOY, "--tasks", "toy_gen")
        code, _, err = mill(*argv, "--base-url", server.url, *LIMITS, "--no-report")
    assert code == 0 and "mill:" not in err
    assert "5" in row_texts(tmp_path / "results")


def row_texts(folder: Path) -> list[str]:
    return [text for row in only_check(folder).variants[0].rows for text in row["texts"]]


def test_determinism_measures_again_unless_it_was_interrupted(mill: Mill, tmp_path: Path) -> None:
    """The engine may have changed since a finished check; an interrupted one reuses its passes."""
    argv = ["determinism", "--model", "toy[path=a]", "--runs", "3", "--task_paths", TOY, "--tasks", "toy_gen", "--quiet"]
    argv += ["--output", "out", "--no-report"]
    assert mill(*argv)[0] == 0 and computed(tmp_path / "out") == 3 * 8
    assert mill(*argv)[0] == 0 and computed(tmp_path / "out") == 6 * 8
    newest = max((tmp_path / "out/checks/runs").rglob("*pass_3*/record"), key=lambda folder: folder.stat().st_mtime)
    shutil.rmtree(newest)
    code, out, _ = mill(*argv)
    assert code == 0 and "resumes an interrupted check" in out
    assert computed(tmp_path / "out") == 7 * 8


def test_stress_of_transformers(mill: Mill, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mill.models.hf.model import TransformersModel

    cleaned: list[int] = []
    clean = TransformersModel.clean

    def counted(self: TransformersModel) -> None:
        cleaned.append(1)
        clean(self)

    monkeypatch.setattr(TransformersModel, "clean", counted)
    argv = ("stress", "--model", spec(tiny_model), "--concurrency", "4,1,4", *LIMITS, "--output", "out", "--no-report")
    code, out, _ = mill(*argv)
    assert code == 0 and "no latencies: a model in this process runs in batches" in out
    assert len(cleaned) == 1, "the weights were loaded more than once"
    check = only_check(tmp_path / "out")
    assert [one.label for one in check.variants] == ["concurrency 1", "concurrency 4"]
    for index in range(2):
        found = values(check, index)
        assert (found["match_rate"], found["failure_rate"]) == (1.0, 0.0)
        assert found["tokens_per_s"] > found["requests_per_s"] > 0


def test_stress_of_a_server_holds_each_level(mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes ten seconds of a clock for as many requests as the level has at once."""
    most, counter, seconds = list[int](), time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: counter() + sum(seconds))
    waves = [threading.Barrier(level, lambda: seconds.append(10.0)) for level in (1, 6, 6, 1, 1, 6)]

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if body.get("prompt", "").startswith("p") and "echo" not in body:
            with server.lock:
                most.append(server.in_flight)
                number = len(most) - 1
            if number >= 12:
                waves[number // 12 - 1].wait(DEADLINE_S)
            return {"choices": [{"text": "5", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
        return {"choices": []}

    (tmp_path / "many.jsonl").write_text("".join(f'{{"prompt": "p{n}"}}\n' for n in range(12)))
    with FaultServer(answer) as server:
        argv = ("--base-url", server.url, "--prompts", "many.jsonl", "--quiet", "--no-report")
        assert mill("stress", "--model", "m", "--backend", "openai-compat", "--concurrency", "1,6", *argv)[0] == 0
    check = only_check(tmp_path / "results")
    warm, levels = most[:12], [max(most[start : start + 12]) for start in range(12, len(most), 12)]
    assert max(warm) <= 6 and levels == [1, 6, 6, 1, 1, 6]  # three repetitions, in turn
    one, six = values(check, 0), values(check, 1)
    assert one["latency_p50"] >= 10 and one["requests_per_s"] <= 0.1
    assert six["requests_per_s"] > 4 * one["requests_per_s"]


def test_stress_says_why_requests_were_retried(mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three times four requests: the first one after the warm-up."""
    monkeypatch.setattr("mill.models.http.policy.FIRST_PAUSE_S", 0.001)
    sent: list[str] = []

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if not body.get("prompt", "").startswith("p") or "echo" in body:
            return {"choices": []}
        sent.append(body["prompt"])
        if len(sent) == 5:
            return status(503, "busy")
        return {"choices": [{"text": "5", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}

    (tmp_path / "few.jsonl").write_text("".join(f'{{"prompt": "p{n}"}}\n' for n in range(4)))
    with FaultServer(answer) as server:
        argv = ("--base-url", server.url, "--prompts", "few.jsonl", "--quiet", "--no-report", "--concurrency", "1")
        assert mill("stress", "--model", "m", "--backend", "openai-compat", *argv)[0] == 0
    check = only_check(tmp_path / "results")
    assert "1 of 12 requests were retried: HTTP 503: busy (1)" in check.variants[0].warnings
    assert values(check)["retry_rate"] == pytest.approx(1 / 12)


def test_a_server_that_dies_under_load_is_what_the_check_reports(
    mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower levels keep their results, the level at which it crashed fails, and the exit code is 3."""
    monkeypatch.setattr("mill.execute.executor.StreamContext", partial(StreamContext, outage_patience_s=0.0))
    monkeypatch.setattr("mill.models.http.policy.FIRST_PAUSE_S", 0.001)

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if server.in_flight >= 3 or server.down:
            server.down = cut()
            return cut()
        time.sleep(0.05)
        return complete(server, path, body)

    with FaultServer(answer) as server:
        argv = ("stress", "--model", "m", "--backend", "openai-compat", "--base-url", server.url, "--concurrency", "1,2,4")
        code, _, _ = mill(*argv, *LIMITS[:4], "--quiet", "--repetitions", "1", "--no_chat", "--fail_on", "failure_rate>0")
    assert code == 3
    check = only_check(tmp_path / "results")
    assert [variant.label for variant in check.variants][-1] == "concurrency 4"
    assert "crashed under this load" in check.variants[-1].verdict
    assert values(check, -1)["failure_rate"] == 1.0 and values(check, 0)["failure_rate"] == 0.0


@pytest.mark.parametrize(
    ("limits", "requested"),
    [
        ((None, None), ["all", "all"]),
        ((None, None, 0), ["all", "all", 0]),  # a third model without log-probabilities changes nothing
        ((None, 20), [128, 20]),
        ((20, None), [20, 128]),
        ((0, None), None),
        ((None, 0), None),
    ],
)
def test_whole_distributions_are_requested_where_the_baseline_and_another_model_give_them(
    limits: tuple[int | None, ...], requested: list[int | str] | None
) -> None:
    models: list[Any] = [SimpleNamespace(capabilities=ModelCapabilities(top_logprobs=limit)) for limit in limits]
    assert top_logprobs_of(models) == requested


BAD = {
    "empty suite": (["--prompts", "empty.jsonl"], "the prompt suite empty is empty"),
    "line that is not JSON": (["--prompts", "broken.jsonl"], "broken.jsonl, line 1 is not JSON"),
    "missing suite": (["--prompts", "no.jsonl"], "no.jsonl does not exist"),
    "prompts and tasks": (["--prompts", "numerics", "--tasks", "toy_gen"], "give --prompts or --tasks, not both"),
    "malformed rule": (
        ["--fail-on", "flip_rate"],
        "--fail_on: 'flip_rate' is no rule; rules are METRIC then > >= < or <= then NUMBER, optionally with @p<NUMBER, "
        'separated by commas: --fail_on "flip_rate>0.02, acc_drop>0.01@p<0.05"',
    ),
    "unknown option": (["--labela", "x"], "unknown option --labela; did you mean --label_a"),
    "models and runs": (["--runs", "a", "b"], "give two models, or --runs with two recorded runs, not both"),
}


def test_bad_input_of_compare_is_one_clear_line(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"prompt": \n')
    for argv, message in BAD.values():
        refused(mill("compare", "toy[path=a]", "toy[path=b]", "--task_paths", TOY, "--output", "out", *argv), message)
    assert not list(tmp_path.rglob("manifest.json"))


ELSEWHERE = {
    "no models": (["compare"], "give two models: mill compare A B"),
    "no runs": (["compare", "--runs", "nowhere", "nothing"], "nowhere is not a run"),
    "a sweep of one": (["sweep", "--models", "a=toy[path=a]"], "a sweep needs at least two models"),
    "a label without a model": (["sweep", "--models", "a=,b=toy[path=b]"], "'a=' is not label=model"),
    "unknown baseline": (
        ["sweep", "--models", "eight=toy[path=a],four=toy[path=b]", "--task_paths", TOY, "--baseline", "eigth"],
        "unknown baseline 'eigth'; did you mean eight? labels are eight, four",
    ),
    "one backend": (["diff", "--model", "x", "--backends", "hf"], "--backends 'hf': at least two are needed"),
    "one backend twice": (["diff", "--model", "x", "--backends", "hf,hf"], "one of them is listed twice"),
    "unknown backend": (["diff", "--model", "x", "--backends", "hf,vlm"], "unknown backend 'vlm'; did you mean vllm"),
    "too few addresses": (
        ["diff", "--model", "x", "--backends", "hf,openai-compat", "--base-urls", "http://a"],
        "--base_urls has 1 entries for 2 backends",
    ),
    "no load": (["stress", "--model", "toy[path=a]", "--concurrency", "0"], "--concurrency 0: give counts from 1 to"),
    "one run": (
        ["determinism", "--model", "toy[path=a]", "--runs", "1"],
        "--runs must be a whole number of at least 2, not 1",
    ),
    "a report of nothing": (["report", "nowhere"], "nowhere does not exist"),
    "a gate without rules": (["gate", "other"], 'give rules: --require "acc_drop<0.01", or --fail_on'),
}


def test_bad_input_of_the_other_commands_is_one_clear_line(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/check.json").write_text('{"version": 9}')
    for argv, message in ELSEWHERE.values():
        refused(mill(*argv), message)


def refused(result: tuple[int, str, str], message: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "") and message in err, err
    assert len(err.splitlines()) == 1 and err.startswith("mill: ")


def test_an_interrupted_check_resumes(mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toys(mill, "--limit", "2")[0] == 0
    model = import_file(TOY, "task file").ToyModel
    whole = model._generate_batch

    def interrupted(self: Any, batch: Any, gen_kwargs: Any) -> Any:
        if any("toy_gen 5" in request.text for request in batch):
            raise KeyboardInterrupt
        return whole(self, batch, gen_kwargs)

    monkeypatch.setattr(model, "_generate_batch", interrupted)
    code, _, err = toys(mill)
    assert code == 130 and "the same command resumes from there" in err
    monkeypatch.setattr(model, "_generate_batch", whole)
    assert toys(mill)[0] == 0
    assert computed(tmp_path / "results") == 2 * 8


def test_options_that_do_not_apply_to_recorded_runs_are_refused(mill: Mill, tmp_path: Path) -> None:
    for option in (["--limit", "2"], ["--prompts", "numerics"], ["--fresh"], ["--forced_tokens", "4"]):
        why = f"{option[0]} is about requests to a model, and --runs compares recorded ones: leave it out"
        refused(mill("compare", "--runs", str(tmp_path), str(tmp_path), *option), why)
