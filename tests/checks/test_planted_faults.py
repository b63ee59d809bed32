"""Faults in engines, each found by its check; the same engine without the fault passes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mill.checks.result import find_checks, read_check
from mill.cli.main import run
from tests.servers import FaultServer

BROKEN = 3
LIMITS = ["--limit", "4", "--max-tokens", "8", "--quiet", "--no-report"]


class Engine:
    """A server that generates with a real model, one request after another, and may have a fault."""

    def __init__(self, folder: Path, fault: str = "") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.fault, self.lock, self.open = fault, threading.Lock(), list[str]()

    def answer(self, _: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path != "/v1/completions" or "echo" in body or "prompt_logprobs" in body:
            return {"choices": []}
        prompt = body["prompt"]
        self.open.append(prompt)  # while another one is answered
        with self.lock:
            others = [other for other in self.open if other != prompt]
            if self.fault == "mixed cache" and others:
                prompt = others[0][: len(others[0]) // 2] + prompt  # the KV cache of another request
            text = self.generate(prompt, body["max_tokens"])
            self.open.remove(body["prompt"])
        return {"choices": [{"text": text, "finish_reason": "length"}], "usage": {"completion_tokens": body["max_tokens"]}}

    def generate(self, prompt: str, count: int) -> str:
        ids = self.tokenizer(prompt, return_tensors="pt")["input_ids"]
        start = ids.shape[1]
        with torch.inference_mode():
            for _ in range(count):
                logits = self.model(ids).logits[0, -1]
                sampled = self.fault == "samples"
                token = torch.multinomial(logits.softmax(0), 1) if sampled else logits.argmax()[None]
                ids = torch.cat([ids, token[None]], dim=1)
        return str(self.tokenizer.decode(ids[0, start:]))


def checked(command: list[str], engine: Engine, folder: Path) -> int:
    with FaultServer(engine.answer) as server:
        address = ["--model", "m", "--backend", "openai-compat", "--base-url", server.url]
        return run([*command, *address, *LIMITS, "--prompts", "determinism", "--output", str(folder)])


def test_stress_catches_caches_that_mix_under_load(tiny_model: Path, tmp_path: Path) -> None:
    command = ["stress", "--concurrency", "1,4", "--fail-on", "match_rate<1"]
    assert checked(command, Engine(tiny_model), tmp_path / "good") == 0
    assert checked(command, Engine(tiny_model, "mixed cache"), tmp_path / "bad") == BROKEN


def test_determinism_catches_a_sampler_that_ignores_temperature_0(tiny_model: Path, tmp_path: Path) -> None:
    command = ["determinism", "--runs", "4", "--fail-on", "identical_rate<1"]
    assert checked(command, Engine(tiny_model), tmp_path / "good") == 0
    assert checked(command, Engine(tiny_model, "samples"), tmp_path / "bad") == BROKEN


def test_determinism_distinguishes_batch_composition_from_noise(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mixed cache is no noise of the engine itself: alone every answer is the same, in a batch it is not."""
    command = ["determinism", "--runs", "8"]
    assert checked(command, Engine(tiny_model, "mixed cache"), tmp_path) == 0
    (file,) = (tmp_path / "checks").glob("determinism-*/check.json")
    variants = json.loads(file.read_text())["variants"]
    rates = {variant["label"]: variant["metrics"]["identical_rate"]["value"] for variant in variants}
    assert rates["alone"] == 1.0 and rates["batched"] < 1.0


# Prompts that the engine truncates.

SHORT = ["--prompts", "reasoning", "--limit", "2", "--max-tokens", "4", "--no_chat", "--quiet", "--no-report"]


@pytest.mark.parametrize(
    "command",
    [["stress", "--concurrency", "1", "--repetitions", "1"], ["determinism", "--runs", "2"]],
    ids=["stress", "determinism"],
)
def test_stress_and_determinism_report_truncated_prompts(
    command: list[str], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"hf[path={tiny_model},dtype=float32,max_context_length=16]"
    assert run([*command, "--model", model, *SHORT, "--output", str(tmp_path)]) == 0
    (file,) = find_checks(tmp_path)
    warning = "2 of 2 prompts of reasoning were truncated on the left to fit the context"
    assert warning in read_check(file).warnings and warning in capsys.readouterr().out


def test_compare_reports_truncated_prompts_of_each_side(tiny_model: Path, tmp_path: Path) -> None:
    models = [f"hf[path={tiny_model},dtype=float32,max_context_length={length}]" for length in (16, 24)]
    assert run(["compare", *models, *SHORT, "--label_a", "a", "--label_b", "b", "--output", str(tmp_path)]) == 0
    (file,) = find_checks(tmp_path)
    check, warning = read_check(file), "2 of 2 prompts of reasoning were truncated on the left to fit the context"
    assert f"a: {warning}" in check.warnings and warning in check.variants[0].warnings
