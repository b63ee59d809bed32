"""Prompts with media as embeddings, so that an image with many questions or choices is encoded and computed once.

The model runs up to its language model, which is where its encoders have put embeddings in the place of images, video and
audio; the language model itself then runs on packs of shared prefixes, as for text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from mill.api.errors import DataError
from mill.models.media.inputs import MediaInputs, MediaRow
from mill.models.prefix.trie import Unsupported
from mill.models.tokens.rows import EmbeddedPrefix

if TYPE_CHECKING:
    import torch

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
_ENCODERS = ("get_image_features", "get_video_features", "get_audio_features")


class _Captured(Exception):
    """The arguments of the language model, instead of its result."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


class PrefixEncoder:
    """Makes embedded prefixes. The encoders' results are cached for as long as the next prefix has the same media."""

    def __init__(self, media: MediaInputs, model: Any) -> None:
        self.media, self.model = media, model
        self._decoder, self._table = model.get_decoder(), model.get_input_embeddings()
        self._keys: dict[bytes, int] = {}
        self._features: dict[tuple[str, int], Any] = {}
        self._media = ""

    def forget_keys(self) -> None:
        """Keys are equal only among prefixes that were encoded since then."""
        self._keys = {}

    def encode(self, row: MediaRow, decoded: list[Any], after: Sequence[int]) -> tuple[EmbeddedPrefix, list[int]]:
        """The prefix of a row whose text ends with these tokens, and its ids, in which the processor repeated the
        placeholders."""
        import torch

        inputs = self.media.batch([row], [decoded], side="right", model=self.model)
        with torch.inference_mode(), self._cached_features(row.digests):
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

    @contextmanager
    def _cached_features(self, digests: str) -> Iterator[None]:
        """Inside this context the encoders run once for media that they have just encoded."""
        if digests != self._media:
            self._media, self._features = digests, {}
        owner = getattr(self.model, "model", self.model)
        encoders = {name: getattr(owner, name) for name in _ENCODERS if hasattr(owner, name)}
        own = {name: vars(owner)[name] for name in encoders if name in vars(owner)}
        running: list[str] = []  # an encoder may use another one

        def cached(name: str, encoder: Callable[..., Any]) -> Callable[..., Any]:
            calls = count()

            def encode(*positional: Any, **named: Any) -> Any:
                if running:
                    return encoder(*positional, **named)
                call = (name, next(calls))
                if call not in self._features:
                    running.append(name)
                    self._features[call] = encoder(*positional, **named)
                    running.pop()
                return self._features[call]

            return encode

        for name, encoder in encoders.items():
            setattr(owner, name, cached(name, encoder))
        try:
            yield
        finally:
            for name in encoders:
                delattr(owner, name)
            vars(owner).update(own)

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
