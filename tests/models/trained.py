"""Tiny models with weights that mean something: trained for seconds on associative recall, of which random weights know
nothing. In `k1 v1 k2 v2 ... k1` the next token is v1, so every answer depends on the tokens before it."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

KEYS, VALUES = range(4, 20), range(20, 36)
VOCABULARY, PAIRS = 40, 5
STEPS, BATCH = 600, 64

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
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16}
DELTA_NET = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
MLA = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}

ATTENTION: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 64},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, **EXPERTS},
    "deepseek_v3": {
        **MLA,
        **EXPERTS,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}
"""Families whose layers move information between tokens by attention alone."""
HYBRID: dict[str, dict[str, Any]] = {
    "qwen3_5_text": DELTA_NET,
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 128,
    },
}
"""Families with recurrent layers, in which the state of one packed row runs into the next."""


def recall(seed: int, pairs: int = PAIRS) -> tuple[list[int], int]:
    """Keys and values with a key at the end, and the value that follows."""
    choice = random.Random(seed)
    keys, values = choice.sample(KEYS, pairs), choice.choices(VALUES, k=pairs)
    asked = choice.randrange(pairs)
    return [token for pair in zip(keys, values, strict=True) for token in pair] + [keys[asked]], values[asked]


@cache
def trained(family: str) -> Any:
    """In float32; callers that change it make a copy."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**COMMON, **{**ATTENTION, **HYBRID}[family]})
    model = AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS)
    for step in range(STEPS):
        examples = [recall(10_000 + step * BATCH + row) for row in range(BATCH)]
        logits = model(input_ids=torch.tensor([ids for ids, _ in examples])).logits[:, -1]
        loss = torch.nn.functional.cross_entropy(logits.float(), torch.tensor([value for _, value in examples]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()
