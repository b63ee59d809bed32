"""A run with a judge, from answers to agreement, on backends that answer by rule and log their requests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mill.api.judge import Judge
from mill.api.message import Message
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import models, register_model, register_task
from mill.api.request import GENERATE, MULTI_ROUND, Request, generation_options
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.cli.main import run

N = 10
Mill = Callable[..., tuple[int, str, str]]


class Calls(MillModel):
    """Logs when it is loaded, called and cleaned."""

    events: ClassVar[list[str]] = []
    requests: ClassVar[list[str]] = []

    def __init__(self, name: str = "", chat: bool = True) -> None:
        self.name = name
        self.capabilities = ModelCapabilities(supports_chat_template=chat)

    @property
    def model_name(self) -> str:
        return self.name or type(self).__name__

    def load(self) -> None:
        self.events.append(f"{self.model_name} load")

    def clean(self) -> None:
        self.events.append(f"{self.model_name} clean")

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        self.events.append(f"{self.model_name} generate")
        return [self.answer(request) for request in batch]

    def answer(self, request: Request) -> str:
        raise NotImplementedError


class Answerer(Calls):
    """Right about even numbers; in a later draw always right."""

    def answer(self, request: Request) -> str:
        number = int(re.findall(r"\d+", request.text)[-1])
        return f"{{{number}}}" if number % 2 == 0 or request.draw else "no idea"


class Grader(Calls):
    """Says CORRECT where the reference stands in the answer, but for what its fields tell."""

    wrong: ClassVar[set[int]] = set()
    breaks: ClassVar[set[int]] = set()
    mumbles: ClassVar[set[int]] = set()

    def answer(self, request: Request) -> str:
        self.requests.append(request.text)
        number = int(re.search(r"question (\d+)", request.text)[1])  # type: ignore[index]
        if number in self.breaks:
            raise ValueError(f"cannot judge {number}")
        if number in self.mumbles:
            return "Who am I to judge?"
        reference = request.text.partition("[Reference answer]\n")[2].partition("\n")[0]
        answer = request.text.partition("[Answer to grade]\n")[2].partition("\n\n[End")[0]
        return f"**VERDICT: {'CORRECT' if (reference in answer) is not (number in self.wrong) else 'INCORRECT'}**"


class Questions(Task):
    task_type = TaskType.GENERATIVE_QA
    metrics = {"exact_match": "mean"}
    judge: Judge | None = Judge(rubric="Be fair.")

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(i), {"number": i}) for i in range(N)]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        options = generation_options(max_gen_toks=8, **settings.gen_kwargs, seed=settings.seed)
        return [Request(GENERATE, f"question {sample.doc['number']}", options=options, repeats=settings.repeats)]

    def target(self, sample: Sample) -> str:
        return f"{{{sample.doc['number']}}}"

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(responses[0].text == self.target(sample))}

    def judged_fields(self, sample: Sample, responses: Sequence[Response]) -> dict[str, str]:
        return {**super().judged_fields(sample, responses), "question": f"question {sample.doc['number']}"}

    def gold_verdict(self, sample: Sample, responses: Sequence[Response]) -> float | None:
        return float(responses[0].text == self.target(sample))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    register_model("answerer")(Answerer)
    register_model("grader")(Grader)
    register_task("judged")(Questions)
    register_task("plain")(type("Plain", (Questions,), {"judge": None}))
    for table in (Calls.events, Calls.requests, Grader.wrong, Grader.breaks, Grader.mumbles):
        table.clear()
    yield


@pytest.fixture
def mill(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mill:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*argv: str, judge: str | None = "grader") -> tuple[int, str, str]:
        grading = ["--judge", judge] if judge else []
        options = ["--output_dir", "out", "--quiet", *grading] if argv[0] == "eval" else []
        code = run([*argv, *options])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def result(task: str = "judged", pattern: str = "*judge*") -> dict[str, Any]:
    """What the run says of a task."""
    (file,) = Path("out").glob(f"*/{pattern}/results.json")
    return dict(json.loads(file.read_text())["tasks"][task])


def value(metric: str, task: str = "judged") -> float:
    return float(result(task)["metrics"][metric]["value"])


def samples(task: str = "judged") -> list[dict[str, Any]]:
    (file,) = Path("out").glob(f"*/*judge*/samples/{task}.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_answers_are_judged_and_the_judge_is_held_against_what_is_known(mill: Mill) -> None:
    Grader.wrong |= {0, 1, 2}
    code, out, _ = mill("eval", "answerer", "judged")
    assert code == 0
    assert value("exact_match") == 0.5 and value("judge_read") == 1.0
    assert value("judge") == 0.4 and value("judge_agreement") == 0.7, "0 and 2 taken for wrong, 1 for right"
    assert math.isclose(value("judge_kappa"), 0.4)
    assert result()["warnings"] == ["judged by Grader"] and "judged: judged by Grader" in out
    assert "judge_kappa" in out and "judge_agreement" in out
    assert samples()[0]["judgements"] == [["**VERDICT: INCORRECT**"]] and samples()[0]["values"]["judge"] == [0.0]


def test_the_judge_comes_after_the_first_model_is_gone(mill: Mill) -> None:
    mill("eval", "answerer,answerer[name=other]", "judged,plain")
    order = [event for place, event in enumerate(Calls.events) if event not in Calls.events[:place]]
    assert order == [
        *("Answerer load", "Answerer generate", "Answerer clean"),
        *("Grader load", "Grader generate", "Grader clean"),
        *("other load", "other generate", "other clean"),
    ]
    last = {event: place for place, event in enumerate(Calls.events)}
    assert last["other clean"] > last["other generate"] and Calls.events[-1] == "Grader clean"


def test_a_second_run_asks_the_judge_nothing(mill: Mill) -> None:
    mill("eval", "answerer", "judged")
    assert len(Calls.requests) == N
    first = result()
    Calls.events.clear()
    assert mill("eval", "answerer", "judged")[0] == 0
    assert len(Calls.requests) == N and not [event for event in Calls.events if "load" in event or "generate" in event]
    assert result() == first


def test_a_judge_that_breaks_down_is_reported_in_one_line_and_can_be_sent_again(mill: Mill) -> None:
    Grader.breaks |= set(range(N))
    code, out, err = mill("eval", "answerer", "judged")
    broke_down = "the judge broke down: the model failed on each of the first"
    assert code == 1 and err.count("\n") == 1 and broke_down in err and broke_down in out
    Grader.breaks.clear()
    Calls.events.clear()
    assert mill("eval", "answerer", "judged")[0] == 0 and "Answerer generate" not in Calls.events
    assert value("judge") == 0.5


def failed_column(out: str) -> dict[str, str]:
    """Metric -> what the table shows under `failed`."""
    lines = [line.split() for line in out.splitlines()]
    return {words[-6]: words[-1] for words in lines if len(words) > 5 and words[-6].startswith(("exact_match", "judge"))}


@pytest.mark.parametrize("failing", [{3, 4}, set(range(N))])
@pytest.mark.parametrize("how", ["breaks", "mumbles"])
def test_samples_whose_judgement_failed_are_counted_in_every_table(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, how: str, failing: set[int]
) -> None:
    monkeypatch.setattr(Grader, how, failing)
    code, out, _ = mill("eval", "answerer", "judged")
    count = str(len(failing))
    assert code == 1
    without = dict.fromkeys(("judge", "judge_agreement", "judge_kappa"), count)
    assert failed_column(out) == {"exact_match": "0", "judge_read": "0", **without}
    assert result()["metrics"]["judge"]["n"] == N - len(failing) and value("judge_read") == 1 - len(failing) / N
    rows = json.loads(mill("collect", "--output_dir", "out", "--format", "json")[1])
    assert {row["metric"]: row["failed"] for row in rows if row["metric"] in ("exact_match", "judge")} == {
        "exact_match": 0,
        "judge": len(failing),
    }
    (listed,) = [line.split() for line in mill("ls", "runs", "--output_dir", "out")[1].splitlines() if "out/" in line]
    assert listed[1:4] == ["judged", str(N), count]
    (folder,) = Path("out").glob("*/*judge=*")
    assert failed_column(mill("score", str(folder))[1])["judge"] == count
    monkeypatch.setattr(Grader, how, set())
    if how == "breaks":
        code, out, _ = mill("eval", "answerer", "judged")
        assert (code, failed_column(out)["judge"], value("judge_read")) == (0, "0", 1.0)


def test_every_repeat_is_judged(mill: Mill) -> None:
    options = ("--repeats", "2", "--gen_kwargs", "temperature=1")
    code, _, _ = mill("eval", "answerer", "judged", *options)
    assert code == 0 and value("judge") == value("exact_match") == 0.75
    assert len(Calls.requests) == N + N // 2, "the same answer is judged once"
    assert [len(one["judgements"]) for one in samples()] == [2] * N
    assert samples()[1]["values"]["judge"] == [0.0, 1.0]


class TwoRounds(Questions):
    kind = MULTI_ROUND

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [self._ask(sample.doc["number"])]

    def next_round(self, sample: Sample, settings: RenderSettings, responses: Sequence[Response]) -> Request | None:
        return self._ask(2 * sample.doc["number"]) if len(responses) == 1 else None

    def _ask(self, number: int) -> Request:
        return Request(MULTI_ROUND, (Message("user", f"question {number}"),), options=generation_options())


def test_a_dialog_is_judged_by_its_last_answer(mill: Mill) -> None:
    register_task("judged_dialog")(TwoRounds)
    assert mill("eval", "answerer", "judged_dialog", "--limit", "3")[0] == 0
    assert [request.partition("[Answer to grade]\n")[2].split()[1] for request in Calls.requests] == ["{0}", "{2}", "{4}"]
    (folder,) = Path("out").glob("*/*judge=*")
    before = result("judged_dialog")
    assert mill("score", str(folder))[0] == 0 and result("judged_dialog")["metrics"] == before["metrics"]


class TwoOpinions(Questions):
    """Asks for a second opinion where the first is that an answer is wrong, and takes the last."""

    def judge_requests(
        self, sample: Sample, responses: Sequence[Response], judgements: Sequence[str], *, chat: bool
    ) -> list[Request]:
        first = super().judge_requests(sample, responses, [], chat=chat)
        again = [replace(first[0], options={**first[0].options, "max_gen_toks": 99})]
        return first if not judgements else again if len(judgements) == 1 and "INCORRECT" in judgements[0] else []

    def score_judged(
        self, sample: Sample, responses: Sequence[Response], judgements: Sequence[str | None]
    ) -> dict[str, Value]:
        return {**super().score_judged(sample, responses, judgements[-1:]), "opinions": float(len(judgements))}

    metrics = {"exact_match": "mean", "opinions": "mean"}


def test_a_task_may_ask_its_judge_again_after_it_has_seen_the_first_judgement(mill: Mill) -> None:
    register_task("opinions")(TwoOpinions)
    code, _, err = mill("eval", "answerer", "opinions")
    assert code == 0, err
    assert [len(sample["judgements"][0]) for sample in samples("opinions")] == [1, 2] * (N // 2)
    assert value("opinions", "opinions") == 1.5 and value("judge", "opinions") == 0.5
    assert Calls.events.count("Grader clean") == 1, "loaded for all rounds"


# Without a judge


def test_a_task_that_requires_a_judge_is_refused_without_one(mill: Mill) -> None:
    register_task("required")(type("Required", (Questions,), {"judge": Judge(required=True)}))
    assert mill("eval", "answerer", "required", judge=None) == (
        2,
        "",
        "mill: required needs a judge: --judge MODEL names one\n",
    )
    assert not Calls.events
    assert mill("eval", "answerer", "required")[0] == 0


def test_scoring_again_keeps_the_verdicts_and_needs_no_judge(mill: Mill) -> None:
    Grader.mumbles |= {0}
    mill("eval", "answerer", "judged")
    before, lines = result(), samples()
    del models._entries["grader"]
    (folder,) = Path("out").glob("*/*judge=*")
    code, out, _ = mill("score", str(folder))
    assert code == 1 and "judge_kappa" in out
    assert result()["metrics"] == before["metrics"] and samples() == lines


# What is refused


def test_a_judge_without_anything_to_judge_is_refused(mill: Mill) -> None:
    code, out, err = mill("eval", "answerer", "plain")
    assert (code, out) == (2, "") and err.startswith("mill: --judge: none of these tasks is judged: plain;")
    assert not Calls.events


@pytest.mark.parametrize("wrong", [{"prompt": "{nosuch}"}, {"prompt": "{"}])
def test_a_prompt_that_cannot_be_filled_in_is_refused_before_anything_is_computed(mill: Mill, wrong: dict[str, Any]) -> None:
    register_task("judged")(type("Broken", (Questions,), {"judge": Judge(**wrong)}))
    code, _, err = mill("eval", "answerer", "judged")
    assert code == 2 and "the judge's prompt" in err and not Calls.events


def test_a_fresh_run_is_judged_afresh(mill: Mill) -> None:
    mill("eval", "answerer", "judged")
    assert mill("eval", "answerer", "judged", "--fresh")[0] == 0
    assert Calls.events.count("Answerer load") == 2
    assert len(Calls.requests) == 2 * N
