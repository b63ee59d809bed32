"""Scoring rows: packed, where each distinct prefix is computed once, or padded, where each row is computed by itself. Logits
are computed only where tokens are scored."""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mill.api.batching import free_memory, is_out_of_memory
from mill.api.response import Response
from mill.models.prefix.attention import Pack, attending
from mill.models.prefix.trie import Segment, SegmentCache, Trie, make_trie, model_inputs, set_prefixes
from mill.models.tokens.rows import Row, span_response
from mill.models.tokens.scores import TokenScores, on_device, span_scores, token_scores
from mill.support.clocks import FORWARD, TOKENIZING, phase
from mill.support.terminal import TokenCount

if TYPE_CHECKING:
    import torch


def score_rows(model: Any, rows: Sequence[Row]) -> list[list[Response]]:
    """Responses for every span of every row, in one forward pass."""
    logits, first = forward_rows(model, rows)
    return [
        [span_response(row, span, score, greedy) for span, (score, greedy) in zip(row.spans, scores, strict=True)]
        for row, scores in zip(rows, span_scores(logits, rows, first), strict=True)
    ]


def forward_rows(model: Any, rows: Sequence[Row]) -> tuple[torch.Tensor, int]:
    """The logits of every row from the first scored position on, and that position.

    Rows are padded on the right and need no mask: a causal model does not see later tokens.
    """
    import torch

    longest = max(len(row.ids) for row in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
    first = min(span.start for row in rows for span in row.spans)
    keep = longest - first
    with torch.inference_mode():
        arguments: dict[str, Any] = {"use_cache": False}
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            arguments["logits_to_keep"] = keep
        return model(input_ids=ids.to(model.device), **arguments).logits[:, -keep:], first


def score_documents(model: Any, documents: Sequence[Sequence[Row]], budget: int, most: int | None = None) -> list[Response]:
    """The log-likelihood of documents that are split into rows; a batch has at most `budget` tokens, and `most` rows.

    Rows of similar length share batches. When memory runs out, batches are halved; a single row that does not fit raises.
    """
    rows = sorted(
        ((row, owner) for owner, windows in enumerate(documents) for row in windows), key=lambda pair: -len(pair[0].ids)
    )
    totals, tokens, done = [0.0] * len(documents), [0] * len(documents), 0
    while done < len(rows):
        fitting = max(1, budget // len(rows[done][0].ids))
        batch = rows[done : done + min(fitting, most or fitting)]
        try:
            answers = score_rows(model, [row for row, _ in batch])
        except Exception as error:
            if not is_out_of_memory(error) or len(batch) == 1:
                raise
            budget = len(batch) // 2 * len(rows[done][0].ids)
            continue
        done += len(batch)
        for (_, owner), (answer,) in zip(batch, answers, strict=True):
            totals[owner] += answer.score if answer.score is not None else float("nan")
            tokens[owner] += answer.output_tokens or 0
    return [Response(score=total, prompt_tokens=count, output_tokens=0) for total, count in zip(totals, tokens, strict=True)]


OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Budget:
    """The most tokens, and the most positions with logits, of one forward pass."""

    tokens: int
    logit_rows: int

    def half(self) -> Budget:
        return Budget(max(1, self.tokens // 2), max(1, self.logit_rows // 2))


@dataclass(frozen=True)
class NotShared:
    """Why a row or a prompt was not computed with shared prefixes: the caller computes it by itself."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Target:
    """A token to score: of which row and span, and the offset in its segment at which it is predicted."""

    offset: int
    token: int
    row: int
    span: int


@dataclass(frozen=True)
class _Pass:
    """A forward pass, which may be running, or why its segments were not computed."""

    segments: Sequence[Segment]
    targets: Sequence[_Target] = ()
    scores: TokenScores | None = None
    problem: NotShared | None = None


class Work:
    """Rows as a trie: the tokens to score in each segment, the sums so far, and which rows end in which segment."""

    def __init__(self, rows: Sequence[Row], trie: Trie) -> None:
        self.rows, self.trie = rows, trie
        set_prefixes(self.trie.ends, [row.prefix for row in rows])
        self.targets = _targets(self.trie, rows)
        self.sums = [[(0.0, True)] * len(row.spans) for row in rows]
        self.ending: dict[Segment, list[int]] = {}
        for index, segment in enumerate(self.trie.ends):
            self.ending.setdefault(segment, []).append(index)

    def take(self, start: int, budget: Budget) -> list[Segment]:
        """The next segments that fit one forward pass; at least one."""
        taken: list[Segment] = []
        tokens = logit_rows = 0
        for segment in self.trie.segments[start:]:
            tokens += len(segment.tokens)
            logit_rows += len({target.offset for target in self.targets.get(segment, ())})
            if taken and (tokens > budget.tokens or logit_rows > budget.logit_rows):
                break
            taken.append(segment)
        return taken

    def path_to(self, index: int) -> set[Segment]:
        """The segments above this one: their keys and values are needed from here on."""
        return set(self.trie.segments[index].chain[:-1]) if index < len(self.trie.segments) else set()

    def add(self, targets: Sequence[_Target], scores: Sequence[float], greedy: Sequence[bool]) -> None:
        for target, score, is_best in zip(targets, scores, greedy, strict=True):
            total, all_best = self.sums[target.row][target.span]
            self.sums[target.row][target.span] = (total + score, all_best and is_best)

    def finished(self, pack: Sequence[Segment]) -> list[int]:
        """The indices of rows that end in these segments."""
        return [index for segment in pack for index in self.ending.get(segment, ())]

    def responses(self, index: int, seconds: float) -> list[Response]:
        row = self.rows[index]
        sums = zip(row.spans, self.sums[index], strict=True)
        return [span_response(row, span, score, greedy, seconds) for span, (score, greedy) in sums]


class PrefixScorer:
    """Scores rows of one model. A pass that runs out of memory is halved, and a segment that does not fit alone is NotShared
    with all rows through it. Any other failure of a pass is raised."""

    def __init__(self, model: Any, budget: Budget, *, count: TokenCount | None = None) -> None:
        self.model, self.budget = model, budget
        self.count = count if count is not None else TokenCount()
        self._since = 0.0

    def run(self, rows: Sequence[Row], work: Work | None = None) -> Iterator[tuple[Row, list[Response] | NotShared]]:
        """Every row with the responses of its spans, as soon as its path is computed. `work` is made of all rows, if it is
        there."""
        window = shortest_window(self.model.config.get_text_config())
        fitting = []
        for row in rows:
            if window is None or len(row.ids) < window:
                fitting.append(row)
            else:
                yield row, too_long(window)
        with phase(TOKENIZING):
            if work is None or len(fitting) < len(rows):
                work = Work(fitting, make_trie([row.ids for row in fitting]))
        cache: SegmentCache = {}
        dropped: dict[Segment | None, NotShared] = {}  # segments that were not computed, and why
        done = 0
        waiting: deque[_Pass] = deque()
        ahead = int(self.model.device.type == "cuda")  # CUDA computes a pass while the next one is prepared
        self.count.planned += work.trie.tokens
        self._since = time.perf_counter()
        while done < len(work.trie.segments):
            pack = work.take(done, self.budget)
            if pack[0].parent in dropped:
                pack = pack[:1]
            path = work.path_to(done + len(pack))
            problem = dropped.get(pack[0].parent)
            one = _Pass(pack, problem=problem) if problem is not None else self._launch(pack, work, cache, path)
            if one.problem is not None and len(pack) > 1:
                self.budget = self.budget.half()
                continue
            done += len(pack)
            cache = {segment: layers for segment, layers in cache.items() if segment in path}
            if one.problem is not None:
                dropped[pack[0]] = one.problem
            waiting.append(one)
            while len(waiting) > ahead:
                yield from self._finished(waiting.popleft(), work)
        for one in waiting:
            yield from self._finished(one, work)

    def _launch(self, segments: Sequence[Segment], work: Work, cache: SegmentCache, path: set[Segment]) -> _Pass:
        """One forward pass, on CUDA as far as it can be started without waiting for it."""
        to_cache = [segment for segment in segments if segment in path]
        for segment in to_cache:
            cache.pop(segment, None)  # of a pass that failed half-way
        pack = Pack(segments, cache, to_cache, window=max(segment.end for segment in segments))
        targets = [target for segment in segments for target in work.targets.get(segment, ())]
        starts = [pack.bounds[segment][0] for segment in segments for _ in work.targets.get(segment, ())]
        positions = [start + target.offset for start, target in zip(starts, targets, strict=True)]
        try:
            with phase(FORWARD):
                scores = forward(self.model, pack, positions, [target.token for target in targets])
        except Exception as error:
            return _Pass(segments, problem=self._out_of_memory(error))
        return _Pass(segments, targets, scores)

    def _finished(self, one: _Pass, work: Work) -> list[tuple[Row, list[Response] | NotShared]]:
        """Wait for a pass and add its scores to the sums of their rows; the rows that are complete."""
        problem = one.problem
        if one.scores is not None:
            try:
                with phase(FORWARD):
                    scores, greedy = one.scores.lists()
            except Exception as error:  # what CUDA reports late
                problem = self._out_of_memory(error)
            else:
                self.count.computed += sum(len(segment.tokens) for segment in one.segments)
                work.add(one.targets, scores, greedy)
        finished = work.finished(one.segments)
        now = time.perf_counter()
        seconds = (now - self._since) / max(1, sum(len(work.rows[index].requests) for index in finished))
        self._since = now
        return [(work.rows[index], problem or work.responses(index, seconds)) for index in finished]

    def _out_of_memory(self, error: Exception) -> NotShared:
        """Raises any other error."""
        if not is_out_of_memory(error):
            raise error
        error.__traceback__ = None  # which references the failed pass's tensors
        free_memory()
        return NotShared(OUT_OF_MEMORY)


def forward(model: Any, pack: Pack, positions: Sequence[int], tokens: Sequence[int]) -> TokenScores:
    """Log-probabilities of tokens predicted at these positions of a pack, and whether each is the argmax there. On CUDA the
    pass may still be running."""
    import torch

    distinct = sorted(set(positions)) or [0]
    row = {position: number for number, position in enumerate(distinct)}
    with torch.inference_mode(), attending(model, pack), model_inputs(model, pack) as inputs:
        logits = model(
            **inputs,
            logits_to_keep=on_device(torch.tensor(distinct), model.device),
            use_cache=False,
        ).logits[0]
        return token_scores(logits, torch.tensor([row[position] for position in positions]), torch.tensor(list(tokens)))


def _targets(trie: Trie, rows: Sequence[Row]) -> dict[Segment, list[_Target]]:
    """For each segment the tokens that are predicted inside it; a span may extend over several segments."""
    targets: dict[Segment, list[_Target]] = {}
    for row_index, (row, end) in enumerate(zip(rows, trie.ends, strict=True)):
        for span_index, span in enumerate(row.spans):
            last = span.start + len(span.tokens)
            segment: Segment | None = end
            while segment is not None and segment.end > span.start:
                for depth in range(max(span.start, segment.start), min(last, segment.end)):
                    target = _Target(depth - segment.start, span.tokens[depth - span.start], row_index, span_index)
                    targets.setdefault(segment, []).append(target)
                segment = segment.parent
    return targets


def shortest_window(config: Any) -> int | None:
    """The shortest sliding or chunked window of a model's layers; None if all layers see everything."""
    kinds = set(getattr(config, "layer_types", None) or ())
    windows = []
    if "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True)):
        windows.append(getattr(config, "sliding_window", None))
    if "chunked_attention" in kinds:
        windows.append(getattr(config, "attention_chunk_size", None))
    return min((window for window in windows if window), default=None)


def too_long(window: int) -> NotShared:
    """Models count a window with or without the token that sees it, so rows of exactly its length are too long."""
    return NotShared(f"not shorter than the sliding window of {window} tokens")
