"""Scoring rows that begin alike: each distinct prefix is computed once, and logits only where something is scored."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mill.api.batching import is_out_of_memory
from mill.api.response import Response
from mill.api.warnings import warn
from mill.models.prefix.packed_attention import Pack, Unsupported, attending
from mill.models.prefix.padded_scoring import score_rows
from mill.models.prefix.trie import Segment, Trie, make_trie
from mill.models.tokens.rows import Row, Span, span_response
from mill.models.tokens.scores import token_scores

_CHANGING_ROPE = ("dynamic", "longrope")  # rotation that depends on the longest row of a batch
PROBE_TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}  # nats a token


@dataclass(frozen=True)
class Budget:
    """How many tokens, and how many rows of logits, one forward pass may have."""

    tokens: int
    logit_rows: int

    def half(self) -> Budget:
        return Budget(max(1, self.tokens // 2), max(1, self.logit_rows // 2))


@dataclass(frozen=True, slots=True)
class _Need:
    """A token of a row's span, predicted at a place in a segment."""

    offset: int
    token: int
    row: int
    span: int


class _Work:
    """Rows as a trie: what is predicted in each segment, the sums so far, and which rows end where."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.trie = rows, make_trie([row.ids for row in rows])
        self.needs = _needs(self.trie, rows)
        self.sums = [[(0.0, True)] * len(row.spans) for row in rows]
        self.ending: dict[Segment, list[int]] = {}
        for place, segment in enumerate(self.trie.ends):
            self.ending.setdefault(segment, []).append(place)

    def take(self, at: int, budget: Budget) -> list[Segment]:
        """The next segments that fit one forward pass; at least one."""
        taken: list[Segment] = []
        tokens = logit_rows = 0
        for segment in self.trie.segments[at:]:
            tokens += len(segment.tokens)
            logit_rows += len({need.offset for need in self.needs.get(segment, ())})
            if taken and (tokens > budget.tokens or logit_rows > budget.logit_rows):
                break
            taken.append(segment)
        return taken

    def path_after(self, at: int) -> set[Segment]:
        """The segments whose keys those from `at` on will need."""
        return set(self.trie.segments[at].chain[:-1]) if at < len(self.trie.segments) else set()

    def add(self, needs: Sequence[_Need], scores: Sequence[float], likeliest: Sequence[bool]) -> None:
        for need, score, best in zip(needs, scores, likeliest, strict=True):
            total, greedy = self.sums[need.row][need.span]
            self.sums[need.row][need.span] = (total + score, greedy and best)

    def done(self, pack: Sequence[Segment]) -> list[int]:
        """The places of rows that end in these segments."""
        return [place for segment in pack for place in self.ending.get(segment, ())]


class PrefixScorer:
    """Scores rows of one model. A row that cannot be computed so is not yielded: it is left to the caller."""

    def __init__(self, model: Any, budget: Budget, free_memory: Callable[[], None] = lambda: None) -> None:
        self.model, self.budget, self._free_memory = model, budget, free_memory
        self.computed = 0

    def run(self, rows: Sequence[Row]) -> Iterator[tuple[Row, list[Response]]]:
        """Every row with the responses of its spans, as soon as its path is computed."""
        window = shortest_window(self.model.config.get_text_config())
        work = _Work([row for row in rows if window is None or len(row.ids) <= window])
        kept: dict[Segment, list[tuple[Any, Any]]] = {}
        lost: set[Segment | None] = set()  # those that did not fit even alone
        at = 0
        while at < len(work.trie.segments):
            pack, started = work.take(at, self.budget), time.perf_counter()
            if pack[0].parent in lost:  # what follows a segment that did not fit is left with it
                pack = pack[:1]
            path = work.path_after(at + len(pack))
            fits = pack[0].parent not in lost and self._compute(pack, work, kept, path)
            if not fits and len(pack) > 1:
                self.budget = self.budget.half()
                continue
            at += len(pack)
            kept = {segment: found for segment, found in kept.items() if segment in path}
            if not fits:
                lost.update(pack)
                continue
            done = work.done(pack)
            seconds = (time.perf_counter() - started) / max(1, sum(len(work.rows[place].requests) for place in done))
            for place in done:
                yield work.rows[place], _responses(work.rows[place], work.sums[place], seconds)

    def _compute(
        self, segments: Sequence[Segment], work: _Work, kept: dict[Segment, list[tuple[Any, Any]]], path: set[Segment]
    ) -> bool:
        """One forward pass, whose scores are added to the sums of their rows; False where memory does not suffice."""
        keep = [segment for segment in segments if segment in path]
        for segment in keep:
            kept.pop(segment, None)  # of a pass that failed half-way
        pack = Pack(segments, kept, keep, window=max(segment.end for segment in segments))
        needs = [need for segment in segments for need in work.needs.get(segment, ())]
        starts = [pack.places[segment][0] for segment in segments for _ in work.needs.get(segment, ())]
        places = [start + need.offset for start, need in zip(starts, needs, strict=True)]
        try:
            scores, likeliest = forward(self.model, pack, places, [need.token for need in needs])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            error.__traceback__ = None  # which holds the failed pass's tensors
            self._free_memory()
            return False
        self.computed += sum(len(segment.tokens) for segment in segments)
        work.add(needs, scores, likeliest)
        return True


def forward(model: Any, pack: Pack, places: Sequence[int], tokens: Sequence[int]) -> tuple[list[float], list[bool]]:
    """Log-probabilities of tokens predicted at these places of a pack, and whether each was the likeliest there."""
    import torch

    device = model.device
    distinct = sorted(set(places)) or [0]
    row = {place: number for number, place in enumerate(distinct)}
    with torch.inference_mode(), attending(model, pack):
        logits = model(
            input_ids=torch.tensor([pack.ids], device=device),
            position_ids=torch.tensor([pack.positions], device=device),
            logits_to_keep=torch.tensor(distinct, device=device),
            use_cache=False,
        ).logits[0]
        return token_scores(logits, torch.tensor([row[place] for place in places]), torch.tensor(list(tokens)))


def _needs(trie: Trie, rows: Sequence[Row]) -> dict[Segment, list[_Need]]:
    """For each segment what is predicted inside it; a span may reach over several."""
    found: dict[Segment, list[_Need]] = {}
    for number, (row, end) in enumerate(zip(rows, trie.ends, strict=True)):
        for which, span in enumerate(row.spans):
            last = span.start + len(span.tokens)
            segment: Segment | None = end
            while segment is not None and segment.end > span.start:
                for depth in range(max(span.start, segment.start), min(last, segment.end)):
                    need = _Need(depth - segment.start, span.tokens[depth - span.start], number, which)
                    found.setdefault(segment, []).append(need)
                segment = segment.parent
    return found


def _responses(row: Row, sums: Sequence[tuple[float, bool]], seconds: float) -> list[Response]:
    return [span_response(row, span, score, greedy, seconds) for span, (score, greedy) in zip(row.spans, sums, strict=True)]


def shortest_window(config: Any) -> int | None:
    """The shortest sliding or chunked window of a model's layers; None where all layers see everything."""
    kinds = set(getattr(config, "layer_types", None) or ())
    windows = []
    if "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True)):
        windows.append(getattr(config, "sliding_window", None))
    if "chunked_attention" in kinds:
        windows.append(getattr(config, "attention_chunk_size", None))
    return min((window for window in windows if window), default=None)


def can_share(model: Any) -> bool:
    """Whether a model's rows can be computed as a trie: by its code, and by trying it on a few tokens."""
    parameters = inspect.signature(model.forward).parameters
    takes = "position_ids" in parameters and "logits_to_keep" in parameters
    interface = getattr(model, "_can_set_attn_implementation", lambda: False)
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    changing = isinstance(rope, dict) and rope.get("rope_type") in _CHANGING_ROPE
    return takes and interface() and not changing and _agrees(model)


def _agrees(model: Any) -> bool:
    """A few rows with a common start through both ways. Layers that carry state from token to token show here."""
    import torch

    vocabulary = int(model.config.get_text_config().vocab_size)
    chance = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocabulary, (48,), generator=chance).tolist()
    texts = [tokens[:20] + tokens[place : place + 9] for place in (20, 29, 38)]
    rows = [Row(text, [Span(4, text[5:])], []) for text in texts]
    try:
        with torch.inference_mode():
            plain = [scores[0].score or 0.0 for scores in score_rows(model, rows)]
            scorer = PrefixScorer(model, Budget(1 << 20, 1 << 20))
            found = {id(row): answers[0].score or 0.0 for row, answers in scorer.run(rows)}
    except (Unsupported, TypeError, ValueError, KeyError, IndexError, RuntimeError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        return False
    length = len(rows[0].ids) - 5
    tolerance = PROBE_TOLERANCE.get(str(next(model.parameters()).dtype).removeprefix("torch."), 0.3)
    far = [abs(found.get(id(row), float("inf")) - score) / length for row, score in zip(rows, plain, strict=True)]
    scale = max(1.0, max(abs(score) for score in plain) / length / 6)  # unlikely tokens are rounded by more
    if max(far) > tolerance * scale:
        warn("this model's layers carry state past the shared start of rows: every row is computed by itself")
        return False
    return True
