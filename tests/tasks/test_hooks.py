"""Third-party tasks: what a hook raises or returns wrongly is one line with the task's name, before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mill.api.errors import DataError, MillError
from mill.api.message import Message
from mill.api.request import GENERATE, MULTI_ROUND, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType
from mill.execute.sample_state import SampleState
from mill.store.samples import RunSample, score_sample
from mill.tasks import hooks

SETTINGS = RenderSettings()
SAMPLE = Sample("0", {"question": "q"})
OPTIONS = SETTINGS.options()
ANY: Any = None


class Stop(BaseException):
    """Neither an Exception nor an interruption."""


class Interruption(KeyboardInterrupt):
    pass


class Plain(Task):
    """As a task should be; a test replaces what it is about."""

    task_type = TaskType.GENERATIVE_QA
    metrics = {"exact_match": "mean"}

    def samples(self) -> Any:
        return [SAMPLE]

    def requests(self, sample: Sample, settings: RenderSettings) -> Any:
        return [Request(GENERATE, "q", options=settings.options())]

    def score(self, sample: Sample, responses: Any) -> Any:
        return {"exact_match": 1.0}


def made(**replaced: Any) -> Task:
    found: Task = type("Made", (Plain,), replaced)("made")
    return found


def giving(value: Any) -> Callable[..., Any]:
    return lambda self, *arguments: value


def raising(error: BaseException) -> Callable[..., Any]:
    def hook(self: Task, *arguments: Any) -> Any:
        raise error

    return hook


def sampling(*pairs: tuple[Any, Any]) -> Callable[..., Any]:
    return giving([Sample(*pair) for pair in pairs])


def asking(**fields: Any) -> Callable[..., Any]:
    given = {"kind": GENERATE, "context": "q", "options": OPTIONS, **fields}
    return giving([Request(**given)])


def check(task: Task) -> None:
    hooks.check_attributes(task)
    for sample in hooks.read_samples(task):
        hooks.read_requests(task, sample, SETTINGS)
        hooks.check_sample(task, sample)
    hooks.check_metrics(task)
    hooks.read_warnings(task)


def test_a_task_as_it_should_be_is_taken() -> None:
    check(made())
    check(made(samples=lambda self: (Sample(str(n), {}) for n in range(3)), target=giving({"a": object()})))


UNEQUAL = [Request(GENERATE, "a", options=OPTIONS), Request(GENERATE, "b", options=OPTIONS, repeats=2)]
FAULTY: dict[str, tuple[dict[str, Any], str]] = {
    "samples that raise": ({"samples": raising(ValueError("no"))}, "samples() raised ValueError: no"),
    "a sample that is a mapping": ({"samples": giving([{"id": "0"}])}, "an item of samples() is a dict, not a Sample"),
    "an id that is a number": ({"samples": sampling((0, {}))}, "a sample has the id 0 and the row a dict"),
    "one id twice": ({"samples": giving([SAMPLE, SAMPLE])}, "made has two samples with the id '0'"),
    "no samples": ({"samples": giving([])}, "made has no samples"),
    "a request that is a text": ({"requests": giving(["q"])}, "a request of sample 0 is 'q', not a Request"),
    "no context": ({"requests": asking(context=None)}, "must be a text or a tuple of Messages"),
    "options that JSON cannot hold": ({"requests": asking(options={**OPTIONS, "x": {1}})}, "cannot be written as JSON"),
    "options of another's making": ({"requests": asking(options={"max_gen_toks": 5})}, "lack until, temperature"),
    "other repeats for each request": ({"requests": giving(UNEQUAL)}, "the requests of sample 0 have different repeats"),
    "a decoding option that is none": (
        {"requests": lambda self, sample, settings: settings.options(untill="a")},
        "the task made cannot be rendered: unknown decoding option 'untill'; did you mean until",
    ),
    "a target that cannot be written": ({"target": giving({(1, 2): 3})}, "target() of sample 0, written as JSON, raised"),
    "an unknown metric": ({"metrics": {"a": "meen"}}, "unknown metric 'meen'; did you mean mean"),
    "a kind that is none": ({"kind": "guess"}, "kind is 'guess', not one of generate_until"),
    "a judge that is a text": ({"judge": "org/judge"}, "judge is 'org/judge', not a Judge or None"),
}


@pytest.mark.parametrize(("replaced", "words"), FAULTY.values(), ids=FAULTY)
def test_a_faulty_task_is_refused_in_one_line_with_its_name(replaced: dict[str, Any], words: str) -> None:
    with pytest.raises(MillError) as raised:
        check(made(**replaced))
    text = str(raised.value)
    assert words in text and "made" in text and "\n" not in text and raised.value.exit_code == 2


def test_a_task_without_a_name_is_refused() -> None:
    class Nameless(Plain):
        def __init__(self) -> None:
            pass

    with pytest.raises(DataError, match="Nameless has no name"):
        hooks.check_attributes(Nameless())


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (raising(ValueError("lost the thread")), "next_round() failed: ValueError: lost the thread"),
        (giving("go on"), "not a Request"),
        (giving(Request(MULTI_ROUND, ANY, options=OPTIONS)), "must be a text"),
    ],
)
def test_a_dialog_that_cannot_continue_is_a_failure_of_its_sample_alone(hook: Callable[..., Any], words: str) -> None:
    dialog = (Message("user", "q"),)
    first = {"kind": MULTI_ROUND, "requests": giving([Request(MULTI_ROUND, dialog, options=OPTIONS)]), "next_round": hook}
    job = SampleState.of(made(**first), SAMPLE, SETTINGS)
    job.answers[job.first_request.key] = [Response(text="a")]
    assert not job.advance()
    assert words in (job.repeats()[0][0].error or "")


@pytest.mark.parametrize("error", [Stop("now"), SystemExit(3), GeneratorExit(), ValueError("no")])
def test_what_scoring_or_the_next_round_raises_is_the_error_of_its_sample(error: BaseException) -> None:
    record = RunSample(SAMPLE, None, "q", [], [["k"]], [[Response(text="a")]])
    scored = score_sample(made(score=raising(error)), record)
    assert scored.error is not None and scored.error.startswith(f"scoring failed: {type(error).__name__}")
    scored = score_sample(made(category=raising(error), extracted=raising(error), choice_texts=raising(error)), record)
    assert (scored.error, scored.category, scored.extracted, scored.choices) == (None, "", None, [])
    request = Request(MULTI_ROUND, "q", options=OPTIONS)
    job = SampleState(made(kind=MULTI_ROUND, next_round=raising(error)), SAMPLE, SETTINGS, [], [[request]])
    job.answers[request.key] = [Response(text="a")]
    assert not job.advance()
    assert (job.answers[request.key][0].error or "").startswith(f"next_round() failed: {type(error).__name__}")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interruption()])
def test_an_interruption_is_never_an_error_of_a_sample(error: BaseException) -> None:
    record = RunSample(SAMPLE, None, "q", [], [["k"]], [[Response(text="a")]])
    for hook in ("score", "category", "extracted"):
        with pytest.raises(KeyboardInterrupt):
            score_sample(made(**{hook: raising(error)}), record)
    with pytest.raises(KeyboardInterrupt):
        hooks.read_samples(made(samples=raising(error)))
