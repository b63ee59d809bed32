"""Continuous batching: a finished sequence frees its slot for the next one, and shared prefixes are computed once.

All tokens of a prompt but the last go through the trie. The last one is the input of the first decoding step, so equal
prompts (the draws of one request) share everything. On a CPU sequences read a shared prefix in place; on CUDA it is copied
into each slot, and a step is a CUDA graph.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mill.api.response import Response
from mill.api.timing import DECODING, FORWARD, phase
from mill.models.prefix.graphs import StepGraphs
from mill.models.prefix.inputs import model_inputs, set_prefixes
from mill.models.prefix.pack import SegmentCache
from mill.models.prefix.packed_attention import attending
from mill.models.prefix.sampling import Sampler, sample_all
from mill.models.prefix.slots import DecodingStep, Prefill, Slots
from mill.models.prefix.small_products import small_products
from mill.models.prefix.trie import Segment, make_trie
from mill.models.tokens.tokenizer import Prompt

if TYPE_CHECKING:
    import torch

REFILL = 8  # new sequences enter when this share of the slots is free, so that their prompts are computed together


@dataclass(eq=False)
class ActiveSequence:
    """A sequence in decoding. `own` are the segments in its slot, `shared` those it reads from the segment cache."""

    prompt: Prompt
    own: list[Segment]
    shared: list[Segment]
    sampler: Sampler
    generated: list[int] = field(default_factory=list)
    started: float = 0.0

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
    def last(self) -> int:
        return self.generated[-1] if self.generated else self.prompt.ids[-1]

    @property
    def capacity(self) -> int:
        """How many tokens its slot needs."""
        return self.length + self.prompt.max_new_tokens


class ContinuousDecoder:
    """Decodes prompts of any options and lengths. `tokens` is the capacity of the KV cache, `pass_tokens` the most tokens
    of one forward pass."""

    def __init__(self, model: Any, tokenizer: Any, eos_ids: list[int], *, tokens: int, pass_tokens: int) -> None:
        self.model, self.tokenizer, self.eos_ids = model, tokenizer, eos_ids
        self.tokens, self.pass_tokens = tokens, pass_tokens
        self.copies = model.device.type == "cuda"
        self.cache: SegmentCache = {}
        self.uses: Counter[Segment] = Counter()

    def run(self, prompts: Sequence[Prompt], most: int | None = None) -> Iterator[tuple[Prompt, Response]]:
        """Every prompt with its answer, as soon as it is complete; at most `most` sequences at once."""
        import torch

        waiting = self._plan(prompts)
        if not waiting:
            return
        capacity = max(sequence.capacity for sequence in waiting)
        count = min(len(waiting), max(1, self.tokens // capacity), most or len(waiting))
        slots = Slots(count, capacity)
        graphs = StepGraphs(self.model, slots) if self.copies else None
        active: list[ActiveSequence] = []
        with torch.inference_mode():
            while waiting or active:
                free = count - len(active)
                if waiting and free and (free >= max(1, count // REFILL) or not active):
                    new = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                    with phase(FORWARD):
                        self._fill(new, len(active), slots)
                    active += new
                with phase(DECODING):
                    complete = self._sample(active, self._step(active, slots, graphs))
                for slot in reversed(complete):
                    done = active[slot]
                    yield done.prompt, self._finish(done)
                    last = active.pop()
                    if last is not done:
                        slots.move(len(active), slot, last.length)
                        active[slot] = last

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

    def _fill(self, sequences: Sequence[ActiveSequence], first: int, slots: Slots) -> None:
        """Compute the prompts of new sequences, as far as they are not cached, and fill the slots from `first` on."""
        for sequence in sequences:
            sequence.started = time.perf_counter()
        chains = [(*sequence.shared, *sequence.own) for sequence in sequences]
        missing = dict.fromkeys(segment for chain in chains for segment in chain if segment not in self.cache)
        unfilled = deque(enumerate(sequences, first))
        computed: set[Segment] = set()
        for pack in _packs(list(missing), self.pass_tokens):
            computed.update(pack)
            ready = []
            while unfilled and all(segment in computed or segment in self.cache for segment in unfilled[0][1].own):
                slot, sequence = unfilled.popleft()
                ready.append((slot, sequence.own))
            self._prefill(pack, ready, [sequence.own for _, sequence in unfilled], slots)
        for slot, sequence in unfilled:  # all of it was cached
            for call in range(len(slots.layers)):
                slots.put(call, slot, (self.cache[segment][call] for segment in sequence.own))
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
            self.model(**inputs, logits_to_keep=torch.tensor([0], device=self.model.device), use_cache=False)

    def _release(self, segments: Sequence[Segment]) -> None:
        """Drop segments from the cache that no sequence needs any more."""
        for segment in segments:
            self.uses[segment] -= 1
            if not self.uses[segment]:
                self.cache.pop(segment, None)

    def _step(self, active: Sequence[ActiveSequence], slots: Slots, graphs: StepGraphs | None) -> torch.Tensor:
        """Logits of the next token of every active sequence."""
        import torch

        ids, positions = [sequence.last for sequence in active], [sequence.position for sequence in active]
        lengths = [sequence.length + 1 for sequence in active]
        if graphs is not None and not graphs.failure:
            return graphs.step(ids, positions, lengths)
        users: dict[Segment, list[int]] = {}
        for slot, sequence in enumerate(active):
            for segment in sequence.shared:
                users.setdefault(segment, []).append(slot)
        device = self.model.device
        plan = DecodingStep(
            slots,
            torch.tensor(lengths, device=device),
            max(lengths),
            window=max(sequence.index for sequence in active) + 1,
            shared=[(self.cache[segment], _indices(rows, device)) for segment, rows in users.items()],
        )
        with attending(self.model, plan), small_products(self.model, len(active)):
            out = self.model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                use_cache=False,
            )
        logits: torch.Tensor = out.logits[0]
        return logits

    def _sample(self, active: Sequence[ActiveSequence], logits: torch.Tensor) -> list[int]:
        """Choose each sequence's next token; returns the slots of sequences that are complete."""
        seen = [[*one.prompt.ids, *one.generated] if one.sampler.steps else [] for one in active]
        tokens = sample_all([sequence.sampler for sequence in active], logits[: len(active)], seen)
        complete = []
        for slot, (sequence, token) in enumerate(zip(active, tokens, strict=True)):
            sequence.generated.append(token)
            limit = sequence.prompt.max_new_tokens
            if len(sequence.generated) >= limit or sequence.sampler.ends(sequence.generated):
                complete.append(slot)
        return complete

    def _finish(self, sequence: ActiveSequence) -> Response:
        self._release(sequence.shared)
        answer = sequence.sampler.response(sequence.generated)
        return replace(answer, seconds=time.perf_counter() - sequence.started)


def _indices(rows: list[int], device: Any) -> torch.Tensor | slice:
    """Ascending indices, as a range where they are one: that needs no copy."""
    import torch

    first, last = rows[0], rows[-1]
    return slice(first, last + 1) if last - first + 1 == len(rows) else torch.tensor(rows, device=device)


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
