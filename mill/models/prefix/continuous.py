"""Continuous batching: a finished sequence frees its slot for the next one, and shared prefixes are computed once.

All tokens of a prompt but the last go through the trie. The last one is the input of the first decoding step, so equal
prompts (the draws of one request) share everything. On a CPU sequences read a shared prefix in place; on CUDA it is copied
into each slot, and a step is a CUDA graph.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mill.api.response import Response
from mill.models.prefix.attention import attending
from mill.models.prefix.fused_layers import small_products
from mill.models.prefix.sampling import Sampler, sample_all
from mill.models.prefix.slots import NO_TOKEN, DecodingStep, Prefill, Slots, StepGraphs, StepInput, graph_size
from mill.models.prefix.trie import Segment, SegmentCache, make_trie, model_inputs, set_prefixes
from mill.models.tokens.scores import on_device
from mill.models.tokens.tokenizer import Prompt
from mill.support.clocks import DECODING, FORWARD, phase
from mill.support.terminal import TokenCount

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class ActiveSequence:
    """A sequence in decoding. `own` are the segments in its slot, `shared` those it reads from the segment cache. The slot
    starts at the token `start` and has room for `room`."""

    prompt: Prompt
    own: list[Segment]
    shared: list[Segment]
    sampler: Sampler
    generated: list[int] = field(default_factory=list)
    start: int = 0
    room: int = 0
    started: float = 0.0
    complete: bool = False

    @property
    def length(self) -> int:
        """How many tokens are in its slot."""
        return sum(len(segment.tokens) for segment in self.own) + len(self.generated)

    @property
    def index(self) -> int:
        """How many tokens are before the next input token."""
        return len(self.prompt.ids) - 1 + len(self.generated)

    @property
    def position(self) -> int:
        """The position of the next input token."""
        return self.index + self.prompt.shift

    @property
    def input(self) -> StepInput:
        """A complete sequence may fill its slot, and must not write into the next one."""
        last = self.generated[-1] if self.generated else self.prompt.ids[-1]
        return StepInput(last, self.position, min(self.room, self.length + 1), self.start, self.room)

    @property
    def capacity(self) -> int:
        """How many tokens its slot needs."""
        return self.length + self.prompt.max_new_tokens


REFILL = 8  # new sequences enter when this share of the slots is free, so that their prompts are computed together


@dataclass(frozen=True)
class Step:
    """A step that was launched: `read` gives the token of each of its sequences. `ahead` is how many may be launched before
    it is read."""

    sequences: list[ActiveSequence]
    read: Callable[[], list[int]]
    ahead: int = 0


class ContinuousDecoder:
    """Decodes prompts of any options and lengths. `tokens` is the capacity of the KV cache, `pass_tokens` the most tokens
    of one forward pass. `count` has the tokens so far. `check` verifies an answer before it is returned."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        eos_ids: list[int],
        *,
        tokens: int,
        pass_tokens: int,
        count: TokenCount | None = None,
        check: Callable[[ActiveSequence], None] = lambda _: None,
    ) -> None:
        self.model, self.tokenizer, self.eos_ids = model, tokenizer, eos_ids
        self.check = check
        self.tokens, self.pass_tokens = tokens, pass_tokens
        self.count = count if count is not None else TokenCount()
        self.copies = model.device.type == "cuda"
        self.cache: SegmentCache = {}
        self.uses: Counter[Segment] = Counter()

    def run(self, prompts: Sequence[Prompt], most: int | None = None) -> Iterator[tuple[Prompt, Response]]:
        """Every prompt with its answer, as soon as it is complete. At most `most` sequences are decoded at once."""
        import torch

        waiting = self._plan(prompts)
        if not waiting:
            return
        most = min(len(waiting), most or len(waiting))
        slots = self._make_slots(waiting, most)
        longest = max(sequence.room for sequence in waiting)
        graphs = StepGraphs(self.model, slots, most, longest) if self.copies else None
        active: list[ActiveSequence] = []  # complete ones stay until the slots are packed again
        steps: deque[Step] = deque()  # launched and not read
        entered = released = 0
        with torch.inference_mode():
            if graphs is not None:
                with phase(DECODING):
                    graphs.allocate()
            while waiting or active:
                if self._repacks(active, waiting, entered, graphs):
                    while steps:
                        yield from self._read(steps.popleft())
                    self._pack(active, slots)
                    new = _entering(waiting, most - len(active), slots)
                    if new:
                        with phase(FORWARD):
                            self._fill(new, slots)
                        active += new
                    entered, released = len(active), 0
                    if not active:
                        break
                    if graphs is not None and not graphs.failure:
                        graphs.set_inputs([sequence.input for sequence in active])
                with phase(DECODING):
                    steps.append(step := self._step(active, slots, graphs))
                while len(steps) > step.ahead:
                    yield from self._read(steps.popleft())
                if graphs is not None:
                    idle = [index for index, sequence in enumerate(active) if sequence.complete]
                    if len(idle) > released:
                        graphs.release(idle)
                        released = len(idle)

    def _make_slots(self, waiting: Sequence[ActiveSequence], most: int) -> Slots:
        """On CUDA a slot has room for its sequence, with one token for idle ones. On a CPU, where the attention kernel takes
        a rectangle of keys, all have room for the longest."""
        longest = max(sequence.capacity for sequence in waiting)
        for sequence in waiting:
            sequence.room = sequence.capacity if self.copies else longest
        if not self.copies:
            return Slots(longest * max(1, min(most, self.tokens // longest)))
        needed = sum(heapq.nlargest(most, (sequence.room for sequence in waiting)))
        return Slots(max(longest, min(needed, self.tokens)) + 1)

    def _repacks(
        self, active: Sequence[ActiveSequence], waiting: Sequence[ActiveSequence], entered: int, graphs: StepGraphs | None
    ) -> bool:
        """Whether slots of complete sequences are given to others: at once without graphs, where they cost time; else when
        there are enough of them for new sequences, or for a smaller graph. `entered` sequences were active at first."""
        left = sum(not one.complete for one in active)
        if not left or (waiting and entered - left >= max(1, entered // REFILL)):
            return True
        return left < len(active) and (graphs is None or graph_size(left) < graph_size(len(active)))

    def _read(self, step: Step) -> Iterator[tuple[Prompt, Response]]:
        """Add the tokens of a step to its sequences; yields the answers that they complete."""
        with phase(DECODING):
            tokens = step.read()
        for sequence, token in zip(step.sequences, tokens, strict=True):
            if sequence.complete:
                continue
            sequence.sampler.broken |= token == NO_TOKEN
            sequence.generated.append(token)
            limit = sequence.prompt.max_new_tokens
            if len(sequence.generated) >= limit or sequence.sampler.ends(sequence.generated):
                sequence.complete = True
                self._release(sequence.shared)
                seconds = time.perf_counter() - sequence.started
                self.check(sequence)
                yield sequence.prompt, replace(sequence.sampler.response(sequence.generated), seconds=seconds)

    def _plan(self, prompts: Sequence[Prompt]) -> deque[ActiveSequence]:
        """Sequences in the order of the trie, so that those with a shared prefix are near each other."""
        trie = make_trie([prompt.keys[:-1] for prompt in prompts])
        set_prefixes(trie.ends, [prompt.prefix for prompt in prompts])
        users = Counter(segment for end in trie.ends for segment in end.chain)
        order = {segment: index for index, segment in enumerate(trie.segments)}
        sequences = []
        for prompt, end in zip(prompts, trie.ends, strict=True):
            chain = [segment for segment in end.chain if segment.tokens]
            own = chain if self.copies else [segment for segment in chain if users[segment] == 1]
            shared = [segment for segment in chain if segment not in own]
            sequence = ActiveSequence(prompt, own, shared, Sampler(self.tokenizer, prompt, self.eos_ids))
            sequences.append((order[end], sequence))
            self.uses.update(chain)
        return deque(sequence for _, sequence in sorted(sequences, key=lambda pair: pair[0]))

    def _pack(self, active: list[ActiveSequence], slots: Slots) -> None:
        """Return the slots of complete sequences. On a CPU the last sequences move to those slots: they stay a rectangle."""
        complete = [index for index, sequence in enumerate(active) if sequence.complete]
        if not self.copies:
            left = len(active) - len(complete)
            moved = [index for index in range(left, len(active)) if not active[index].complete]
            for target, source in zip(complete, moved, strict=False):
                to, of = active[target], active[source]
                slots.copy(of.start, to.start, of.length)
                of.start, to.start = to.start, of.start
                active[target], active[source] = of, to
        for sequence in active:
            if sequence.complete:
                slots.give(sequence.start, sequence.room)
        active[:] = [sequence for sequence in active if not sequence.complete]

    def _fill(self, sequences: Sequence[ActiveSequence], slots: Slots) -> None:
        """Compute the prompts of new sequences, as far as they are not cached, and fill their slots."""
        for sequence in sequences:
            sequence.started = time.perf_counter()
        chains = [(*sequence.shared, *sequence.own) for sequence in sequences]
        missing = dict.fromkeys(segment for chain in chains for segment in chain if segment not in self.cache)
        unfilled = deque(sequences)
        computed: set[Segment] = set()
        for pack in _packs(list(missing), self.pass_tokens):
            computed.update(pack)
            ready = []
            while unfilled and all(segment in computed or segment in self.cache for segment in unfilled[0].own):
                sequence = unfilled.popleft()
                ready.append((sequence.start, sequence.own))
            self._prefill(pack, ready, [sequence.own for sequence in unfilled], slots)
        for sequence in unfilled:  # all of it was cached
            for call in range(len(slots.layers)):
                slots.put(call, sequence.start, (self.cache[segment][call] for segment in sequence.own))
        for sequence in sequences:
            self._release(sequence.own)

    def _prefill(
        self, pack: list[Segment], rows: list[tuple[int, list[Segment]]], later: list[list[Segment]], slots: Slots
    ) -> None:
        import torch

        own = Counter(segment for _, segments in rows for segment in segments)
        wanted = {segment for segments in later for segment in segments}
        to_cache = [segment for segment in pack if segment in wanted or self.uses[segment] > own[segment]]
        longest = max(segment.end for segment in pack)
        plan = Prefill(pack, self.cache, to_cache, window=longest, slots=slots, rows=rows)
        with attending(self.model, plan), model_inputs(self.model, plan) as inputs:
            one = on_device(torch.tensor([0]), self.model.device)  # only the keys and values are needed
            self.model(**inputs, logits_to_keep=one, use_cache=False)
        self.count.prompts += sum(len(segment.tokens) for segment in pack)

    def _release(self, segments: Sequence[Segment]) -> None:
        """Drop segments from the cache that no sequence needs any more."""
        for segment in segments:
            self.uses[segment] -= 1
            if not self.uses[segment]:
                self.cache.pop(segment, None)

    def _step(self, active: Sequence[ActiveSequence], slots: Slots, graphs: StepGraphs | None) -> Step:
        """The next token of every active sequence. Where all are decoded greedily, tokens stay on the device until the step
        after this one was launched."""
        plain = all(sequence.sampler.plain for sequence in active)
        if graphs is not None and not graphs.failure:
            if not plain:
                graphs.set_inputs([sequence.input for sequence in active])
            logits = graphs.step(len(active))
            if plain and not graphs.failure:
                return Step(list(active), _to_host(graphs.tokens[: len(active)]), ahead=1)
        else:
            logits = self._forward(active, slots)
        seen = [[*one.prompt.ids, *one.generated] if one.sampler.steps else [] for one in active]
        tokens = sample_all([sequence.sampler for sequence in active], logits[: len(active)], seen)
        return Step(list(active), lambda: tokens)

    def _forward(self, active: Sequence[ActiveSequence], slots: Slots) -> torch.Tensor:
        """Logits of the next token of every active sequence."""
        import torch

        ids, positions, lengths, starts, rooms = map(list, zip(*(one.input for one in active), strict=True))
        users: dict[Segment, list[int]] = {}
        for slot, sequence in enumerate(active):
            for segment in sequence.shared:
                users.setdefault(segment, []).append(slot)
        device = self.model.device
        plan = DecodingStep(
            slots,
            torch.tensor(starts, device=device),
            torch.tensor(lengths, device=device),
            max(lengths),
            None if self.copies else rooms[0],
            window=max(sequence.index for sequence in active) + 1,
            shared=[(self.cache[segment], torch.tensor(rows, device=device)) for segment, rows in users.items()],
        )
        with attending(self.model, plan), small_products(self.model, len(active)):
            out = self.model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                use_cache=False,
            )
        logits: torch.Tensor = out.logits[0]
        return logits


def _entering(waiting: deque[ActiveSequence], most: int, slots: Slots) -> list[ActiveSequence]:
    """The next sequences, at most so many, as far as there are slots for them."""
    new: list[ActiveSequence] = []
    while waiting and len(new) < most and (start := slots.take(waiting[0].room)) is not None:
        waiting[0].start = start
        new.append(waiting.popleft())
    return new


def _to_host(tokens: torch.Tensor) -> Callable[[], list[int]]:
    """Start the copy of tokens to the host; the result waits for it."""
    import torch

    if tokens.device.type != "cuda":
        known: list[int] = tokens.tolist()
        return lambda: known
    host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    host.copy_(tokens, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def read() -> list[int]:
        copied.synchronize()
        found: list[int] = host.tolist()
        return found

    return read


def _packs(segments: list[Segment], most: int) -> list[list[Segment]]:
    """Segments in groups of at most `most` tokens."""
    packs: list[list[Segment]] = []
    size = 0
    for segment in segments:
        if not packs or size + len(segment.tokens) > most:
            packs.append([])
            size = 0
        packs[-1].append(segment)
        size += len(segment.tokens)
    return packs
