"""Multiple-choice tasks of lm-eval by the generated letter: `lm-eval:NAME_gen`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from mill.api.errors import DataError, UnknownName
from mill.api.message import Message
from mill.api.registry import register_model
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.bridges.lm_eval import library
from mill.cli.main import run as main
from mill.runs.rescore import score_again
from mill.tasks import load
from mill.tasks.load import make_task, select
from tests.bridges import hash_model  # noqa: F401  registers its model
from tests.bridges.made_tasks import CHOICE, DATA, write_tasks
from tests.plans import prepare
from tests.toy import ToyModel

ASKED = "Answer with the letter of the right choice alone."
ACC = "metric_list: [metric: acc]"
LISTED = f"""{DATA}
output_type: multiple_choice
description: "About {{{{topic}}}}.\\n\\n"
doc_to_text: "{{{{question}}}}\\nA. {{{{choices[0]}}}}\\nB. {{{{choices[1]}}}}\\nC. {{{{choices[2]}}}}\\nAnswer:"
doc_to_choice: ["A", "B", "C"]
doc_to_target: gold
fewshot_config: {{sampler: first_n}}
{ACC}
"""
YAML = {
    "own_listed": f"task: own_listed\n{LISTED}",
    "own_text_gold": f"task: own_text_gold\n{CHOICE.replace('doc_to_target: gold', 'doc_to_target: answer')}\n{ACC}",
    "own_no_gold": f"task: own_no_gold\n{CHOICE.replace('doc_to_target: gold', 'doc_to_target: topic')}\n{ACC}",
    "own_inputs": f"""
task: own_inputs
{DATA}
output_type: multiple_choice
doc_to_text: label
doc_to_choice: "{{{{[question, topic]}}}}"
doc_to_target: answer
{ACC}
""",
    "own_targets": f"task: own_targets\n{CHOICE.replace('doc_to_target: gold', 'doc_to_target: golds')}\n{ACC}",
    "own_code": f"task: own_code\n{CHOICE}\nprocess_results: !function own.score\n{ACC}",
    "own_many": f"task: own_many\n{CHOICE.replace('doc_to_choice: choices', 'doc_to_choice: many')}\n{ACC}",
    "own_pairs": f"task: own_pairs\n{CHOICE.replace('doc_to_choice: choices', 'doc_to_choice: pairs')}\n{ACC}",
    "own_letters": f"task: own_letters\n{LISTED.replace('A. ', '').replace('B. ', '')}",
    "own_blank": f"task: own_blank\n{CHOICE.replace('Q: {{question}}', '')}\n{ACC}",
    "own_last": f"task: own_last\n{DATA}\noutput_type: loglikelihood\ndoc_to_text: question\ndoc_to_target: answer\n{ACC}",
    "own_taken": f"task: own_taken\n{CHOICE}\n{ACC}",
    "own_taken_gen": f"task: own_taken_gen\n{CHOICE}\n{ACC}",
    "own_group": "group: own_group\ntask: [own_listed, own_text_gold]\naggregate_metric_list: [{metric: acc}]",
    "own_mixed": "group: own_mixed\ntask: [own_listed, own_last]\n",
}


def row(number: int) -> dict[str, Any]:
    choices = [str(number), str(2 * number), str(3 * number + 1)]
    extra = {"many": [str(n) for n in range(27)], "pairs": [["a", "b"], ["c", "d"]], "golds": [0, 1]}
    topic = {"topic": "sums", "answer": choices[1], "gold": 1, "label": 0}
    return {"question": f"What is {number} plus {number}?", "choices": choices, **topic, **extra}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of YAML tasks with their data on the search path, and an lm-eval source that knows no other ones."""
    folder, data = write_tasks(tmp_path)
    for name, text in YAML.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "own.py").write_text("def score(doc, results):\n    return {'acc': 1.0}\n")
    for split, numbers in (("test", range(1, 9)), ("train", range(20, 26))):
        (data / f"made/up/{split}.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in numbers))
    monkeypatch.setenv("MILL_DATA", str(data))
    monkeypatch.setattr(library, "tasks_folder", lambda: folder)
    monkeypatch.setattr(load, "_opened", {})
    monkeypatch.chdir(tmp_path)
    yield folder


def prompts(name: str, **settings: Any) -> list[Any]:
    task, given = make_task(f"lm-eval:{name}"), RenderSettings(**settings)
    task.configure(given)
    return [request.context for request in task.requests(task.samples()[0], given)]


QUESTION = f"Question: What is 1 plus 1?\nA. 1\nB. 2\nC. 4\n{ASKED}"


def test_choices_are_listed_and_the_cues_of_question_and_answer_are_replaced() -> None:
    assert prompts("made_choice_gen") == [f"{QUESTION}\nAnswer:"]
    assert prompts("own_text_gold_gen") == [f"{QUESTION}\nAnswer:"]
    assert prompts("made_choice_gen", apply_chat_template=True) == [(Message("user", QUESTION),)]
    assert "Let's think step by step." in prompts("made_choice_gen", cot=True)[0]


def test_a_question_that_lists_its_choices_stays_as_it_is() -> None:
    assert prompts("own_listed_gen") == [f"About sums.\n\n{QUESTION}\nAnswer:"]
    example = QUESTION.replace("1 plus 1", "20 plus 20").replace("A. 1\nB. 2\nC. 4", "A. 20\nB. 40\nC. 61")
    assert prompts("own_listed_gen", n_shots=1) == [f"About sums.\n\n{example}\nAnswer: B\n\n{QUESTION}\nAnswer:"]


def test_examples_are_drawn_by_the_sample_and_too_few_are_reported() -> None:
    drawn = prompts("made_choice_gen", n_shots=2)[0]
    assert drawn.count("Answer: B\n\n") == 2 and drawn == prompts("made_choice_gen", n_shots=2)[0]
    assert drawn != prompts("made_choice_gen", n_shots=2, seed=1)[0]
    with pytest.raises(DataError, match=r"lm-eval:made_choice_gen needs 9 examples .* has only 6: lower --n_shots"):
        prompts("made_choice_gen", n_shots=9)


def scored(name: str, text: str, **settings: Any) -> tuple[Any, Any, Any]:
    """Accuracy, extracted answer and target of the first sample."""
    task = make_task(f"lm-eval:{name}")
    task.configure(RenderSettings(**settings))
    sample, responses = task.samples()[0], [Response(text=text)]
    return task.score(sample, responses)["acc"], task.extracted(sample, responses), task.target(sample)


def test_the_right_choice_is_that_of_lm_eval() -> None:
    assert scored("made_choice_gen", "B") == (1.0, "2", "2")
    assert scored("made_choice_gen", "It is 4") == (0.0, "4", "2")
    assert scored("own_text_gold_gen", "(B)") == (1.0, "2", "2")
    assert scored("own_listed_gen", "the answer is b.") == (1.0, "B", "B")
    assert scored("own_listed_gen", "D") == (0.0, None, "B")
    assert scored("own_no_gold_gen", "B") == (0.0, "2", None)


def test_a_gold_answer_that_is_no_choice_is_reported() -> None:
    task = make_task("lm-eval:own_no_gold_gen")
    task.prepare(task.samples(), RenderSettings())
    assert task.warnings() == ["8 samples have a gold answer that is none of the choices: they count as wrong"]


@pytest.mark.parametrize(
    ("name", "reason"),
    {
        "own_inputs_gen": "its choices complete the question in different ways",
        "own_targets_gen": "its questions have several right answers",
        "own_code_gen": "its own code scores the choices",
        "own_last_gen": "it is not multiple choice",
        "own_mixed_gen": "lm-eval:own_last cannot be answered by a letter: it is not multiple choice",
        "own_many_gen": "sample 0 has 27 choices, and there must be 2 to 26",
        "own_pairs_gen": "the choices of a question are not texts",
        "own_blank_gen": "a question has no text beside its choices",
        "own_letters_gen": "the choices are letters, which the text of a question does not list",
    }.items(),
)
def test_what_has_no_choices_to_list_is_refused_in_one_line(
    name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "no-logprobs", f"lm-eval:{name}", "--quiet", "--output_dir", "out"]) == 2
    captured = capsys.readouterr()
    assert reason in captured.err and captured.err.count("\n") == 1, captured.err


@pytest.mark.parametrize("option", [{"shuffle_choices": True}, {"permutations": 2}])
def test_choices_inside_of_a_question_are_not_reordered(option: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"its questions list the choices themselves, so --(shuffle|permut)"):
        prompts("own_listed_gen", **option)
    assert len(prompts("made_choice_gen", **option)) == option.get("permutations", 1)


def test_names_of_lm_eval_come_first_and_unknown_ones_are_refused() -> None:
    assert make_task("lm-eval:own_taken_gen").kind == "loglikelihood"
    assert make_task("lm-eval:own_taken_gen_gen").name == "lm-eval:own_taken_gen_gen"
    assert [task.name for task in select(["lm-eval:own_te*_gen"]).tasks] == ["lm-eval:own_text_gold_gen"]
    assert [task.name for task in select(["lm-eval:own_te*"]).tasks] == ["lm-eval:own_text_gold"]
    for name in ("nothing_gen", "_gen"):
        with pytest.raises(UnknownName):
            make_task(f"lm-eval:{name}")


@register_model("no-logprobs")
class Hosted(ToyModel):
    """Always writes the letter B, and returns no log-probabilities."""

    def __init__(self, path: str = "hosted") -> None:
        super().__init__(path)
        self.capabilities = type(self.capabilities)(supports_chat_template=True)

    def _generate_batch(self, batch: list[Any], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [Response(text="B") for _ in batch]


def test_a_group_is_the_mean_over_its_members_and_is_scored_again(tmp_path: Path) -> None:
    run = prepare("no-logprobs", select(["lm-eval:own_group_gen"]), RenderSettings(), output_dir=tmp_path / "out")
    outcome = run.execute(quiet=True)
    (mean,) = outcome.benchmarks
    assert (mean.benchmark, mean.tasks) == ("lm-eval:own_group_gen", ["lm-eval:own_listed_gen", "lm-eval:own_text_gold_gen"])
    assert (mean.metrics["acc"].value, mean.metrics["acc"].n, mean.metrics["unreadable"].value) == (1.0, 16, 0.0)
    before = outcome.folder.results()
    again = score_again(outcome.folder)
    assert [one.benchmark for one in again.benchmarks] == ["lm-eval:own_group_gen"]
    assert outcome.folder.results() == before


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("own_group", "lm-eval:own_group_gen needs no log-probabilities"),
        ("made_choice", "lm-eval:made_choice_gen needs no log-probabilities"),
        ("own_last", None),
        ("own_code", None),
        ("own_taken", None),
    ],
)
def test_a_model_without_log_probabilities_is_refused_with_the_name_by_letter(
    name: str, instead: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "no-logprobs", f"lm-eval:{name}", "--quiet", "--output_dir", "out"]) == 2
    error = capsys.readouterr().err
    assert instead in error if instead else "generates the letter" not in error
