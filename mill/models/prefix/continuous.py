"""Generation with rows that come and go: a finished row makes room for the next, and shared beginnings are computed once.

A prompt's tokens but the last go through the trie; the last one is the first step's input, so that prompts which are equal
(the draws of one question) share everything. On a CPU rows also read a shared beginning where it lies; on CUDA it is copied
into each slot, and a step is a recorded graph.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mill.api.response import Response
from mill.models.prefix.graphs import StepGraphs
from mill.models.prefix.packed_attention import attending
from mill.models.prefix.sampling import Sampler, sample_all
from mill.models.prefix.slots import Prefill, Slots, Step
from mill.models.prefix.trie import Segment, make_trie
from mill.models.tokens.tokenizer import Prompt

if TYPE_CHECKING:
    import torch

REFILL = 8  # new rows enter when this share of the slots is free, so that their prompts are computed together


@dataclass(eq=False)
class ActiveSequence:
    """A row on its way. `own` are the segments in its slot, `above` those it reads beside it."""

    prompt: Prompt
    own: list[Segment]
    above: list[Segment]
    chooser: Sampler
    written: list[int] = field(default_factory=list)
    started: float = 0.0

    @property
    def held(self) -> int:
        """How many tokens its slot holds."""
        return sum(len(segment.tokens) for segment in self.own) + len(self.written)

    @property
    def position(self) -> int:
        """The depth of the token that goes in next."""
        return len(self.prompt.ids) - 1 + len(self.written)

    @property
    def last(self) -> int:
        return self.written[-1] if self.written else self.prompt.ids[-1]

    @property
    def room(self) -> int:
        return self.held + self.prompt.max_new_tokens


class ContinuousDecoder:
    """Answers prompts of any options and lengths. `tokens` is how many keys and values fit, `at_once` how many tokens one
    forward pass may have."""

    def __init__(self, model: Any, tokenizer: Any, eos_ids: list[int], *, tokens: int, at_once: int) -> None:
        self.model, self.tokenizer, self.eos_ids = model, tokenizer, eos_ids
        self.tokens, self.at_once = tokens, at_once
        self.copies = model.device.type == "cuda"
        self.kept: dict[Segment, list[tuple[Any, Any]]] = {}
        self.uses: Counter[Segment] = Counter()

    def run(self, prompts: Sequence[Prompt], most: int | None = None) -> Iterator[tuple[Prompt, Response]]:
        """Every prompt with its answer, as soon as it is complete; at most so many rows at once."""
        import torch

        waiting = self._plan(prompts)
        if not waiting:
            return
        capacity = max(row.room for row in waiting)
        count = min(len(waiting), max(1, self.tokens // capacity), most or len(waiting))
        slots = Slots(count, capacity)
        graphs = StepGraphs(self.model, slots) if self.copies else None
        active: list[ActiveSequence] = []
        with torch.inference_mode():
            while waiting or active:
                free = count - len(active)
                if waiting and free and (free >= max(1, count // REFILL) or not active):
                    new = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                    self._fill(new, len(active), slots)
                    active += new
                logits = self._step(active, slots, graphs)
                for place in reversed(self._write(active, logits)):
                    done = active[place]
                    yield done.prompt, self._finish(done)
                    last = active.pop()
                    if last is not done:
                        slots.move(len(active), place, last.held)
                        active[place] = last

    def _plan(self, prompts: Sequence[Prompt]) -> deque[ActiveSequence]:
        """Rows in the order of the trie, so that those who share a beginning are near each other."""
        trie = make_trie([prompt.ids[:-1] for prompt in prompts])
        through = Counter(segment for end in trie.ends for segment in end.chain)
        order = {segment: place for place, segment in enumerate(trie.segments)}
        rows = []
        for prompt, end in zip(prompts, trie.ends, strict=True):
            chain = [segment for segment in end.chain if segment.tokens]
            alone = chain if self.copies else [segment for segment in chain if through[segment] == 1]
            above = [segment for segment in chain if segment not in alone]
            chooser = Sampler(self.tokenizer, prompt, self.eos_ids)
            rows.append((order[end], ActiveSequence(prompt, alone, above, chooser)))
            self.uses.update(chain)
        return deque(row for _, row in sorted(rows, key=lambda pair: pair[0]))

    def _fill(self, rows: Sequence[ActiveSequence], first: int, slots: Slots) -> None:
        """Compute what the new rows need and nobody has computed yet, and put it into their slots."""
        for row in rows:
            row.started = time.perf_counter()
        needed = dict.fromkeys(segment for row in rows for segment in (*row.above, *row.own) if segment not in self.kept)
        places = {id(row): first + number for number, row in enumerate(rows)}
        open_rows = deque(rows)
        packs = _packs(list(needed), self.at_once)
        computed: set[Segment] = set()
        for pack in packs:
            computed.update(pack)
            ready = []
            while open_rows and all(one in computed or one in self.kept for one in open_rows[0].own):
                ready.append(open_rows.popleft())
            self._prefill(pack, [(places[id(row)], row.own) for row in ready], [row.own for row in open_rows], slots)
        for row in open_rows:  # all of it was there already
            for call in range(len(slots.layers)):
                slots.put(call, places[id(row)], (self.kept[segment][call] for segment in row.own))
        for row in rows:
            self._release(row.own)

    def _prefill(
        self, pack: list[Segment], rows: list[tuple[int, list[Segment]]], later: list[list[Segment]], slots: Slots
    ) -> None:
        import torch

        own = Counter(segment for _, segments in rows for segment in segments)
        wanted = {segment for segments in later for segment in segments}
        keep = [one for one in pack if one in wanted or self.uses[one] > own[one]]
        longest = max(segment.end for segment in pack)
        plan = Prefill(pack, self.kept, keep, window=longest, slots=slots, rows=rows)
        with attending(self.model, plan):
            self.model(
                input_ids=torch.tensor([plan.ids], device=self.model.device),
                position_ids=torch.tensor([plan.positions], device=self.model.device),
                logits_to_keep=torch.tensor([0], device=self.model.device),
                use_cache=False,
            )

    def _release(self, segments: Sequence[Segment]) -> None:
        """Let go of what no row needs any more."""
        for segment in segments:
            self.uses[segment] -= 1
            if not self.uses[segment]:
                self.kept.pop(segment, None)

    def _step(self, active: Sequence[ActiveSequence], slots: Slots, graphs: StepGraphs | None) -> torch.Tensor:
        """Logits of the next token of every active row."""
        import torch

        ids, positions = [row.last for row in active], [row.position for row in active]
        lengths = [row.held + 1 for row in active]
        if graphs is not None and graphs.usable:
            return graphs.step(ids, positions, lengths)
        groups: dict[Segment, list[int]] = {}
        for place, row in enumerate(active):
            for segment in row.above:
                groups.setdefault(segment, []).append(place)
        device = self.model.device
        plan = Step(
            slots,
            torch.tensor(lengths, device=device),
            max(lengths),
            window=max(positions) + 1,
            above=[(self.kept[segment], torch.tensor(rows, device=device)) for segment, rows in groups.items()],
        )
        with attending(self.model, plan):
            out = self.model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                use_cache=False,
            )
        found: torch.Tensor = out.logits[0]
        return found

    def _write(self, active: Sequence[ActiveSequence], logits: torch.Tensor) -> list[int]:
        """Choose each row's next token; returns the places of rows that are complete."""
        seen = [[*row.prompt.ids, *row.written] if row.chooser.steps else [] for row in active]
        chosen = sample_all([row.chooser for row in active], logits[: len(active)], seen)
        done = []
        for place, (row, token) in enumerate(zip(active, chosen, strict=True)):
            row.written.append(token)
            if len(row.written) >= row.prompt.max_new_tokens or row.chooser.ends(row.written):
                done.append(place)
        return done

    def _finish(self, row: ActiveSequence) -> Response:
        self._release(row.above)
        answer = row.chooser.response(row.written)
        return replace(answer, seconds=time.perf_counter() - row.started)


def _packs(segments: list[Segment], at_once: int) -> list[list[Segment]]:
    """Segments in runs of at most so many tokens."""
    found: list[list[Segment]] = []
    size = 0
    for segment in segments:
        if not found or size + len(segment.tokens) > at_once:
            found.append([])
            size = 0
        found[-1].append(segment)
        size += len(segment.tokens)
    return found
