"""A comparison across engines: transformers and a real llama-server on the same four-bit weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mill.cli.main import run
from tests.engines.prepared import MODEL


def test_compare_transformers_with_llama_cpp(llama: str, tmp_path: Path) -> None:
    if not (MODEL / "config.json").is_file():
        pytest.skip("the demo model is not converted, which transformers loads in half the time: make engines")
    model = f"hf[path={MODEL},dtype=float32,max_context_length=1024]"
    options = ["--prompts", "determinism", "--limit", "3", "--max-tokens", "8", "--output", str(tmp_path), "--quiet"]
    assert run(["compare", model, f"llama-cpp[base_url={llama}]", *options, "--label-a", "hf", "--label-b", "llama"]) == 0
    (file,) = (tmp_path / "checks").glob("compare-*/check.json")
    (variant,) = json.loads(file.read_text())["variants"]
    metrics, counts = variant["metrics"], variant["counts"]
    assert counts["samples"] == 3 and counts["forced_texts"] == 3 and counts["positions"] >= 20
    # The same weights, but other rounding: not equal, and much closer than another model.
    assert 1e-6 < metrics["kl_mean"]["value"] < 0.1
    assert metrics["top1_agreement"]["value"] > 0.8
    assert abs(metrics["ppl_ratio"]["value"] - 1) < 0.2
    assert any("lower bound" in warning for warning in variant["warnings"])
    assert (file.parent / "report.html").exists()


def test_a_llama_server_returns_the_whole_vocabulary(llama: str) -> None:
    from mill.api.request import ALL, LOGLIKELIHOOD, Request
    from mill.models.spec.open import open_model

    model = open_model(f"llama-cpp[base_url={llama}]")
    model.ready()
    request = Request(LOGLIKELIHOOD, "The capital of France is", " Paris", options={"logprobs": ALL})
    (answer,) = model.loglikelihood([request])
    assert answer.tokens is not None and answer.distribution is not None and answer.score is not None
    (row,), (token,) = answer.distribution, answer.tokens
    assert abs(sum(2.718281828459045 ** float(value) for value in row) - 1) < 1e-3
    assert abs(float(row[token.id]) - answer.score) < 1e-6
