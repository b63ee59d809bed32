"""Attention over a trie: many rows in one, each token sees its own path and nothing else.

The tokens of several segments lie one after another in a single row without padding. A token attends to the tokens before
it in its segment, and to every segment on its path; the parts are merged by their log-sum-exp, so a prefix is read where it
lies and never copied for the rows that share it. It works inside any model that takes its attention from transformers'
attention interface, since positions are given and keys are those the model has computed.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mill.models.prefix import varlen
from mill.models.prefix.fused_norms import fused_norms
from mill.models.prefix.partial_attention import Part, merge, partial_attention
from mill.models.prefix.trie import Segment

if TYPE_CHECKING:
    import torch

NAME = "mill_tree"
_HARMLESS = {"is_causal", "use_cache", "cache_position", "position_ids", "output_attentions", "sliding_window", "softcap"}


class Unsupported(Exception):
    """The model asks something of its attention that is not known here."""


@dataclass(frozen=True)
class AncestorRange:
    """Neighbouring tokens [start, end) that all see one ancestor: tokens [first, last) of this pack, or a kept segment."""

    start: int
    end: int
    ancestor: Segment
    inside: tuple[int, int] | None


class Plan(ABC):
    """How the attention of one forward pass is computed."""

    window: int = 0
    """The longest row: a layer whose own window is shorter cannot be served."""
    calls: int = 0
    """Attention calls so far in this pass, which tell the layers apart."""

    @abstractmethod
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        """What queries of (heads, tokens, size) see."""


@dataclass
class Pack(Plan):
    """Segments that are computed together, and for each level of the trie which of their tokens see which ancestor.

    They lie in the order of their levels, so that all tokens that see ancestors of a level are one piece.
    `kept` holds keys and values of segments of earlier packs, by their place among the attention calls of a forward pass;
    `keep` are segments of this pack that later ones will need.
    """

    segments: Sequence[Segment]
    kept: dict[Segment, list[tuple[Any, Any]]]
    keep: Sequence[Segment] = ()
    window: int = 0
    places: dict[Segment, tuple[int, int]] = field(default_factory=dict)
    levels: list[list[AncestorRange]] = field(default_factory=list)
    tensors: dict[str, Any] = field(default_factory=dict)
    calls: int = 0

    def __post_init__(self) -> None:
        at = 0
        self.segments = sorted(self.segments, key=lambda segment: segment.level)
        for segment in self.segments:
            self.places[segment] = (at, at + len(segment.tokens))
            at += len(segment.tokens)
        chains = [(segment, segment.chain) for segment in self.segments]
        for level in range(max((segment.level for segment in self.segments), default=0)):
            below = [(segment, chain[level]) for segment, chain in chains if segment.level > level]
            self.levels.append([self._run(ancestor, list(group)) for ancestor, group in groupby(below, key=lambda p: p[1])])

    def _run(self, ancestor: Segment, group: list[tuple[Segment, Segment]]) -> AncestorRange:
        return AncestorRange(self.places[group[0][0]][0], self.places[group[-1][0]][1], ancestor, self.places.get(ancestor))

    @property
    def ids(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def positions(self) -> list[int]:
        return [place for segment in self.segments for place in range(segment.start, segment.end)]

    def key_values(self, run: AncestorRange, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a run's ancestor offers in the current attention call."""
        if run.inside is None:
            return self.kept[run.ancestor][self.calls]
        first, last = run.inside
        return key[:, first:last], value[:, first:last]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        self.remember(k, v)
        if varlen.serves(q, v, softcap):
            return varlen.varlen_attention(self, q, k, v, scale)
        return _looped_attention(self, q, k, v, scale, softcap)

    def remember(self, key: torch.Tensor, value: torch.Tensor) -> None:
        for segment in self.keep:
            first, last = self.places[segment]
            self.kept.setdefault(segment, []).append((key[:, first:last].clone(), value[:, first:last].clone()))


_active = threading.local()


@contextmanager
def attending(model: Any, plan: Plan) -> Iterator[None]:
    """While this lasts, the model's attention is that of the plan."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    _active.plan = plan
    plan.calls = 0
    try:
        with fused_norms(model):
            yield
    finally:
        _active.plan = None
        model.set_attn_implementation(before)


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: (1, heads, tokens, size) in, (1, tokens, heads, size) out."""
    plan: Plan = _active.plan
    odd = [name for name, given in options.items() if given is not None and given is not False and name not in _HARMLESS]
    window = options.get("sliding_window")
    if attention_mask is not None or query.shape[0] != 1 or (window is not None and window < plan.window):
        raise Unsupported("a mask, or a window shorter than the rows")
    if odd:
        raise Unsupported(f"options {', '.join(sorted(odd))}")
    scale = scaling if scaling is not None else float(query.shape[-1]) ** -0.5
    out = plan.attend(query[0], key[0], value[0], scale, options.get("softcap"))
    plan.calls += 1
    return out.transpose(0, 1)[None].contiguous(), None


def _looped_attention(
    pack: Pack, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    """Segment by segment and run by run: each is one call of the device's own attention."""
    import torch

    group = q.shape[0] // k.shape[0]  # the causal kernel wants a key for every head: copied once, not once a segment
    keys, values = (one.repeat_interleave(group, dim=0) if group > 1 else one for one in (k, v))
    own = [
        partial_attention(q[:, first:last], keys[:, first:last], values[:, first:last], scale, causal=True, softcap=softcap)
        for first, last in pack.places.values()
    ]
    out = Part(torch.cat([part.out for part in own], dim=1), torch.cat([part.lse for part in own], dim=1))
    for runs in pack.levels:
        for run in runs:
            seen_keys, seen_values = pack.key_values(run, k, v)
            seen = partial_attention(q[:, run.start : run.end], seen_keys, seen_values, scale, causal=False, softcap=softcap)
            merge(out, seen, slice(run.start, run.end))
    return out.out
