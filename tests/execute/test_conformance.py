"""The conformance suite: a correct backend passes, and each broken one fails the check for its defect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mill.api.request import Request
from mill.api.response import Response
from mill.cli.main import run
from mill.execute.conformance import conform
from mill.models.hf import TransformersModel


def tiny(folder: Path, kind: type[TransformersModel] = TransformersModel) -> TransformersModel:
    return kind(str(folder), dtype="float32", device_map="cpu", max_context_length=128)


def failed(model: TransformersModel, **more: Any) -> set[str]:
    return {result.check for result in conform(model, **more) if result.outcome == "fail"}


def test_the_hf_backend_passes(tiny_model: Path) -> None:
    results = conform(tiny(tiny_model), reference=tiny(tiny_model), tolerance=1e-4)
    assert [result for result in results if result.outcome == "fail"] == []
    assert sum(result.outcome == "pass" for result in results) >= 14


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
        return [Response(score=answer.score, is_greedy=True) for answer in super().loglikelihood(requests)]


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
    ("kind", "check"),
    [
        (Shuffled, "answers belong to their prompts"),
        (IgnoresStops, "stop strings"),
        (IgnoresLimits, "token limit"),
        (NeverSamples, "draws differ"),
        (Nameless, "identity"),
        (AlwaysGreedy, "greedy flag"),
        (IgnoresContext, "log-probabilities add up"),
    ],
)
def test_a_broken_backend_fails_the_check_for_its_defect(
    tiny_model: Path, kind: type[TransformersModel], check: str
) -> None:
    results = {result.check: result for result in conform(tiny(tiny_model, kind))}
    if results[check].outcome == "skip":
        pytest.skip(f"the output of the random model does not allow the check: {results[check].detail}")
    assert results[check].outcome == "fail"


class ReportsNoCounts(TransformersModel):
    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        return [Response(text=full.text, error=full.error) for full in super().generate_until(requests)]


class ReportsNoCountsAndIgnoresLimits(ReportsNoCounts):
    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        return [Response(text="once upon a time there was a king") for _ in requests]


@pytest.mark.parametrize(("kind", "outcome"), [(ReportsNoCounts, "skip"), (ReportsNoCountsAndIgnoresLimits, "fail")])
def test_the_token_limit_without_counts_is_skipped_or_failed(
    tiny_model: Path, kind: type[TransformersModel], outcome: str
) -> None:
    (result,) = (result for result in conform(tiny(tiny_model, kind)) if result.check == "token limit")
    assert result.outcome == outcome and "None" not in result.detail


def test_other_weights_fail_the_comparison_with_the_reference(tiny_model: Path, tiny_model_without_bos: Path) -> None:
    assert "log-likelihoods of the reference" in failed(tiny(tiny_model), reference=tiny(tiny_model_without_bos))


def test_the_command_prints_a_table_and_exits_with_0(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", f"hf[path={tiny_model},dtype=float32,device_map=cpu,max_context_length=128]"]) == 0
    out = capsys.readouterr().out
    assert "over-long prompt" in out and " 0 failed" in out
