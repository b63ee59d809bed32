"""A question to a model: what passes from tasks through the executor to backends."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mill.api.errors import SpecError, UnknownName
from mill.api.labels import NO_LABELS, Labels
from mill.api.message import Context, Media, Message
from mill.api.response import Response

GENERATE = "generate_until"
LOGLIKELIHOOD = "loglikelihood"
ROLLING = "loglikelihood_rolling"
MULTI_ROUND = "generate_until_multi_round"
ZERO_SHOT = "zero_shot_classify"
CLASSIFY = "classify"
KINDS = (GENERATE, LOGLIKELIHOOD, ROLLING, MULTI_ROUND, ZERO_SHOT, CLASSIFY)

DEFAULT_MAX_GEN_TOKS = 256
ALL = "all"  # as `logprobs` of a scored continuation: the whole vocabulary
_OPTION_ALIASES = {
    "max_new_tokens": "max_gen_toks",
    "max_tokens": "max_gen_toks",
    "stop": "until",
}


_OPTIONS = ("until", "max_gen_toks", "temperature", "top_p", "top_k", "repetition_penalty", "do_sample", "seed", "logprobs")
_RANGES = {
    "max_gen_toks": (1, math.inf),
    "temperature": (0, math.inf),
    "top_p": (0, 1),
    "top_k": (0, math.inf),
    "repetition_penalty": (0, math.inf),
    "logprobs": (1, 20),
}


@dataclass(frozen=True)
class Request:
    """One immutable question of one kind.

    A `context` of text goes to the model as it is; a tuple of messages goes through the model's chat template.
    `repeats` asks for that many answers, `draw` is the number of the first of them; both are outside the content hash.
    """

    kind: str
    context: Context = ""
    continuation: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    labels: Labels = NO_LABELS
    repeats: int = 1
    draw: int = 0
    resps: list[Response] = field(default_factory=list, compare=False, repr=False)

    @cached_property
    def content_hash(self) -> str:
        """The same for equal questions in any process, on any machine."""
        parts: list[Any] = [self.kind, self.context, self.continuation, dict(self.options)]
        parts.append([self.labels.digest] if self.labels else [])
        text = _encode(parts)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    @property
    def key(self) -> str:
        """The content hash, with the draw where it is not the first."""
        return f"{self.content_hash}#{self.draw}" if self.draw else self.content_hash

    @property
    def deterministic(self) -> bool:
        return not self.options.get("temperature")

    @property
    def seed(self) -> int:
        """The seed of a sampled answer: it depends on the run's seed, the question and the draw, on nothing else."""
        text = f"{self.options.get('seed', 0)}/{self.key}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")

    @property
    def text(self) -> str:
        """The prompt as a person reads it."""
        if isinstance(self.context, str):
            return self.context
        return "\n".join(f"<{message.role}> {message.text}" for message in self.context)

    @property
    def media(self) -> list[Media]:
        """The images, videos and sounds of the dialog, in their order."""
        return [] if isinstance(self.context, str) else [media for message in self.context for media in message.media]

    def clones(self) -> list[Request]:
        """One request for each of the `repeats` draws."""
        if self.repeats == 1:
            return [self]
        return [replace(self, repeats=1, draw=self.draw + k, resps=[]) for k in range(self.repeats)]


def generation_options(**given: Any) -> dict[str, Any]:
    """Decoding options in one spelling: `until`, `max_gen_toks`, `temperature`, and whatever else was given.

    A temperature above zero means sampling, `do_sample` alone means temperature 1, and `do_sample=false` means greedy.
    `logprobs` asks for the log-probabilities of so many of the likeliest tokens at every place of the answer.
    """
    options = {_OPTION_ALIASES.get(name, name): value for name, value in given.items() if value is not None}
    for name in options:
        if name not in _OPTIONS:
            raise UnknownName("decoding option", name, _OPTIONS, hint=f"options are {', '.join(_OPTIONS)}")
    until = options.get("until", ())
    options["until"] = (until,) if isinstance(until, str) else tuple(until)
    options["max_gen_toks"] = int(_as_number("max_gen_toks", options.get("max_gen_toks", DEFAULT_MAX_GEN_TOKS)))
    sampled = options.pop("do_sample", None)
    temperature = _as_number("temperature", options.get("temperature", 1.0 if sampled else 0.0))
    options["temperature"] = 0.0 if sampled is not None and not sampled else temperature
    for name, (least, most) in _RANGES.items():
        if name in options and not least <= _as_number(name, options[name]) <= most:
            raise SpecError(f"the decoding option {name}={options[name]} is not between {least:g} and {most:g}")
    if not options["temperature"]:
        for name in ("seed", "top_p", "top_k"):
            options.pop(name, None)
    return options


def _as_number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise SpecError(f"the decoding option {name}={value} is not a number")
    return number


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_dict()
    raise TypeError(f"a request option of type {type(value).__name__} cannot be hashed: {value!r}")


_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=_plain).encode
