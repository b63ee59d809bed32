"""Whether a model's rows may be computed together: proved on a few tokens before the first request.

Packed rows share one forward pass, so attention, whose masked terms are exact zeros, must be all that moves information
between tokens. No tolerance is chosen:

* plain: the logits are those of each row by itself, up to rounding, which is measured (paths.py). So are they in another
  order, and where the rows are split into two passes.
* blind: with the output of every attention set to zero, no other token changes a token's logits.
* beside: other tokens in the other rows, and later tokens of the same row, change nothing.
* later: by the plain path, too, later tokens change nothing.

Nothing is exactly that: shapes are equal, so rounding is. Only layers that compute tokens in groups, such as routed experts,
round a token by its group. There a difference must be within rounding, and the gradient of a token's logits with respect to
the other tokens zero.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from mill.api.batching import is_out_of_memory
from mill.models.prefix.attention import Pack, attending
from mill.models.prefix.paths import DRAWS, MORE, exceeds, rounded_otherwise
from mill.models.prefix.scoring import OUT_OF_MEMORY
from mill.models.prefix.trie import PackLayout, Segment, SegmentCache, Trie, Unsupported
from mill.models.tokens.scores import on_device
from mill.support.terminal import describe

if TYPE_CHECKING:
    import torch

    Forward = Callable[[torch.Tensor], torch.Tensor]  # from tokens to logits of (tokens, vocabulary)

_CHANGING_ROPE = ("dynamic", "longrope")  # rotation that depends on the longest row of a batch
STATE = "its layers move information between tokens without attention"
BESIDE = "a row's result depends on the rows beside it"
RANDOM = "it gives other results each time"
LATER = "its tokens see what follows them"
DIFFERS = "its results with shared prefixes are not those of each row by itself"
PADDING = "its tokens see padding before them"
PAD = 4
ROW, WORDS = 10, 7  # tokens of a row, and different ones in all rows


def sharing_obstacle(model: Any) -> str:
    """Why a model's rows cannot share prefixes; empty if they can."""
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
    try:
        return _disproof(model)
    except Unsupported as error:
        return str(error)
    except Exception as error:
        return OUT_OF_MEMORY if is_out_of_memory(error) else f"a pass with shared prefixes failed: {describe(error)}"


def _disproof(model: Any) -> str:
    """Which proof fails; empty if all hold."""
    import torch

    vocabulary = int(model.config.get_text_config().vocab_size)
    pack = _ProofPack(model, _trie(vocabulary))
    rows = _tokens(pack.trie)
    blind = partial(pack.logits, plan=_Blind)
    with torch.inference_mode():
        alone = [_plain(model, [row])[0] for row in rows]
        noise = _Noise(model, rows, alone)
        again = _distances(_plain(model, [rows[0]])[0], alone[0])
        if median(again) > median(noise.distances) / 2:  # the noise is mostly the model's own
            return RANDOM
        together = pack.logits(pack.ids)
        proofs: list[tuple[str, Forward, torch.Tensor, list[list[int]]]] = [
            (LATER, partial(_plain_row, model), torch.tensor(rows[-1]), [list(range(ROW // 2))]),
            (STATE, blind, pack.ids, pack.edges()),
            (BESIDE, pack.logits, pack.ids, pack.beside()),
        ]
        unchanged = [alone[-1], blind(pack.ids), together]
        inexact = []
        for (reason, forward, ids, same), logits in zip(proofs, unchanged, strict=True):
            moved = _changes(forward, ids, logits, same, vocabulary)
            if any(moved):
                inexact.append(reason)
                if not noise.explains(moved):
                    return reason
        reverse = _ProofPack(model, _trie(vocabulary, reverse=True))
        for found in (pack.by_row(together), reverse.by_row(reverse.logits(reverse.ids)), pack.by_row(pack.split_logits())):
            if not noise.explains(_distances(torch.cat(found), torch.cat(alone))):
                return DIFFERS
    if LATER in inexact and _has_gradient(model, *proofs[0][1:]):
        return LATER
    if inexact and _has_gradient(model, partial(blind, fused=False), *proofs[1][2:]):
        return STATE
    return ""


def padding_obstacle(model: Any) -> str:
    """Why rows must not be padded; empty if they may be."""
    import torch

    vocabulary = int(model.config.get_text_config().vocab_size)
    row = _tokens(_trie(vocabulary))[-1]
    forward, ids = partial(_plain_row, model), torch.tensor(row)
    try:
        with torch.inference_mode():
            logits = forward(ids)
            noise = _Noise(model, [row], [logits])
            moved = _changes(forward, ids, logits, [list(range(ROW // 2))], vocabulary)
            sees_later = any(moved) and not noise.explains(moved)
            if not sees_later and not noise.explains(_padded_on_the_left(model, row)):
                return f"{PADDING}, so rows are not padded: each is computed by itself"
    except Exception:  # requests will meet it, and say so
        return ""
    return f"{LATER}, so rows are not padded: each is computed by itself" if sees_later else ""


def _padded_on_the_left(model: Any, row: list[int]) -> list[float]:
    """How far logits move where padding is before the row, as in batches of texts that are generated."""
    import torch

    ids = torch.tensor([[*[0] * PAD, *row]], device=model.device)
    mask = torch.ones_like(ids)
    mask[:, :PAD] = 0
    arguments: dict[str, Any] = {"attention_mask": mask}
    if "position_ids" in inspect.signature(model.forward).parameters:
        arguments["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=ids, use_cache=False, **arguments).logits[0, PAD:].float()
    return _distances(logits, _plain(model, [row])[0])


def token_noise(model: Any) -> float:
    """How far rounding moves the log-probabilities of a token: for most tokens at most."""
    import torch

    rows = _tokens(_trie(int(model.config.get_text_config().vocab_size)))
    with torch.inference_mode():
        return max(_Noise(model, rows, _plain(model, rows)).distances)


class _Noise:
    """How far the logits of each token of rows move when they are rounded otherwise."""

    def __init__(self, model: Any, rows: Sequence[Sequence[int]], alone: Iterable[torch.Tensor]) -> None:
        self._model, self._rows, self._alone = model, rows, alone
        self.distances = self._draw()

    def explains(self, differences: Sequence[float]) -> bool:
        """Where a router is undecided only some roundings show it."""
        for _ in range(MORE):
            if not exceeds(differences, self.distances):
                return True
            self.distances += self._draw()
        return not exceeds(differences, self.distances)

    def _draw(self) -> list[float]:
        import torch

        with rounded_otherwise(self._model):
            copies = _plain(self._model, [*self._rows] * DRAWS)
        return _distances(copies.flatten(0, 1), torch.cat([*self._alone] * DRAWS))


def _trie(vocabulary: int, *, reverse: bool = False) -> Trie:
    """Four rows of ROW tokens, so that copies need no padding: two share seven of them, three share four. Tokens repeat, so
    that context matters."""
    choice = random.Random(0)
    words = [choice.randrange(vocabulary) for _ in range(WORDS)]

    def segment(tokens: int, parent: Segment | None = None) -> Segment:
        start, level = (parent.end, parent.level + 1) if parent is not None else (0, 0)
        return Segment([choice.choice(words) for _ in range(tokens)], start, parent, level)

    first = segment(4)
    second = segment(3, first)
    ends = [segment(ROW - 7, second), segment(ROW - 7, second), segment(ROW - 4, first), segment(ROW)]
    if reverse:
        return Trie([ends[3], first, ends[2], second, ends[1], ends[0]], ends)
    return Trie([first, second, *ends], ends)


def _tokens(trie: Trie) -> list[list[int]]:
    return [[token for segment in end.chain for token in segment.tokens] for end in trie.ends]


def _plain(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    import torch

    logits: torch.Tensor = model(input_ids=torch.tensor(rows, device=model.device), use_cache=False).logits
    return logits.float()


def _plain_row(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return _plain(model, [ids.tolist()])[0]


def _distances(some: torch.Tensor, others: torch.Tensor) -> list[float]:
    """How far log-probabilities of (tokens, vocabulary) are from others: for each token, over the whole vocabulary."""
    one, other = some.log_softmax(dim=-1), others.log_softmax(dim=-1)
    equal = one == other  # also where tokens that do not exist have minus infinity
    distances: list[float] = (one - other).masked_fill(equal, 0).square().mean(dim=-1).sqrt().tolist()
    return distances


class _Blind(PackLayout):
    """Attention that sees nothing."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        return q.new_zeros(*q.shape[:2], v.shape[2])


class _ProofPack:
    """Rows in one pass. Logits are those at every token, of (tokens, vocabulary)."""

    def __init__(self, model: Any, trie: Trie) -> None:
        self.model, self.trie = model, trie
        layout = self._plan(Pack, self.trie.segments, {})
        self.bounds, self.ids = layout.bounds, layout.ids

    def _plan(self, kind: type[PackLayout], segments: Sequence[Segment], cache: SegmentCache) -> PackLayout:
        return kind(segments, cache, segments, window=ROW)

    def logits(self, ids: torch.Tensor, plan: type[PackLayout] = Pack, *, fused: bool = True) -> torch.Tensor:
        """With these tokens at the same indices."""
        return self._forward(self._plan(plan, self.trie.segments, {}), ids, fused=fused)

    def split_logits(self) -> torch.Tensor:
        """In two passes, the second of which has the keys and values of the first."""
        import torch

        cache: SegmentCache = {}
        logits: dict[Segment, torch.Tensor] = {}
        for segments in (self.trie.segments[:2], self.trie.segments[2:]):
            plan = self._plan(Pack, segments, cache)
            found = self._forward(plan, plan.ids)
            logits |= {segment: found[first:last] for segment, (first, last) in plan.bounds.items()}
        return torch.cat([logits[segment] for segment in self.bounds])

    def _forward(self, plan: PackLayout, ids: torch.Tensor, *, fused: bool = True) -> torch.Tensor:
        ids = on_device(ids[None], self.model.device)
        positions = on_device(plan.positions[None], self.model.device)
        with attending(self.model, plan, fused=fused):
            logits: torch.Tensor = self.model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
        return logits.float()

    def by_row(self, logits: torch.Tensor) -> list[torch.Tensor]:
        return [logits[self._path(end)] for end in self.trie.ends]

    def _path(self, end: Segment) -> list[int]:
        """Where the tokens of a row are in the pack."""
        return [index for segment in end.chain for index in range(*self.bounds[segment])]

    def edges(self) -> list[list[int]]:
        """The first token of each segment, and the last one, whose neighbors are then other tokens."""
        bounds = self.bounds.values()
        return [[first for first, _ in bounds], [last - 1 for _, last in bounds]]

    def beside(self) -> list[list[int]]:
        """Rows without the second half of their own tokens: one beneath two shared segments, and one beneath one."""
        return [self._path(end)[: -(len(end.tokens) // 2)] for end in self.trie.ends[::2]]


def _changes(
    forward: Forward, ids: torch.Tensor, logits: torch.Tensor, same: Iterable[list[int]], vocabulary: int
) -> list[float]:
    """How far the logits at indices whose tokens are the same move when the tokens at all others are changed. Without
    changes the logits of `ids` are `logits`."""
    import torch

    changes: list[float] = []
    for indices in same:
        others = (ids + 1 + torch.arange(len(ids))) % vocabulary
        others[indices] = ids[indices]
        found = forward(others)
        equal = bool((found[indices] == logits[indices]).all())
        changes += [0.0] * len(indices) if equal else _distances(found[indices], logits[indices])
    return changes


def _has_gradient(model: Any, forward: Forward, ids: torch.Tensor, same: Iterable[list[int]]) -> bool:
    """Whether logits at indices whose tokens are the same have a gradient with respect to the tokens at others."""
    import torch

    embedded: list[torch.Tensor] = []

    def detach(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    hook = model.get_input_embeddings().register_forward_hook(detach)
    try:
        with torch.enable_grad():
            logits = forward(ids)
            for indices in same:
                weights = torch.randn(logits[indices].shape, device=logits.device)
                (gradient,) = torch.autograd.grad((logits[indices] * weights).sum(), embedded, retain_graph=True)
                others = gradient[0].clone()
                others[indices] = 0
                if bool((others != 0).any()):
                    return True
    finally:
        hook.remove()
    return False
