"""A real model read from GGUF: scores that other engines gave for the same weights, and transformers' loss."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from mill.api.message import Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request, generation_options
from mill.models.hf.model import TransformersModel
from mill.models.spec.open import open_model

PASSAGES = Path(__file__).parent.parent.parent / ".demo/data/wikipedia.jsonl"


@pytest.fixture(scope="module")
def smollm2(demo_model: str) -> TransformersModel:
    model = open_model(demo_model)
    assert isinstance(model, TransformersModel)
    return model


def test_scores_match_vllm_and_mlx(smollm2: TransformersModel) -> None:
    requests = [Request(LOGLIKELIHOOD, "The capital of France is", city) for city in (" Paris", " London")]
    paris, london = smollm2.loglikelihood(requests)
    # vLLM and MLX compute -0.258 from these weights in float32.
    assert paris.score == pytest.approx(-0.258, abs=2e-3)
    assert paris.is_greedy and not london.is_greedy
    assert (london.score or 0) < -3


def test_the_perplexity_of_real_text_is_transformers_loss(smollm2: TransformersModel) -> None:
    text = json.loads(PASSAGES.read_text().splitlines()[0])["text"]
    (answer,) = smollm2.loglikelihood_rolling([Request(ROLLING, text)])
    ids = torch.tensor([[smollm2.tokens.prefix, *smollm2.tokens.tokenizer(text)["input_ids"]]])
    with torch.inference_mode():
        loss = float(smollm2.model(ids, labels=ids).loss)
    perplexity = math.exp(-(answer.score or 0) / (ids.shape[1] - 1))
    assert perplexity == pytest.approx(math.exp(loss), abs=1e-5 * math.exp(loss))
    assert 5 < perplexity < 50


def test_a_chat_answer_ends_with_an_end_token(smollm2: TransformersModel) -> None:
    dialog = (Message("user", "What is the capital of France? Answer with one word."),)
    (answer,) = smollm2.generate_until([Request(GENERATE, dialog, options=generation_options(max_gen_toks=24))])
    assert "Paris" in (answer.text or "")
    assert answer.finish_reason == "stop"
    assert "<|im_end|>" not in (answer.text or "")
