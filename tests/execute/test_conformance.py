"""A correct backend passes the conformance checks, and each kind of broken backend fails the check that is meant for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mill.api.model import StreamContext
from mill.api.request import Request
from mill.api.response import Response
from mill.api.tools import ToolCall
from mill.execute.conformance import CHECKS, conform
from mill.models.hf.model import TransformersModel

NOT_FOR_TEXT_MODELS = {"answer begun in the prompt", "image labels"}


def tiny(folder: Path, kind: type[TransformersModel] = TransformersModel) -> TransformersModel:
    return kind(str(folder), dtype="float32", device_map="cpu", max_context_length=128)


def checks_by_outcome(model: TransformersModel, **options: Any) -> dict[str, set[str]]:
    """The names of the checks that passed, failed and were skipped."""
    outcomes: dict[str, set[str]] = {"pass": set(), "fail": set(), "skip": set()}
    for result in conform(model, **options):
        outcomes[result.outcome].add(result.check)
    return outcomes


def test_the_hf_backend_passes(tiny_model: Path) -> None:
    outcomes = checks_by_outcome(tiny(tiny_model), reference=tiny(tiny_model), tolerance=1e-4)
    assert (outcomes["fail"], outcomes["skip"]) == (set(), NOT_FOR_TEXT_MODELS)
    all_checks = {"log-likelihoods of the reference", *(name for name, _ in CHECKS)}
    assert outcomes["pass"] == all_checks - NOT_FOR_TEXT_MODELS


class Shuffled(TransformersModel):
    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        return super().generate_until(requests)[::-1]


class IgnoresStops(TransformersModel):
    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        free = [Request(r.kind, r.context, options={**r.options, "until": ()}, draw=r.draw) for r in requests]
        return super().generate_until(free)


class IgnoresLimits(TransformersModel):
    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        long = [Request(r.kind, r.context, options={**r.options, "max_gen_toks": 40}, draw=r.draw) for r in requests]
        return super().generate_until(long)


class AlwaysGreedy(TransformersModel):
    def loglikelihood(self, requests: Sequence[Request]) -> list[Response]:
        return [Response(score=found.score, is_greedy=True) for found in super().loglikelihood(requests)]


class IgnoresContext(TransformersModel):
    def loglikelihood(self, requests: Sequence[Request]) -> list[Response]:
        bare = [Request(r.kind, "A", r.continuation) for r in requests]
        return super().loglikelihood(bare)


class NeverSamples(TransformersModel):
    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        greedy = [Request(r.kind, r.context, options={**r.options, "temperature": 0.0}) for r in requests]
        return super().generate_until(greedy)


class Nameless(TransformersModel):
    @property
    def model_name(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (Shuffled, {"answers belong to their prompts"}),
        (IgnoresStops, {"stop strings"}),
        (IgnoresLimits, {"token limit", "greedy flag"}),
        (NeverSamples, {"draws differ"}),
        (Nameless, {"identity"}),
        (AlwaysGreedy, {"greedy flag"}),
        (IgnoresContext, {"log-probabilities add up", "greedy flag", "document"}),
    ],
)
def test_a_broken_backend_fails_the_checks_that_its_fault_breaks_and_no_others(
    tiny_model: Path, kind: type[TransformersModel], failed: set[str]
) -> None:
    outcomes = checks_by_outcome(tiny(tiny_model, kind))
    assert (outcomes["fail"], outcomes["skip"]) == (failed, NOT_FOR_TEXT_MODELS)


class CallingModel(TransformersModel):
    """Calls the tool; where it is `broken` the text of the call is not that of its arguments."""

    broken = False

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Any:
        for request, response in super().stream_responses(kind, requests, context):
            call = ToolCall("add", {"a": 2}, text='{"a": 3}' if self.broken else "")
            yield request, replace(response, tool_calls=(call,)) if request.tools else response


class BrokenCalls(CallingModel):
    broken = True


@pytest.mark.parametrize(("kind", "outcome"), [(CallingModel, "pass"), (BrokenCalls, "fail")])
def test_calls_of_tools_are_recorded_whole(tiny_model: Path, kind: type[TransformersModel], outcome: str) -> None:
    (result,) = (result for result in conform(tiny(tiny_model, kind)) if result.check == "tools")
    assert result.outcome == outcome, result.detail
