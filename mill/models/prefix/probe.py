"""Whether a model's rows can share prefixes: by its code, and by a probe on a few tokens."""

from __future__ import annotations

import inspect
from typing import Any

from mill.api.batching import is_out_of_memory
from mill.api.response import Response
from mill.models.prefix.pack import Unsupported
from mill.models.prefix.packed_scoring import OUT_OF_MEMORY, Budget, NotShared, PrefixScorer
from mill.models.prefix.padded_scoring import score_rows
from mill.models.tokens.rows import Row, Span

_CHANGING_ROPE = ("dynamic", "longrope")  # rotation that depends on the longest row of a batch
TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}  # nats a token
STATE = "its layers carry state past the shared prefix of rows"


def sharing_obstacle(model: Any) -> str:
    """Why a model's rows cannot share prefixes; empty if they can.

    An exception that says neither Unsupported nor out of memory is a fault, not an obstacle: sharing stays on, and the fault
    becomes the error of the requests that meet it.
    """
    parameters = inspect.signature(model.forward).parameters
    missing = [name for name in ("position_ids", "logits_to_keep") if name not in parameters]
    if missing:
        return f"its forward() takes no {' and no '.join(missing)}"
    if not getattr(model, "_can_set_attn_implementation", lambda: False)():
        return "it does not use transformers' attention interface"
    devices = {str(weight.device) for weight in model.parameters()}
    if len(devices) > 1:
        return f"its weights are on several devices ({', '.join(sorted(devices))})"
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type") in _CHANGING_ROPE:
        return f"its {rope['rope_type']} rope depends on the longest row of a batch"
    return _probe(model)


def _probe(model: Any) -> str:
    """Score a few rows with a shared prefix on both paths and compare. Layers with recurrent state differ here."""
    import torch

    vocabulary = int(model.config.get_text_config().vocab_size)
    tokens = torch.randint(0, vocabulary, (48,), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [tokens[:20] + tokens[start : start + 9] for start in (20, 29, 38)]
    rows = [Row(text, [Span(4, text[5:])], []) for text in texts]
    try:
        with torch.inference_mode():
            padded = [responses[0] for responses in score_rows(model, rows)]
            packed = dict(PrefixScorer(model, Budget(1 << 20, 1 << 20)).run(rows))
    except Unsupported as error:
        return str(error)
    except Exception as error:
        return OUT_OF_MEMORY if is_out_of_memory(error) else ""
    return differs(model, [packed[row] for row in rows], padded)


def differs(model: Any, packed: list[list[Response] | NotShared], padded: list[Response]) -> str:
    """Why scores of both paths are not equal; empty if they are, up to rounding."""
    scores = []
    for outcome in packed:
        if isinstance(outcome, NotShared):
            return outcome.reason
        if outcome[0].score is None:  # a fault of the packed pass, which requests will meet as well
            return ""
        scores.append(outcome[0].score)
    expected = [response.score or 0.0 for response in padded]
    length = padded[0].output_tokens or 1
    tolerance = TOLERANCE.get(str(next(model.parameters()).dtype).removeprefix("torch."), 0.3)
    scale = max(1.0, max(map(abs, expected)) / length / 6)  # unlikely tokens are rounded by more
    error = max(abs(score - want) / length for score, want in zip(scores, expected, strict=True))
    return STATE if error > tolerance * scale else ""
