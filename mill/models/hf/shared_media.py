"""Scoring and generation with media on the path of shared prefixes, and which requests cannot take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mill.api.batching import is_out_of_memory
from mill.api.errors import DataError, FastPathFailed, MissingPackage
from mill.api.response import Response
from mill.models.hf.media_prefixes import PrefixEncoder
from mill.models.hf.multimodal import MediaInputs, MediaRow
from mill.models.media.prefetch import Prefetch
from mill.models.prefix import paths
from mill.models.prefix.engine import PrefixEngine, scores_of
from mill.models.prefix.pack import Unsupported
from mill.models.prefix.packed_scoring import OUT_OF_MEMORY, NotShared
from mill.models.prefix.paths import Verification
from mill.models.prefix.sequences import ActiveSequence
from mill.models.tokens.reasoning import opens_reasoning
from mill.models.tokens.rows import EmbeddedPrefix, Row, Span
from mill.models.tokens.tokenizer import Prompt
from mill.support.clocks import FORWARD, PROBING, TOKENIZING, phase
from mill.support.terminal import TokenCount, describe, warn

MOST_BYTES = 1 << 28  # embeddings that are stored at once
PREFIXES_AHEAD = 16  # whose media are decoded in advance
PROBED = 8  # tokens that are scored to compare both paths


@dataclass(frozen=True, eq=False)
class _Split:
    """A row, and what follows its last placeholder."""

    row: MediaRow
    text: str
    ids: list[int]


@dataclass(frozen=True, eq=False)
class _Embedded:
    """A row as the model sees it: its ids, of which the first are those of its prefix."""

    row: MediaRow
    ids: list[int]
    prefix: EmbeddedPrefix


Outcome = tuple[MediaRow, list[Response] | NotShared]


class SharedMedia:
    """Rows with media through a prefix engine. Both paths are compared on the first row of each shape."""

    def __init__(self, media: MediaInputs, engine: PrefixEngine) -> None:
        self.media, self.engine = media, engine
        self.disabled = ""
        self._probed: set[tuple[int, ...]] = set()

    def score(self, rows: Sequence[MediaRow], *, batch_size: int | None, count: TokenCount) -> Iterator[Outcome]:
        """Every row with the responses of its spans, or why it must be scored by itself."""
        for group in self._groups(rows):
            scored: dict[Row, MediaRow] = {}
            for one in group:
                if isinstance(one, _Embedded):
                    scored[_scored(one)] = one.row
                else:
                    yield one
            check = partial(self._check_row, scored)
            for row, outcome in self.engine.score(list(scored), batch_size=batch_size, count=count, check=check):
                yield scored[row], outcome

    def decode(self, rows: Sequence[MediaRow], *, batch_size: int | None, count: TokenCount) -> Iterator[Outcome]:
        """Every row with its answer, or why it must be decoded in plain batches."""
        for group in self._groups(rows):
            prompts: dict[Prompt, MediaRow] = {}
            for one in group:
                if isinstance(one, tuple):
                    yield one
                elif int(one.prefix.positions.max()) >= len(one.ids) + one.prefix.shift:
                    yield one.row, NotShared("positions of its media exceed those of its text")
                else:
                    prompts[self._prompt(one)] = one.row
            check = partial(self._check_text, prompts)
            for prompt, answer in self.engine.decode(list(prompts), batch_size=batch_size, count=count, check=check):
                yield prompts[prompt], answer

    def _check_row(self, rows: Mapping[Row, MediaRow], shared: Row, found: list[Response]) -> None:
        row, engine = rows[shared], self.engine
        noise = engine.token_noise * max(map(len, row.spans)) ** 0.5
        plain = partial(self._recomputed, row)
        engine.verify(paths.SCORING, row.request.key, len(shared.ids), scores_of(found), plain, noise)

    def _recomputed(self, row: MediaRow) -> list[float]:
        return self._plain_scores(row, self.media.load(row))

    def _plain_scores(self, row: MediaRow, decoded: list[Any]) -> list[float]:
        (responses,) = self.media.score(self.engine.model, [row], [decoded])
        return scores_of(responses)

    def _check_text(self, rows: Mapping[Prompt, MediaRow], sequence: ActiveSequence) -> None:
        row, engine, generated = rows[sequence.prompt], self.engine, sequence.generated
        if sequence.sampler.broken:
            return

        def plain() -> list[float]:
            logits = self.media.continued(engine.model, row, self.media.load(row), generated)
            return sequence.sampler.replayed().gaps(logits, sequence.prompt.ids, generated)

        zeros = [0.0] * len(generated)
        length = len(sequence.prompt.ids)
        engine.verify(paths.DECODING, row.request.key, length, zeros, plain, engine.token_noise)

    def _prompt(self, one: _Embedded) -> Prompt:
        request = one.row.request
        opened = opens_reasoning(request, one.row.text)
        return Prompt(request, one.ids, 0, int(request.options["max_gen_toks"]), opened, one.prefix)

    def _groups(self, rows: Sequence[MediaRow]) -> Iterator[list[_Embedded | Outcome]]:
        """Rows with their embeddings, as many as memory may hold, those with the same media together."""
        if reason := self.engine.disabled or self.disabled:
            yield [(row, NotShared(reason)) for row in rows]
            return
        with phase(TOKENIZING):
            split, unknown = self._split(rows)
        yield [(row, NotShared("its placeholders are not found")) for row in unknown]
        encoder = PrefixEncoder(self.media, self.engine.model)
        group: list[_Embedded | Outcome] = []
        size = 0
        with Prefetch(self.media.load, split, ahead=PREFIXES_AHEAD) as loaded:
            for start, parts in split.items():
                found = self._embedded(encoder, start, parts, loaded)
                loaded.drop(start)
                size += sum(one.prefix.nbytes for one in found[:1] if isinstance(one, _Embedded))
                group += found
                if size > MOST_BYTES:
                    yield group
                    group, size = [], 0
                    encoder.forget_keys()
        yield group

    def _split(self, rows: Sequence[MediaRow]) -> tuple[dict[MediaRow, list[_Split]], list[MediaRow]]:
        """Rows by their starts up to the last placeholder, and those whose tokens cannot be split there. Starts with the
        same media follow each other, so that these are encoded once."""
        cut = [(row, parts) for row in rows if (parts := self.media.split(row)) is not None]
        texts = dict.fromkeys(text for row, (start, _) in cut for text in (row.text, start))
        ids = dict(zip(texts, self.media.ids(list(texts)) if texts else [], strict=True))
        starts: dict[tuple[str, str], MediaRow] = {}
        split: dict[MediaRow, list[_Split]] = {}
        for row, (text, rest) in sorted(cut, key=lambda pair: (pair[0].digests, pair[1][0])):
            before, whole = ids[text], ids[row.text]
            if whole[: len(before)] == before and len(whole) > len(before) + row.tail:
                start = starts.setdefault((row.digests, text), MediaRow(row.request, text))
                split.setdefault(start, []).append(_Split(row, rest, whole[len(before) :]))
        done = {one.row for parts in split.values() for one in parts}
        return split, [row for row in rows if row not in done]

    def _embedded(
        self, encoder: PrefixEncoder, start: MediaRow, parts: list[_Split], loaded: Prefetch[MediaRow, list[Any]]
    ) -> list[_Embedded | Outcome]:
        """What cannot be read or encoded is left to the other path, which reports each request's own error."""
        reason = self.disabled
        try:
            if not reason:
                return [self._fitting(one) for one in self._encoded(encoder, parts, loaded.take(start))]
        except MissingPackage:
            raise
        except Unsupported as error:
            reason = self.disabled = str(error)
            warn(f"images, video and audio do not share prefixes: {reason}; every row is computed by itself")
        except Exception as error:
            error.__traceback__ = None  # which references tensors
            reason = OUT_OF_MEMORY if is_out_of_memory(error) else describe(error)
        return [(one.row, NotShared(reason)) for one in parts]

    def _encoded(self, encoder: PrefixEncoder, parts: list[_Split], decoded: list[Any]) -> list[_Embedded]:
        """Rows with the same start, encoded with the text of the shortest one."""
        shortest = min(parts, key=lambda one: len(one.ids))
        with phase(FORWARD):
            prefix, ids = encoder.encode(shortest.row, decoded, shortest.ids)
        if self.media.ids_after(ids[-1], [one.text for one in parts]) != [one.ids for one in parts]:
            raise DataError("the processor changes the text after its media")
        rows = [_Embedded(one.row, [*ids, *one.ids], prefix) for one in parts]
        first, shape = rows[parts.index(shortest)], shortest.row.shape
        if shape not in self._probed and len(first.ids) <= self.media.tokens.window:
            with phase(PROBING):
                if difference := self._difference(first, decoded):
                    raise Unsupported(difference)
            self._probed.add(shape)
        return rows

    def _fitting(self, one: _Embedded) -> _Embedded | Outcome:
        needed = len(one.ids) + (0 if one.row.spans else int(one.row.request.options["max_gen_toks"]))
        if needed <= self.media.tokens.window:
            return one
        return one.row, [Response(error=self.media.too_long(needed))] * max(1, len(one.row.spans))

    def _difference(self, one: _Embedded, decoded: list[Any]) -> str:
        """How a row differs on the two paths; empty if it does not."""
        length = min(PROBED, len(one.ids) - one.prefix.length)
        probe = replace(one.row, spans=[one.ids[-length:]], tail=length, requests=[])
        row = _scored(replace(one, row=probe))
        ((_, outcome),) = self.engine.score([row], batch_size=None)
        if isinstance(outcome, NotShared):
            return outcome.reason
        try:
            plain = partial(self._plain_scores, probe, decoded)
            noise = self.engine.token_noise * length**0.5
            Verification().check(self.engine.model, 0, scores_of(outcome), plain, noise)
        except FastPathFailed as failure:
            return str(failure)
        return ""


def _scored(one: _Embedded) -> Row:
    """A row with its spans: after its last token, or at its last `tail` tokens, the last of which is no input."""
    row, keys = one.row, one.prefix.keys_of(one.ids)
    start = len(keys) - 1 - row.tail
    return Row(keys[:-1] if row.tail else keys, [Span(start, span) for span in row.spans], row.requests, one.prefix)
