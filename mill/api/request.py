"""A request to a model: made by tasks, passed through the executor to backends."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from json.encoder import encode_basestring
from typing import Any

from mill.api.errors import SpecError, UnknownName
from mill.api.message import NO_LABELS, Context, Labels, Media, Message
from mill.api.response import Response
from mill.api.tools import Tool

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


@dataclass(frozen=True)
class _Numeric:
    """A decoding option that is a number: between `least` and `most`, and whole where `whole` says so."""

    least: float
    most: float = math.inf
    whole: bool = False

    def read(self, name: str, value: Any) -> int | float:
        number = _as_number(value)
        if number is None:
            raise SpecError(f"the decoding option {name}={_shown(value)} is not a number")
        if self.whole and number != int(number):
            raise SpecError(f"the decoding option {name}={_shown(value)} is not a whole number")
        if not self.least <= number <= self.most:
            raise SpecError(f"the decoding option {name}={_shown(value)} is not between {self.least:g} and {self.most:g}")
        return int(number) if self.whole else number


LARGEST_SEED = 2**63 - 1
_NUMBERS = {
    "max_gen_toks": _Numeric(1, 10**9, whole=True),
    "temperature": _Numeric(0, 1e6),
    "top_p": _Numeric(0, 1),
    "top_k": _Numeric(0, 10**9, whole=True),
    "repetition_penalty": _Numeric(1e-6, 1e6),
    "logprobs": _Numeric(1, 20, whole=True),
    "seed": _Numeric(-LARGEST_SEED, LARGEST_SEED, whole=True),
}
NUMBER_OPTIONS = frozenset(_NUMBERS)
_OPTIONS = ("until", *_NUMBERS, "do_sample")


@dataclass(frozen=True)
class Request:
    """One request of one kind. What is asked does not change.

    A `context` of text goes to the model as it is; a tuple of messages goes through the model's chat template.
    `tools` are those that the model may call in its answer.
    `repeats` is the number of responses wanted (the run's, where a task leaves it at 1), `draw` the index of the first;
    neither is part of the content hash.
    """

    kind: str
    context: Context = ""
    continuation: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    labels: Labels = NO_LABELS
    tools: tuple[Tool, ...] = ()
    repeats: int = 1
    draw: int = 0
    resps: list[Response] = field(default_factory=list, init=False, compare=False, repr=False)
    """What the public functions of a model answered to it. Runs keep responses by key instead."""

    @cached_property
    def content_hash(self) -> str:
        """The same for equal content in any process, on any machine: the digest of its parts as a JSON list."""
        digest = _digest_start(self.kind, self.context).copy()
        parts: list[Any] = [dict(self.options), [self.labels.digest] if self.labels else []]
        if self.tools:
            parts.append([tool.to_dict() for tool in self.tools])
        rest = _encode(parts) if self.options or self.labels or self.tools else "[{}, []]"
        digest.update(f", {encode_basestring(self.continuation)}, {rest[1:]}".encode("utf-8", "surrogatepass"))
        found: str = digest.hexdigest()
        return found

    @property
    def key(self) -> str:
        """The content hash, with the draw where it is not the first."""
        return f"{self.content_hash}#{self.draw}" if self.draw else self.content_hash

    @property
    def deterministic(self) -> bool:
        return not self.options.get("temperature")

    @property
    def seed(self) -> int:
        """The seed of a sampled answer: it depends on the run's seed, the content and the draw only."""
        text = f"{self.options.get('seed', 0)}/{self.key}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")

    @property
    def text(self) -> str:
        """The prompt as readable text."""
        if isinstance(self.context, str):
            return self.context
        return "\n".join(f"<{message.role}> {message.text_with_calls}" for message in self.context)

    @property
    def continues_answer(self) -> bool:
        """Whether the dialog ends with the start of an answer, which the model continues (assistant prefill)."""
        return not isinstance(self.context, str) and bool(self.context) and self.context[-1].role == "assistant"

    @property
    def media(self) -> list[Media]:
        """The images, videos and audio of the dialog, in order."""
        return [] if isinstance(self.context, str) else [media for message in self.context for media in message.media]

    @property
    def prefix_order(self) -> tuple[list[str], str]:
        """In this order requests with the same media follow each other, and among them those with a shared prefix."""
        return [media.digest for media in self.media], self.text

    def clones(self) -> list[Request]:
        """One request for each of the `repeats` draws."""
        if self.repeats == 1:
            return [self]
        return [replace(self, repeats=1, draw=self.draw + k) for k in range(self.repeats)]


def generation_options(**given: Any) -> dict[str, Any]:
    """Decoding options in one spelling: `until`, `max_gen_toks`, `temperature`, and the others that were given.

    A temperature above zero means sampling, `do_sample` alone means temperature 1, and `do_sample=false` means greedy.
    `logprobs` is the number of top_logprobs at every position of the answer.
    """
    options = {option_name(name): _read(name, value) for name, value in given.items() if value is not None}
    options.setdefault("until", ())
    options.setdefault("max_gen_toks", DEFAULT_MAX_GEN_TOKS)
    sampled = options.pop("do_sample", None)
    if sampled is not None and not isinstance(sampled, bool):
        raise SpecError(f"the decoding option do_sample={_shown(sampled)} is not true or false")
    options["temperature"] = 0.0 if sampled is False else float(options.get("temperature", 1.0 if sampled else 0.0))
    if not options["temperature"]:
        for name in ("seed", "top_p", "top_k"):
            options.pop(name, None)
    return options


def option_name(name: object) -> str:
    """A decoding option's canonical name, from any of its aliases; an unknown one is refused."""
    found = _OPTION_ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(found, str) or found not in _OPTIONS:
        raise UnknownName("decoding option", str(name), _OPTIONS, hint=f"options are {', '.join(_OPTIONS)}")
    return found


def check_options(given: object, what: str) -> None:
    """Refuse decoding options of the wrong type, out of range, or given twice."""
    if not isinstance(given, Mapping):
        raise SpecError(f"{what} must be a mapping of decoding options, not {_shown(given)}")
    names = [option_name(name) for name in given]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise SpecError(f"{what} gives {twice} twice: {', '.join(n for n in given if option_name(n) == twice)}")
    generation_options(**given)


def _read(name: str, value: Any) -> Any:
    """The value of an option; messages name it as it was given."""
    canonical = option_name(name)
    if canonical == "until":
        return _stops(name, value)
    return _NUMBERS[canonical].read(name, value) if canonical in _NUMBERS else value


def _stops(name: str, until: Any) -> tuple[str, ...]:
    stops = (until,) if isinstance(until, str) else until
    if not isinstance(stops, (list, tuple)) or not all(isinstance(stop, str) for stop in stops):
        raise SpecError(f"the decoding option {name}={_shown(until)} must be a text or a list of texts")
    if "" in stops:
        raise SpecError(
            f"the decoding option {name} has an empty string, which every answer contains; "
            "an empty list means no stop strings"
        )
    return tuple(stops)


def _as_number(value: Any) -> int | float | None:
    """A number, or a string that spells one; a bool is not a number."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                value = kind(value)
                break
            except ValueError:
                continue
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _shown(value: Any) -> str:
    """A value in a message, shortened."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


@lru_cache(maxsize=2)  # the choices of a question follow each other, and have one context
def _digest_start(kind: str, context: Context) -> Any:
    """The state of a digest after the first two parts of a request as a JSON list."""
    return hashlib.blake2b(_encode([kind, context])[:-1].encode("utf-8", "surrogatepass"), digest_size=16)


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_dict()
    raise TypeError(f"a request option of type {type(value).__name__} cannot be hashed: {value!r}")


_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=_plain).encode
"""JSON that is the same for equal values."""


# Reasoning before an answer: text between two tags, which is shown and counted, and never scored.

EFFORTS = ("none", "low", "medium", "high")
OFF = "none"


@dataclass(frozen=True)
class ReasoningTags:
    """What a model writes before and after its reasoning."""

    start: str = "<think>"
    end: str = "</think>"

    def split(self, text: str, *, opened: bool | None = None) -> tuple[str | None, str]:
        """The reasoning, None where there is none, and the answer after it.

        Reasoning starts with the text, or before it where the prompt `opened` it. Where the prompt is not known (None), an
        end without a start shows that it did. Without an end all of the text is reasoning, and the answer is empty.
        """
        started = text.lstrip().startswith(self.start)
        before, ended, after = text.partition(self.end)
        if started:
            before = before.lstrip()[len(self.start) :]
        elif opened is False or (opened is None and (not ended or self.start in before)):
            return None, text
        return before.strip(), after.lstrip()

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends inside of reasoning, as chat templates of some models do."""
        return prompt.rstrip().endswith(self.start)


DEFAULT_TAGS = ReasoningTags()


def tags_of(request: Request) -> ReasoningTags | None:
    """The tags of the reasoning; None where the user wants it in the answer."""
    given = request.options.get("reasoning_tags")
    return DEFAULT_TAGS if given is None else ReasoningTags(*given) if given else None


def read_tags(given: Any) -> tuple[str, ...]:
    """The tags of an option: `<think>,</think>` or a list of two; `none` or an empty list means that nothing is split."""
    if isinstance(given, str):
        given = [] if given.strip().lower() == OFF else [part.strip() for part in given.split(",")]
    if not isinstance(given, (list, tuple)) or not all(isinstance(part, str) and part for part in given):
        raise SpecError(f"reasoning_tags={str(given)[:60]}: give two texts such as <think>,</think>, or none")
    if len(given) not in (0, 2) or len(set(given)) < len(given):
        raise SpecError(f"reasoning_tags={','.join(given)[:60]}: give two different texts, or none")
    return tuple(given)
