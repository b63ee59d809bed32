"""The conformance suite finds what it is there for: a good backend passes, and each kind of bad one fails by name."""

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
    return {verdict.check for verdict in conform(model, **more) if verdict.outcome == "fail"}


def test_the_hf_backend_passes(tiny_model: Path) -> None:
    verdicts = conform(tiny(tiny_model), reference=tiny(tiny_model), tolerance=1e-4)
    assert [verdict for verdict in verdicts if verdict.outcome == "fail"] == []
    assert sum(verdict.outcome == "pass" for verdict in verdicts) >= 14


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
def test_a_backend_that_breaks_the_contract_fails_by_name(
    tiny_model: Path, kind: type[TransformersModel], check: str
) -> None:
    verdicts = {verdict.check: verdict for verdict in conform(tiny(tiny_model, kind))}
    if verdicts[check].outcome == "skip":
        pytest.skip(f"the random model's own words: {verdicts[check].detail}")
    assert verdicts[check].outcome == "fail"


class TellsNoCounts(TransformersModel):
    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        return [Response(text=one.text, error=one.error) for one in super().generate_until(requests)]


class TellsNoCountsAndIgnoresLimits(TellsNoCounts):
    def generate_until(self, requests: Sequence[Request]) -> list[Response]:
        return [Response(text="once upon a time there was a king") for _ in requests]


@pytest.mark.parametrize(("kind", "outcome"), [(TellsNoCounts, "skip"), (TellsNoCountsAndIgnoresLimits, "fail")])
def test_a_token_limit_that_nobody_counted_is_not_kept(
    tiny_model: Path, kind: type[TransformersModel], outcome: str
) -> None:
    (verdict,) = (one for one in conform(tiny(tiny_model, kind)) if one.check == "token limit")
    assert verdict.outcome == outcome and "None" not in verdict.detail


def test_other_weights_are_told_from_the_reference(tiny_model: Path, tiny_model_without_bos: Path) -> None:
    assert "log-likelihoods of the reference" in failed(tiny(tiny_model), reference=tiny(tiny_model_without_bos))


def test_the_command_prints_a_table_and_its_exit_code_tells(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", f"hf[path={tiny_model},dtype=float32,device_map=cpu,max_context_length=128]"]) == 0
    out = capsys.readouterr().out
    assert "over-long prompt" in out and " 0 failed" in out
