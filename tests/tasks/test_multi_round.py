"""gsm8k_review: the second round sees the first answer, the dialog ends after two, and both answers are scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mill.api.message import Context, Message
from mill.api.model import MillModel
from mill.api.request import Request
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.execute.executor import Executor, LocalBackend
from mill.execute.sample_state import SampleState, run_samples
from mill.tasks.gsm8k import GSM8KReview

PROMPT = (
    "Solve the problem step by step. End with a line that holds #### and the number alone.\n\n"
    "Question: Tom has 2 bags of 3 nuts. How many nuts?\nAnswer:"
)
REVIEW = "Check every step of your answer. Correct what is wrong, then end again with #### and the number alone."


class Scripted(MillModel):
    """Answers the first round of a dialog with its first text, the second with its second; keeps what it saw."""

    batch_size = 8

    def __init__(self, *answers: str | Response) -> None:
        self.answers = answers
        self.seen: list[Context] = []

    @property
    def model_name(self) -> str:
        return "scripted"

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> Sequence[str | Response]:
        self.seen += [request.context for request in batch]
        rounds = [sum(message.role == "user" for message in request.context) for request in batch]  # type: ignore[union-attr]
        return [self.answers[number - 1] for number in rounds]


class Nowhere:
    """A store that keeps nothing."""

    def get(self, request: Request) -> Response | None:
        return None

    def put(self, request: Request, response: Response) -> Response:
        return response

    def supersede(self) -> None:
        pass


@pytest.fixture
def review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GSM8KReview:
    (tmp_path / "gsm8k").mkdir()
    row = {"question": "Tom has 2 bags of 3 nuts. How many nuts?", "answer": "2 * 3 = <<2*3=6>>6\n#### 6"}
    (tmp_path / "gsm8k" / "test.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("MILL_DATA", str(tmp_path))
    return GSM8KReview("gsm8k_review")


def run(task: GSM8KReview, model: Scripted, settings: RenderSettings | None = None) -> list[list[Response]]:
    """The responses of the only sample: a list for each repeat."""
    jobs = [SampleState.of(task, sample, settings or RenderSettings()) for sample in task.samples()]
    run_samples(Executor(LocalBackend(model), Nowhere(), quiet=True), jobs)
    return jobs[0].repeats()


def test_the_second_round_sees_the_first_answer(review: GSM8KReview) -> None:
    model = Scripted("5\n#### 5", "#### 6")
    run(review, model)
    assert model.seen == [
        (Message("user", PROMPT),),
        (Message("user", PROMPT), Message("assistant", "5\n#### 5"), Message("user", REVIEW)),
    ]


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ("#### 5", "#### 6", {"exact_match_first": 0.0, "exact_match": 1.0, "changed": 1.0}),
        ("#### 6", "#### 5", {"exact_match_first": 1.0, "exact_match": 0.0, "changed": 1.0}),
        ("#### 6", "Yes, it is $6.", {"exact_match_first": 1.0, "exact_match": 1.0, "changed": 0.0}),
        ("#### 5", "I stay with 5", {"exact_match_first": 0.0, "exact_match": 0.0, "changed": 0.0}),
        ("no idea", "#### 6", {"exact_match_first": 0.0, "exact_match": 1.0, "changed": 1.0}),
    ],
)
def test_both_answers_are_scored(review: GSM8KReview, first: str, second: str, values: dict[str, float]) -> None:
    (responses,) = run(review, Scripted(first, second))
    (sample,) = review.samples()
    assert review.score(sample, responses) == values
    assert set(values) == set(review.metrics)


def test_a_system_prompt_opens_both_rounds(review: GSM8KReview) -> None:
    model = Scripted("#### 5", "#### 6")
    run(review, model, RenderSettings(system_prompt="Be brief."))
    assert [context[0] for context in model.seen] == [Message("system", "Be brief.")] * 2
    assert [len(context) for context in model.seen] == [2, 4]


def test_each_repeat_is_a_dialog_of_its_own(review: GSM8KReview) -> None:
    model = Scripted("#### 5", "#### 6")
    found = run(review, model, RenderSettings(repeats=3))
    assert [[response.text for response in repeat] for repeat in found] == [["#### 5", "#### 6"]] * 3
    assert [len(context) for context in model.seen] == [1, 1, 1, 3, 3, 3]


def test_a_failed_first_round_ends_the_dialog_with_its_error(review: GSM8KReview) -> None:
    model = Scripted(Response(error="server gone"), "#### 6")
    (responses,) = run(review, model)
    assert [response.error for response in responses] == ["server gone"]
    assert len(model.seen) == 1
