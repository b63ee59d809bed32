"""Tiny models with weights that mean something: trained for seconds on associative recall, of which random weights know
nothing. A text is a few facts, each a token for a key and its value, then keys with their values: `k3=v1 k5=v2 k5 v2 k3 v1`.
So every value depends on tokens far before it."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FIRST, KEYS, VALUES = 4, 8, 8  # tokens: special ones, then the facts, the keys, the values
KEY, VALUE = FIRST + KEYS * VALUES, FIRST + KEYS * VALUES + KEYS
VOCABULARY, FACTS, QUESTIONS = VALUE + VALUES, 4, 6
STEPS, BATCH, RATE, LEARNED = 600, 64, 3e-3, 0.05

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "initializer_range": 0.1,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_chunk_size": 16}
DELTA_NET = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
ATTENTION: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}
"""Families whose layers move information between tokens by attention alone."""
HYBRID: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 128,
    },
}
"""Families with recurrent layers, in which the state of one packed row runs into the next."""


def recall(seed: int) -> list[int]:
    """A text of facts and questions with their answers."""
    choice = random.Random(seed)
    values = {key: choice.randrange(VALUES) for key in choice.sample(range(KEYS), FACTS)}
    facts = [FIRST + key * VALUES + value for key, value in values.items()]
    asked = choice.choices(list(values), k=QUESTIONS)
    return facts + [token for key in asked for token in (KEY + key, VALUE + values[key])]


@cache
def trained(family: str) -> Any:
    """In float32; callers that change it make a copy."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**COMMON, **{**ATTENTION, **HYBRID}[family]})
    model = AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for step in range(STEPS):
        ids = torch.tensor([recall(10_000 + step * BATCH + row) for row in range(BATCH)])
        logits = model(input_ids=ids, use_cache=False).logits[:, FACTS::2]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, FACTS + 1 :: 2].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss < LEARNED:
            break
    return model.eval()


def accuracy(model: Any) -> float:
    """How often it recalls a value."""
    ids = torch.tensor([recall(seed) for seed in range(50)])
    with torch.inference_mode():
        found = model(input_ids=ids, use_cache=False).logits[:, FACTS::2].argmax(dim=-1)
    return float((found == ids[:, FACTS + 1 :: 2]).float().mean())


def saved(family: str, config: dict[str, Any], folder: Path, dtype: str) -> Path:
    """A random model with a tokenizer, for runs whose answers need no meaning."""
    from tests.conftest import make_tiny_model

    make_tiny_model(folder, bos=True)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    settings = {**COMMON, **config, "vocab_size": vocabulary, "num_hidden_layers": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder
