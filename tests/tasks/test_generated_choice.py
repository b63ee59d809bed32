"""Multiple choice by the generated letter: prompts written out by hand, orders of the choices, and runs of models whose
scores are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.api.message import Message
from mill.api.request import GENERATE
from mill.api.response import Response
from mill.api.task import Opaque, RenderSettings, Sample, Task
from mill.cli.main import run as main
from mill.metrics.aggregate import position_spread
from mill.runs.rescore import score_again
from mill.store.folder import RunFolder, find_runs
from mill.tasks.load import load_builtin, make_task, select
from mill.tasks.multiple_choice import choice_orders

load_builtin()
Put = Callable[..., None]
ASKED = "Answer with the letter of the right choice alone."
THINK = 'Think step by step, and end with a line "Answer: X", where X is the letter of the right choice.'


def arc(question: str, right: int, *choices: str) -> dict[str, Any]:
    labels = list("ABCDE"[: len(choices)])
    return {"question": question, "choices": {"text": choices, "label": labels}, "answerKey": labels[right]}


STONE = arc("What is hard?", 1, "milk", "stone", "air")
RAIN = arc("What is wet?", 2, "sand", "fire", "rain")
HARD = "Question: What is hard?\nA. milk\nB. stone\nC. air"
WET = "Question: What is wet?\nA. sand\nB. fire\nC. rain"


def configured(name: str, **settings: Any) -> tuple[Task, Sample, RenderSettings]:
    """The first sample of a task with the settings of a run."""
    task, given = make_task(name), RenderSettings(**settings)
    task.configure(given)
    return task, task.samples()[0], given


def prompts(name: str, **settings: Any) -> list[Any]:
    task, sample, given = configured(name, **settings)
    return [request.context for request in task.requests(sample, given)]


def scored(name: str, *texts: str, **settings: Any) -> tuple[dict[str, Any], Any]:
    """The values and the extracted answer of the first sample, from one text for each order."""
    task, sample, _ = configured(name, **settings)
    responses = [Response(text=text) for text in texts]
    return task.score(sample, responses), task.extracted(sample, responses)


# Prompts

ROWS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "mmlu_anatomy_gen": (
        "cais/mmlu/anatomy/test",
        {"question": " Which is a bone? ", "choices": ["liver", "ulna", "skin", "lung"], "answer": 1},
        "Question: Which is a bone?\nA. liver\nB. ulna\nC. skin\nD. lung",
        "ulna",
    ),
    "hellaswag_gen": (
        "Rowan/hellaswag/validation",
        {"activity_label": "Cooking", "ctx_a": "A man stirs.", "ctx_b": "he", "endings": ["flies.", "eats."], "label": "1"},
        "Question: Which ending continues the text?\nCooking: A man stirs. He\nA. flies.\nB. eats.",
        "eats.",
    ),
    "piqa_gen": (
        "baber/piqa/validation",
        {"goal": "Open a jar.", "sol1": "Sing.", "sol2": "Turn the lid.", "label": 1},
        "Question: Open a jar.\nA. Sing.\nB. Turn the lid.",
        "Turn the lid.",
    ),
    "winogrande_gen": (
        "allenai/winogrande/winogrande_xl/validation",
        {"sentence": "Ann thanked Sue as _ had helped.", "option1": "Ann", "option2": "Sue", "answer": "2"},
        "Question: Which option fills the blank?\nAnn thanked Sue as _ had helped.\nA. Ann\nB. Sue",
        "Sue",
    ),
    "openbookqa_gen": (
        "allenai/openbookqa/main/test",
        {"question_stem": "Ice is", "choices": {"text": ["hot", "cold"], "label": ["A", "B"]}, "answerKey": "B"},
        "Question: Ice is\nA. hot\nB. cold",
        "cold",
    ),
    "boolq_gen": (
        "aps/super_glue/boolq/validation",
        {"passage": "Ice floats.", "question": "does ice float", "label": 1},
        "Ice floats.\nQuestion: does ice float?\nA. no\nB. yes",
        "yes",
    ),
    "arc_easy_gen": ("allenai/ai2_arc/ARC-Easy/test", STONE, HARD, "stone"),
    "arc_challenge_gen": ("allenai/ai2_arc/ARC-Challenge/test", STONE, HARD, "stone"),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_benchmark_lists_its_choices_and_requests_the_letter(name: str, put: Put) -> None:
    split, row, question, right = ROWS[name]
    put(split, row)
    assert prompts(name) == [f"{question}\n{ASKED}\nAnswer:"]
    assert prompts(name, cot=True) == [f"{question}\n{THINK}\nLet's think step by step."]
    assert prompts(name, apply_chat_template=True) == [(Message("user", f"{question}\n{ASKED}"),)]
    assert prompts(name, apply_chat_template=True, cot=True) == [(Message("user", f"{question}\n{THINK}"),)]
    task, sample, _ = configured(name)
    assert task.target(sample) == right
    assert scored(name, " B") == ({"acc": 1.0, "unreadable": 0.0}, right)
    assert scored(name, f"It is {right}") == ({"acc": 1.0, "unreadable": 0.0}, right)
    assert scored(name, "A")[0] == {"acc": 0.0, "unreadable": 0.0}
    assert scored(name, "I cannot say.") == ({"acc": 0.0, "unreadable": 1.0}, None)


@pytest.fixture
def stones(put: Put) -> None:
    put("ai2_arc/ARC-Easy/test", STONE)
    put("ai2_arc/ARC-Easy/train", RAIN)


def test_examples_end_with_the_same_form_of_answer(stones: None) -> None:
    assert prompts("arc_easy_gen", n_shots=1) == [f"{WET}\n{ASKED}\nAnswer: C\n\n{HARD}\n{ASKED}\nAnswer:"]
    thought = f"{WET}\n{THINK}\nAnswer: C\n\n{HARD}\n{THINK}\nLet's think step by step."
    assert prompts("arc_easy_gen", n_shots=1, cot=True) == [thought]
    chat = {"n_shots": 1, "apply_chat_template": True}
    assert prompts("arc_easy_gen", **chat) == [(Message("user", f"{WET}\n{ASKED}\nAnswer: C\n\n{HARD}\n{ASKED}"),)]
    chat["fewshot_as_multiturn"] = True
    turns = (Message("user", f"{WET}\n{ASKED}"), Message("assistant", "C"), Message("user", f"{HARD}\n{ASKED}"))
    assert prompts("arc_easy_gen", **chat) == [turns]
    assert prompts("arc_easy_gen", **chat, cot=True)[0][1] == Message("assistant", "Answer: C")


def test_mmlu_by_letter_is_zero_shot_by_default_and_takes_the_first_examples_of_dev(put: Put) -> None:
    rows = [{"question": f"Q{n}?", "choices": ["w", "x", "y", "z"], "answer": n} for n in range(3)]
    put("cais/mmlu/anatomy/test", rows[0])
    put("cais/mmlu/anatomy/dev", *rows[1:])
    assert "Q1?" not in prompts("mmlu_anatomy_gen")[0]
    starts = [
        line for line in prompts("mmlu_anatomy_gen", n_shots=2)[0].split("\n") if line.startswith(("Question", "Answer:"))
    ]
    assert starts == ["Question: Q1?", "Answer: B", "Question: Q2?", "Answer: C", "Question: Q0?", "Answer:"]


def test_reasoning_has_more_tokens_and_a_text_ends_where_a_base_model_writes_another_question(stones: None) -> None:
    def options(**settings: Any) -> tuple[int, tuple[str, ...]]:
        task, sample, given = configured("arc_easy_gen", **settings)
        (request,) = task.requests(sample, given)
        assert request.kind == GENERATE
        return request.options["max_gen_toks"], request.options["until"]

    assert options() == (32, ("\nQuestion:",))
    assert options(cot=True) == (1024, ("\nQuestion:",))
    assert options(apply_chat_template=True) == (32, ())
    assert options(cot=True, gen_kwargs={"max_gen_toks": 50})[0] == 50


# Orders of the choices


def order_of(prompt: str) -> list[str]:
    """The texts of the listed choices."""
    return re.findall(r"^[A-E]\. (.*)$", prompt, flags=re.MULTILINE)


def test_a_shuffle_depends_on_the_seed_and_the_sample_alone() -> None:
    shuffled = RenderSettings(shuffle_choices=True)
    drawn = {str(n): choice_orders(4, str(n), shuffled)[0] for n in range(500)}
    assert drawn == {str(n): choice_orders(4, str(n), shuffled)[0] for n in reversed(range(500))}
    positions = [Counter(order.index(choice) for order in drawn.values()) for choice in range(4)]
    assert all(90 < count < 160 for counts in positions for count in counts.values())  # 125 each
    other = [choice_orders(4, str(n), RenderSettings(shuffle_choices=True, seed=1))[0] for n in range(500)]
    assert other != list(drawn.values())
    assert choice_orders(4, "0", RenderSettings(seed=1)) == [(0, 1, 2, 3)]


def test_a_shuffled_question_is_scored_by_what_its_letters_were(put: Put) -> None:
    put("ai2_arc/ARC-Easy/test", arc("Which?", 0, "one", "two", "three", "four"))
    seeds = [seed for seed in range(30) if order_of(prompts("arc_easy_gen", shuffle_choices=True, seed=seed)[0])[0] != "one"]
    seed = seeds[0]
    shown = order_of(prompts("arc_easy_gen", shuffle_choices=True, seed=seed)[0])
    assert sorted(shown) == ["four", "one", "three", "two"]
    for letter, text in zip("ABCD", shown, strict=True):
        values, extracted = scored("arc_easy_gen", letter, shuffle_choices=True, seed=seed)
        assert (values["acc"], extracted) == (float(text == "one"), text)
    assert scored("arc_easy_gen", "A", seed=seed) == ({"acc": 1.0, "unreadable": 0.0}, "one")


def test_examples_are_shuffled_with_the_question_and_show_the_right_letter(put: Put) -> None:
    put("ai2_arc/ARC-Easy/test", STONE)
    put("ai2_arc/ARC-Easy/train", *(arc(f"Q{n}?", 0, f"right {n}", "x", "y", "z") for n in range(12)))
    prompt = prompts("arc_easy_gen", n_shots=12, shuffle_choices=True)[0]
    letters = re.findall(r"^([A-D])\. right \d+$", prompt, flags=re.MULTILINE)
    assert re.findall(r"^Answer: ([A-D])$", prompt, flags=re.MULTILINE) == letters and len(set(letters)) > 1
    plain = prompts("arc_easy_gen", n_shots=12)[0]
    assert plain.count("A. right") == 12 == plain.count("Answer: A\n")


def test_as_many_orders_as_choices_put_each_choice_at_every_position() -> None:
    for sample in map(str, range(20)):
        orders = choice_orders(4, sample, RenderSettings(permutations=4))
        assert orders[-1] == (0, 1, 2, 3)
        assert all(sorted(order[at] for order in orders) == [0, 1, 2, 3] for at in range(4))
        shuffled = choice_orders(4, sample, RenderSettings(permutations=4, shuffle_choices=True))
        assert shuffled[-1] == choice_orders(4, sample, RenderSettings(shuffle_choices=True))[0]
    assert len({tuple(choice_orders(4, sample, RenderSettings(permutations=2))) for sample in map(str, range(20))}) == 3


def test_a_question_in_several_orders_counts_by_its_mean(stones: None) -> None:
    shown = [order_of(prompt) for prompt in prompts("arc_easy_gen", permutations=3)]
    letters = ["ABC"[order.index("stone")] for order in shown]
    assert sorted(letters) == ["A", "B", "C"] and letters[-1] == "B"
    values, extracted = scored("arc_easy_gen", *letters, permutations=3)
    assert values == {"acc": 1.0, "unreadable": 0.0, "consistency": 1.0, "position_spread": Opaque({"A": 1, "B": 1, "C": 1})}
    assert extracted == "stone"
    values, extracted = scored("arc_easy_gen", "A", "A", "A", permutations=3)
    assert values.pop("position_spread") == Opaque({"A": 1.0, "B": 0.0, "C": 0.0})
    assert values == {"acc": 1 / 3, "unreadable": 0.0, "consistency": 0.0} and extracted == "milk"
    values, extracted = scored("arc_easy_gen", letters[0], letters[1], "?", permutations=3)
    assert (values["acc"], values["unreadable"], values["consistency"], extracted) == (2 / 3, 1 / 3, 0.0, None)
    assert scored("arc_easy_gen", "?", "?", "?", permutations=3)[0]["consistency"] == 0.0  # no answer is not the same answer


def test_the_spread_is_that_of_the_best_and_the_worst_letter() -> None:
    samples = [[Opaque({"A": 1.0, "B": b})] for b in (1.0, 0.0, 0.0, 1.0)]
    found = position_spread(samples)
    # The differences A - B are 0, 1, 1, 0: their mean is 0.5 and its standard error sqrt(1/3) / 2.
    assert (found.value, found.n) == (0.5, 4)
    assert found.stderr == pytest.approx((1 / 3) ** 0.5 / 2)
    assert found.low == 0.0 and found.high == 1.0
    # Letters of different questions: 3/4 of four and 1/4 of four, so sqrt(2 * 4 * (3/16) / 4**2 * 8/7) over eight.
    apart = [[Opaque({"A": a})] for a in (1.0, 1.0, 1.0, 0.0)] + [[Opaque({"B": b})] for b in (0.0, 0.0, 0.0, 1.0)]
    assert position_spread(apart).value == 0.5
    assert position_spread(apart).stderr == pytest.approx((2 * 4 * (3 / 16) / 16 * 8 / 7) ** 0.5)


# Runs

MODEL = '''
import re

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model


@register_model("biased")
class Biased(MillModel):
    """Answers with the letter A, or with that of the word that it knows; returns no log-probabilities."""

    def __init__(self, knows: str = ""):
        self.knows = knows
        self.capabilities = ModelCapabilities(supports_chat_template=True)

    @property
    def model_name(self):
        return f"biased-{self.knows or 'none'}"

    def _generate_batch(self, batch, gen_kwargs):
        return [self._letter(request.text) for request in batch]

    def _letter(self, text):
        found = re.search(rf"^([A-E])\\. {self.knows}$", text, flags=re.MULTILINE)
        return f"The answer is ({found[1] if found else 'A'})."
'''


@pytest.fixture
def science(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve questions whose right choice is `right`, three times at each position; the file of the model."""
    words = ("wrong", "false", "bad")
    put("ai2_arc/ARC-Easy/test", *(arc(f"Q{n}?", n % 4, *words[: n % 4], "right", *words[n % 4 :]) for n in range(12)))
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model.py"


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["eval", *words, "--task_paths", "model.py", "--output_dir", "out", "--quiet"])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def shown(folder: RunFolder) -> str:
    """The settings in the name of a run's folder, without the digest."""
    return re.sub(r"-[0-9a-f]{8}$", "", folder.path.name)


def metrics(run: str) -> dict[str, float]:
    (folder,) = [found for found in find_runs(Path("out")) if shown(found) == run]
    (task,) = folder.results().tasks.values()
    return {name: estimate.value for name, estimate in task.metrics.items()}


def test_repeats_count_unreadable_answers_as_wrong_and_have_metrics_of_the_accuracy_alone(
    science: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (science.parent / "model.py").write_text(MODEL.replace("f\"The answer is ({found[1] if found else 'A'}).\"", "'?'"))
    words = ["--repeats", "2", "--gen_kwargs", "temperature=1"]
    assert evaluated(capsys, "biased", "arc_easy_gen", *words)[0] == 0
    (folder,) = find_runs(Path("out"))
    (task,) = folder.results().tasks.values()
    assert set(task.metrics) == {"acc", "unreadable", "acc,pass@2", "acc,maj@2"}
    found = {name: (estimate.value, estimate.n) for name, estimate in task.metrics.items()}
    assert found["acc,maj@2"] == (0.0, 12) and found["unreadable"] == (1.0, 12)


def test_each_setting_is_a_run_of_its_own_and_runs_without_them_are_named_as_before(
    science: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["--cot"], ["--shuffle_choices"], ["--shuffle_choices", "--seed", "1"], ["--permutations", "1"]):
        assert evaluated(capsys, "biased", "arc_easy_gen", *words)[0] == 0
    names = sorted(map(shown, find_runs(Path("out"))))
    assert names == ["cot=True", "default", "seed=1-shuffle_choices=True", "shuffle_choices=True"]


@pytest.mark.parametrize("words", [["--shuffle_choices"], ["--permutations", "3"], ["--shuffle_choices", "--seed", "5"]])
def test_a_run_is_scored_again_with_the_orders_that_it_had(
    words: list[str], science: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated(capsys, "biased[knows=right]", "arc_easy_gen", *words)[0] == 0
    (folder,) = find_runs(Path("out"))
    before, samples = folder.results().tasks, folder.samples_file("arc_easy_gen").read_text()
    assert before["arc_easy_gen"].metrics["acc"].value == 1.0
    score_again(folder)
    assert folder.results().tasks == before
    assert folder.samples_file("arc_easy_gen").read_text() == samples


REFUSED = {
    "a task by log-probability": (["hellaswag", "--cot"], "--cot is for tasks where the model generates the letter"),
    "one with another form": (["hellaswag", "--permutations", "2"], "not for hellaswag, but for hellaswag_gen"),
    "one task of several": (["arc_easy_gen,gsm8k", "--permutations", "2"], "not for gsm8k"),
    "no orders": (["arc_easy_gen", "--permutations", "0"], "--permutations must be a whole number from 1 to 1000, not 0"),
    "mmlu without log-probabilities": (
        ["mmlu"],
        "; mmlu_gen needs no log-probabilities: the model generates the letter of a choice",
    ),
    "an area": (["mmlu_stem,piqa"], "; mmlu_stem_gen needs no log-probabilities"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_apply_is_refused_in_one_line(
    words: list[str], message: str, science: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = "toy[path=a]" if words[0] == "hellaswag" else "biased"
    (science.parent / "toy.py").write_text((Path(__file__).parents[1] / "toy.py").read_text())
    code, output = evaluated(capsys, spec, *words, "--task_paths", "toy.py")
    assert code == 2 and message in output and output.count("\n") == 1, output
    assert not Path("out").exists()


def test_a_benchmark_by_letter_has_the_members_and_areas_of_the_benchmark() -> None:
    found, plain = select(["mmlu_gen"]), select(["mmlu"])
    assert [task.name for task in found.tasks] == [f"{task.name}_gen" for task in plain.tasks]
    assert [one.name for one in found.benchmarks] == [f"{one.name}_gen" for one in plain.benchmarks]
