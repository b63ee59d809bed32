"""A comparison across engines: transformers and a real llama-server on the same four-bit weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mill.cli.main import run
from tests.engines.prepared import MODEL
from tests.launching import TOY
from tests.servers import free_port, llama_server


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


@pytest.mark.parametrize("backend", ["openai-compat[model=smol,base_url={url}]", "llama-cpp[base_url={url}]"])
def test_a_gate_asks_a_llama_server_again_whose_file_was_replaced(
    demo_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    """By one of the same name, type and size, on the same port."""
    file, port = tmp_path / "smol.gguf", free_port()
    weights = bytearray(demo_weights.read_bytes())
    gate = ["--tasks", "toy_gen", "--task_paths", str(TOY), "--limit", "2", "--max_tokens", "4", "--forced_tokens", "0"]
    gate += ["--fail_on", "match_rate<0.9", "--output", str(tmp_path / "out"), "--quiet", "--no_report"]
    asked = []
    for number in range(3):
        if number != 1:
            weights[-1000:] = bytes([number]) * 1000
            file.write_bytes(weights)
        with llama_server(file, alias="smol", port=port) as url:
            model = backend.format(url=url)
            assert run(["compare", model, f"{model[:-1]},timeout=100]", "--label_a", "a", "--label_b", "b", *gate]) == 0
        manifests = (tmp_path / "out").glob("*/*/manifest.json")
        asked.append(sum(one["computed"] for file in manifests for one in json.loads(file.read_text())["sessions"]))
    assert asked == [2, 4, 6], "once for both sides after each start of the server"
    capsys.readouterr()
    assert run(["gate", str(tmp_path / "out"), "--fail_on", "match_rate<0.9"]) == 0
    assert "answers given" in capsys.readouterr().out
