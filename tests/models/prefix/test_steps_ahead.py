"""Decoding with steps launched ahead, as on CUDA: here a step is computed where CUDA would replay its graph."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from mill.api.model import StreamContext
from mill.api.request import GENERATE, Request, generation_options
from mill.models.hf.model import TransformersModel
from mill.models.prefix.continuous import ContinuousDecoder
from mill.models.prefix.slots import StepGraphs

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "yes", "no", "A", "B", "42", "1234"]
SAMPLED: list[dict[str, Any]] = [{"temperature": 1.0, "seed": 3}, {"repetition_penalty": 1.4}, {"logprobs": 2}]


def requests(count: int = 26, *, sampled: bool, equal: bool) -> list[Request]:
    """Of all lengths, with and without a shared prefix, some with stop strings; or all of one length, so that each fills its
    slot."""
    generator, found = random.Random(0), []
    for index in range(count):
        words = ["the", *generator.sample(WORDS[1:5], k=4)] if equal else generator.choices(WORDS, k=1 + index % 20)
        context = (" ".join(WORDS * 2) + " ") * generator.randint(0, 0 if equal else 2) + " ".join(words)
        options: dict[str, Any] = {"max_gen_toks": 9 if equal else generator.randint(1, 15)}
        options |= {"until": ["e", "A", "t", "o", "w"] if index % (2 if equal else 5) == 1 else []}
        options |= SAMPLED[index % 3] if sampled and (equal or index % 7 == 3) else {}
        found.append(Request(GENERATE, context, options=generation_options(**options)))
    return found


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Decoding as on CUDA; the list gets the number of sequences of each step."""
    steps = []

    def step(graphs: StepGraphs, count: int) -> torch.Tensor:
        steps.append(count)
        return graphs._forward(graphs._size)[:count]

    class Copying(ContinuousDecoder):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.copies = True

    monkeypatch.setattr(StepGraphs, "step", step)
    monkeypatch.setattr("mill.models.hf.decoding.ContinuousDecoder", Copying)
    return steps


@pytest.mark.skipif(torch.cuda.is_available(), reason="graphs are captured on CUDA")
@pytest.mark.parametrize(
    ("batch_size", "sampled", "equal"), [(1, True, False), (8, False, True), (8, True, True), (17, True, False)]
)
def test_answers_are_those_of_plain_batches(
    tiny_model: Path, ahead: list[int], batch_size: int, sampled: bool, equal: bool
) -> None:
    alone = TransformersModel(str(tiny_model), dtype="float32", device_map="cpu", exact=True)
    model = TransformersModel(str(tiny_model), dtype="float32", device_map="cpu", batch_size=batch_size)
    several = requests(sampled=sampled, equal=equal)
    found, wanted = model.generate_until(several), alone.generate_until(several)
    assert [(one.text, one.output_tokens) for one in found] == [(one.text, one.output_tokens) for one in wanted]
    assert ahead and max(ahead) <= batch_size


@pytest.mark.skipif(torch.cuda.is_available(), reason="graphs are captured on CUDA")
def test_logits_that_are_not_numbers_are_no_answer(tiny_model: Path, ahead: list[int]) -> None:
    model = TransformersModel(str(tiny_model), dtype="float32", device_map="cpu")
    model.model.get_input_embeddings().weight.data[7] = torch.nan  # of one token
    token = model.tokens.tokenizer.decode([7])
    options = generation_options(max_gen_toks=3)
    (answer,) = model.generate_until([Request(GENERATE, f"the {token}", options=options)])
    assert ahead and "not numbers" in (answer.error or "")


def test_answers_of_earlier_steps_are_given_before_a_failure(
    tiny_model: Path, ahead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TransformersModel(str(tiny_model), dtype="float32", device_map="cpu")
    decoder = model.decoder.continuous(StreamContext())
    prompts = model.tokens.prompts(requests(50, sampled=False, equal=True))
    wanted = {prompt: answer.text for prompt, answer in model.decoder.continuous(StreamContext()).run(prompts, 8)}
    fill, filled = decoder._fill, []

    def fails_later(sequences: Any, slots: Any) -> None:
        filled.extend(sequences)
        if len(filled) > 30:
            raise RuntimeError("a failure of the device")
        fill(sequences, slots)

    monkeypatch.setattr(decoder, "_fill", fails_later)
    found = {}
    with pytest.raises(RuntimeError, match="a failure of the device"):
        for prompt, answer in decoder.run(prompts, 8):
            found[prompt] = answer.text
    assert len(found) >= 16 and all(wanted[prompt] == text for prompt, text in found.items())
