"""Requests with media on the path of shared prefixes: their prompts as embeddings, so that an image with many questions or
choices is encoded and computed once; and which of them cannot take it.

The model runs up to its language model, which is where its encoders have put embeddings in the place of images, video and
audio; the language model itself then runs on packs of shared prefixes, as for text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mill.api.batching import is_out_of_memory
from mill.api.errors import DataError, FastPathFailed, MissingPackage
from mill.api.response import Response
from mill.models.media.inputs import MediaInputs, MediaRow, Prefetch
from mill.models.prefix import paths
from mill.models.prefix.fast_path import FastPath, scores_of
from mill.models.prefix.paths import Verification
from mill.models.prefix.scoring import OUT_OF_MEMORY, NotShared
from mill.models.prefix.trie import Unsupported
from mill.models.tokens.reasoning import opens_reasoning
from mill.models.tokens.rows import EmbeddedPrefix, Row, Span
from mill.models.tokens.scores import span_scores
from mill.models.tokens.tokenizer import Prompt
from mill.support.clocks import FORWARD, PROBING, TOKENIZING, phase
from mill.support.terminal import TokenCount, describe, warn

if TYPE_CHECKING:
    import torch

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
class Embedded:
    """A row as the model sees it: its ids, of which the first are those of its prefix."""

    row: MediaRow
    ids: list[int]
    prefix: EmbeddedPrefix

    @property
    def exceeds_positions(self) -> bool:
        """Whether positions of its media exceed those of its text, which decoding counts on."""
        return int(self.prefix.positions.max()) >= len(self.ids) + self.prefix.shift

    def scored(self) -> Row:
        """With its spans: after its last token, or at its last `tail` tokens, the last of which is no input."""
        row, keys = self.row, self.prefix.keys_of(self.ids)
        start = len(keys) - 1 - row.tail
        return Row(keys[:-1] if row.tail else keys, [Span(start, span) for span in row.spans], row.requests, self.prefix)

    def prompt(self) -> Prompt:
        request = self.row.request
        opened = opens_reasoning(request, self.row.text)
        return Prompt(request, self.ids, 0, int(request.options["max_gen_toks"]), opened, self.prefix)


Outcome = tuple[MediaRow, list[Response] | NotShared]


class MediaPrefixes:
    """Rows with media as embeddings, for the fast path. Both paths are compared on the first row of each shape."""

    def __init__(self, inputs: MediaInputs, fast: FastPath) -> None:
        self.inputs, self._fast = inputs, fast
        self.disabled = ""
        self._probed: set[tuple[int, ...]] = set()

    def groups(self, rows: Sequence[MediaRow]) -> Iterator[list[Embedded | Outcome]]:
        """Rows with their embeddings, as many as memory may hold, those with the same media together."""
        if reason := self._fast.disabled or self.disabled:
            yield [(row, NotShared(reason)) for row in rows]
            return
        with phase(TOKENIZING):
            split, unknown = self._split(rows)
        yield [(row, NotShared("its placeholders are not found")) for row in unknown]
        encoder = PrefixEncoder(self.inputs, self._fast.model)
        group: list[Embedded | Outcome] = []
        size = 0
        with Prefetch(self.inputs.load, split, ahead=PREFIXES_AHEAD) as loaded:
            for start, parts in split.items():
                found = self._embedded(encoder, start, parts, loaded)
                loaded.drop(start)
                size += sum(one.prefix.nbytes for one in found[:1] if isinstance(one, Embedded))
                group += found
                if size > MOST_BYTES:
                    yield group
                    group, size = [], 0
                    encoder.forget_keys()
        yield group

    def _split(self, rows: Sequence[MediaRow]) -> tuple[dict[MediaRow, list[_Split]], list[MediaRow]]:
        """Rows by their starts up to the last placeholder, and those whose tokens cannot be split there. Starts with the
        same media follow each other."""
        cut = [(row, parts) for row in rows if (parts := self.inputs.split(row)) is not None]
        texts = dict.fromkeys(text for row, (start, _) in cut for text in (row.text, start))
        ids = dict(zip(texts, self.inputs.ids(list(texts)) if texts else [], strict=True))
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
    ) -> list[Embedded | Outcome]:
        """What cannot be read or encoded is left to the other path, which reports each request's own error."""
        reason = self._fast.disabled or self.disabled
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

    def _encoded(self, encoder: PrefixEncoder, parts: list[_Split], decoded: list[Any]) -> list[Embedded]:
        """Rows with the same start, encoded with the text of the shortest one."""
        shortest = min(parts, key=lambda one: len(one.ids))
        with phase(FORWARD):
            prefix, ids = encoder.encode(shortest.row, decoded, shortest.ids)
        if self.inputs.ids_after(ids[-1], [one.text for one in parts]) != [one.ids for one in parts]:
            raise DataError("the processor changes the text after its media")
        rows = [Embedded(one.row, [*ids, *one.ids], prefix) for one in parts]
        first, shape = rows[parts.index(shortest)], shortest.row.shape
        if shape not in self._probed and len(first.ids) <= self.inputs.tokens.window:
            with phase(PROBING):
                if difference := self._difference(first, decoded):
                    raise Unsupported(difference)
            self._probed.add(shape)
        return rows

    def _fitting(self, one: Embedded) -> Embedded | Outcome:
        needed = len(one.ids) + (0 if one.row.spans else int(one.row.request.options["max_gen_toks"]))
        if needed <= self.inputs.tokens.window:
            return one
        return one.row, [Response(error=self.inputs.too_long(needed))] * max(1, len(one.row.spans))

    def _difference(self, one: Embedded, decoded: list[Any]) -> str:
        """How a row differs on the two paths; empty if it does not."""
        fast, length = self._fast, min(PROBED, len(one.ids) - one.prefix.length)
        probe = replace(one.row, spans=[one.ids[-length:]], tail=length, requests=[])
        outcome: list[Response] | NotShared | None = None
        with fast.falling_back():
            for _, found in fast.packed([replace(one, row=probe).scored()], TokenCount()):
                outcome = found
        if not isinstance(outcome, list):
            return outcome.reason if outcome is not None else fast.disabled
        try:
            noise = fast.token_noise * length**0.5
            Verification().check(fast.model, 0, scores_of(outcome), partial(self._plain_scores, probe, decoded), noise)
        except FastPathFailed as failure:
            return str(failure)
        return ""

    def check_scores(self, one: Embedded, shared: Row, found: list[Response]) -> None:
        """Compute a row again by the plain path, where it is its turn."""
        row, fast, length = one.row, self._fast, len(shared.ids)
        if fast.is_due(paths.SCORING, length) or fast.samples(paths.SCORING, row.request.key):
            tokens = max(map(len, row.spans))
            fast.verify(
                paths.SCORING,
                length,
                scores_of(found),
                lambda: self._plain_scores(row, self.inputs.load(row)),
                tokens=tokens,
            )

    def _plain_scores(self, row: MediaRow, decoded: list[Any]) -> list[float]:
        (responses,) = score_media(self._fast.model, self.inputs, [row], [decoded])
        return scores_of(responses)

    def continued(self, row: MediaRow, generated: Sequence[int]) -> torch.Tensor:
        """The logits of each token of an answer, (tokens, vocabulary), after the ones before it, by the plain path."""
        import torch

        model = self._fast.model
        inputs = self.inputs.batch([row], [self.inputs.load(row)], side="right", model=model)
        length = inputs["input_ids"].shape[1]
        answer = torch.tensor([list(generated[:-1])], device=model.device, dtype=torch.long)
        following = {"input_ids": answer, "attention_mask": torch.ones_like(answer)}
        for name, value in inputs.items():
            if value.shape == (1, length):  # others are of the media; types of tokens are 0 for text
                inputs[name] = torch.cat([value, following.get(name, torch.zeros_like(answer)).to(value)], dim=1)
        with torch.inference_mode():
            logits: torch.Tensor = model(**inputs, use_cache=False).logits[0, length - 1 :]
        return logits


def score_media(
    model: Any, inputs: MediaInputs, rows: Sequence[MediaRow], decoded: Sequence[list[Any]]
) -> list[list[Response]]:
    """Responses for the spans of rows of one shape, in one padded forward pass."""
    import torch

    batch = inputs.batch(rows, decoded, side="right", model=model)
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    with torch.inference_mode():
        logits = model(**batch, use_cache=False).logits
    scored = [  # after the last token of a row, or at its last `tail` tokens
        Row([], [Span(length - 1 - row.tail, span) for span in row.spans], row.requests)
        for row, length in zip(rows, lengths, strict=True)
    ]
    answers = span_scores(logits, scored, first=0)
    return [_responses(inputs, row, length, scores) for row, length, scores in zip(rows, lengths, answers, strict=True)]


def _responses(inputs: MediaInputs, row: MediaRow, length: int, scores: list[tuple[float, bool]]) -> list[Response]:
    if length > inputs.tokens.window:
        return [Response(error=inputs.too_long(length)) for _ in scores]
    return [
        Response(score=score, is_greedy=greedy, prompt_tokens=length - row.tail, output_tokens=len(span))
        for (score, greedy), span in zip(scores, row.spans, strict=True)
    ]


_UNDERSTOOD = {
    "inputs_embeds",
    "position_ids",
    "attention_mask",
    "cache_position",
    "return_dict",
    "logits_to_keep",
    "visual_pos_masks",
    "deepstack_visual_embeds",
}


class _Captured(Exception):
    """The arguments of the language model, instead of its result."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


class PrefixEncoder:
    """Makes embedded prefixes."""

    def __init__(self, media: MediaInputs, model: Any) -> None:
        self.media, self.model = media, model
        self._decoder, self._table = model.get_decoder(), model.get_input_embeddings()
        self._keys: dict[bytes, int] = {}

    def forget_keys(self) -> None:
        """Keys are equal only among prefixes that were encoded since then."""
        self._keys = {}

    def encode(self, row: MediaRow, decoded: list[Any], after: Sequence[int]) -> tuple[EmbeddedPrefix, list[int]]:
        """The prefix of a row whose text ends with these tokens, and its ids, in which the processor repeated the
        placeholders."""
        import torch

        inputs = self.media.batch([row], [decoded], side="right", model=self.model)
        with torch.inference_mode():
            arguments = self._capture(inputs)
        ids: list[int] = inputs["input_ids"][0].tolist()
        length = len(ids) - len(after)
        if ids[length:] != list(after):
            raise DataError("the processor changes the text after its media")
        whole = arguments["inputs_embeds"][0]
        positions = _positions(arguments.get("position_ids"), len(ids))
        shift = int(positions[0, length]) - length
        if not positions[:, length:].equal((torch.arange(length, len(ids)) + shift).expand(len(positions), -1)):
            raise Unsupported("positions of text after them are not consecutive")
        embeddings, positions = whole[:length].clone(), positions[:, :length]
        added = tuple(states[:length].clone() for states in _added(arguments, whole))
        keys = self._key_list(ids[:length], embeddings, positions, added)
        return EmbeddedPrefix(keys, embeddings, positions, shift, added), ids[:length]

    def _capture(self, inputs: Any) -> dict[str, Any]:
        def stop(_: Any, positional: tuple[Any, ...], arguments: dict[str, Any]) -> None:
            raise _Captured({**arguments, **({"positional": positional} if positional else {})})

        hook = self._decoder.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(**inputs, use_cache=False)
        except _Captured as captured:
            arguments = captured.arguments
        else:
            raise Unsupported("its language model is not found")
        finally:
            hook.remove()
        _check(arguments)
        return arguments

    def _key_list(
        self, ids: Sequence[int], embeddings: torch.Tensor, positions: torch.Tensor, added: tuple[torch.Tensor, ...]
    ) -> list[int]:
        """The ids of text tokens; for other tokens numbers above the vocabulary, equal where all else is."""
        import torch

        size = len(self._table.weight)
        table = self._table(torch.tensor([token if token < size else 0 for token in ids], device=embeddings.device))
        is_text = (table == embeddings).all(dim=1).tolist()
        contents = torch.cat([embeddings, *added], dim=1).float().cpu().numpy()
        places = positions.T.contiguous().numpy()
        keys = []
        for index, token in enumerate(ids):
            if is_text[index] and token < size:
                keys.append(token)
            else:
                digest = hashlib.blake2b(contents[index].tobytes() + places[index].tobytes(), digest_size=16).digest()
                keys.append(self._keys.setdefault(digest, size + len(self._keys)))
        return keys


def _added(arguments: dict[str, Any], embeddings: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What is added to hidden states, for all tokens: nothing to those of text."""
    layers = []
    for features in arguments.get("deepstack_visual_embeds") or ():
        states = embeddings.new_zeros(embeddings.shape)
        states[arguments["visual_pos_masks"][0]] = features.to(states)
        layers.append(states)
    return tuple(layers)


def _positions(given: torch.Tensor | None, length: int) -> torch.Tensor:
    """One row for each axis."""
    import torch

    if given is None:
        return torch.arange(length)[None]
    return given.reshape(-1, length).cpu()


def _check(arguments: dict[str, Any]) -> None:
    """What the language model gets must be nothing but embeddings and positions, under a causal mask."""
    import torch

    given = {name for name, value in arguments.items() if value is not None and value is not False}
    if unknown := given - _UNDERSTOOD:
        raise Unsupported(f"its language model takes {', '.join(sorted(unknown))}")
    mask = arguments.get("attention_mask")
    if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dim() == 2 and bool(mask.all())):
        raise Unsupported("its language model takes a mask")
    axes = arguments.get("position_ids")
    if "inputs_embeds" not in given or (axes is not None and axes.dim() == 3 and len(axes) != 3):
        raise Unsupported("its language model does not take embeddings with positions")
