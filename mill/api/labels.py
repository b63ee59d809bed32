"""The candidates that a classifier or a retriever ranks, shared by all requests of a task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from mill.api.message import Media


@dataclass(frozen=True, eq=False)
class Labels:
    """Names in a fixed order. A text tower reads `texts` instead where they are given (names are unique, texts need not
    be), each put into every one of `templates` ("a photo of a {c}."); without templates the model uses its own. `media`
    are the candidates themselves where they are images.

    Equal labels have equal digests, which are computed once: a thousand classes are not hashed for every image.
    """

    names: tuple[str, ...]
    texts: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    media: tuple[Media, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"the label {twice!r} is there twice")
        for what, given in (("texts", self.texts), ("images", self.media)):
            if given and len(given) != len(self.names):
                raise ValueError(f"{len(given)} {what} for {len(self.names)} names")

    @cached_property
    def digest(self) -> str:
        parts = [self.names, self.texts, self.templates, [media.digest for media in self.media]]
        return hashlib.blake2b(json.dumps(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Labels) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


NO_LABELS = Labels(())
