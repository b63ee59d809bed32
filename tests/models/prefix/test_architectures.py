"""Causal architectures of transformers that can be built tiny: where rows share prefixes, scores are those of each row by
itself. `make zoo` tests all of them in every dtype; a dozen stand for them in `make test`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mill.models.prefix.paths import MOST, rounded_otherwise
from mill.models.prefix.proof import sharing_obstacle
from mill.models.prefix.scoring import Budget, NotShared, PrefixScorer, score_rows
from mill.models.tokens.rows import Row, Span

pytestmark = pytest.mark.slow

LARGEST = 5_000_000  # parameters
SIZES: dict[str, Any] = {
    **{"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "initializer_range": 0.1},
    **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1, "sliding_window": 64, "hidden_dropout_prob": 0.0},
    **{"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "ffn_dim": 48, "word_embed_proj_dim": 32, "d_model": 32},
    **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "shared_intermediate_size": 48},
    **{
        "num_local_experts": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "n_routed_experts": 4,
        "moe_intermediate_size": 32,
    },
    **{"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "shared_expert_intermediate_size": 32},
    **{"moe_num_experts": 4, "moe_k": 2, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 16},
    **{"ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "conv_kernel": 4, "chunk_size": 16, "n_groups": 1},
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"lru_width": 32, "attention_window_size": 64, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128},
    **{"num_kv_shared_layers": 0},
}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
RECURRENT = {
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "nemotron_h", "bamba", "jamba"),
    *("minimax", "olmo_hybrid", "zamba", "zamba2", "recurrent_gemma", "zaya", "bailing_hybrid"),
}
ENCODERS = {"bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "roc_bert", "data2vec-text"}


def tiny(family: str, dtype: str) -> Any:
    """A random model."""
    base = AutoConfig.for_model(family)
    if base.get_text_config() is not base:
        pytest.skip("a language model inside of another")
    sizes = {**SIZES, **(LATENT | {"num_key_value_heads": 4} if hasattr(base, "kv_lora_rank") else {})}
    if hasattr(base, "kv_lora_rank"):
        del sizes["head_dim"]
    given = {name: size for name, size in sizes.items() if hasattr(base, name)}
    given = {name: size for name, size in given.items() if not isinstance(getattr(base, name), (list, dict))}
    config = AutoConfig.for_model(family, **given)
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    if parameters > LARGEST:
        pytest.skip("its other parts are large")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype)).eval()


def rows() -> list[Row]:
    """Longer than those of the proof, with other tokens."""
    draw = random.Random(1)
    words = [draw.randrange(2, 128) for _ in range(12)]
    shared = draw.choices(words, k=24)
    texts = [[*shared, *draw.choices(words, k=length)] for length in (3, 7, 12)] + [draw.choices(words, k=20)]
    return [Row(text[:-1], [Span(len(text) - 4, text[-3:])], []) for text in texts]


def totals(outcomes: list[Any]) -> list[float]:
    assert not any(isinstance(one, NotShared) for one in outcomes), outcomes
    return [one[0].score for one in outcomes]


TESTED = ("gpt_oss", "olmoe", "gptj", "glm4", "cohere2", "bert")
TESTED_RECURRENT = ("qwen3_next", "bamba", "nemotron_h", "jamba", "recurrent_gemma", "minimax")
KNOWN = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {"kimi_linear"})  # it takes minutes on a CPU
DTYPES = ("float32", "float16", "bfloat16")  # rounding hides the most in the last one


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, "bfloat16") for family in TESTED + TESTED_RECURRENT),
        *(pytest.param(family, dtype, marks=pytest.mark.zoo) for family in KNOWN for dtype in DTYPES),
    ],
)
def test_shared_prefixes_change_no_score(family: str, dtype: str) -> None:
    try:
        model = tiny(family, dtype)
    except Exception as error:  # sizes that do not fit each other, or a package that is missing
        pytest.skip(f"cannot be built tiny: {type(error).__name__}")
    obstacle = sharing_obstacle(model)
    assert obstacle or family not in RECURRENT | ENCODERS
    if obstacle:
        return
    found = rows()
    outcomes = dict(PrefixScorer(model, Budget(1 << 20, 1 << 20)).run(found))
    packed, alone = totals([outcomes[row] for row in found]), totals([score_rows(model, [row])[0] for row in found])
    with rounded_otherwise(model):
        draws = [totals([score_rows(model, [row])[0] for row in found]) for _ in range(8)]
    noise = max(abs(one - other) for draw in draws for one, other in zip(draw, alone, strict=True))
    assert max(abs(one - other) for one, other in zip(packed, alone, strict=True)) <= MOST * noise
