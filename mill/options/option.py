"""One option: how its definition, a field of a msgspec Struct, becomes checks, messages and help texts; and what values are
as text: lists, pairs, budgets, prices."""

from __future__ import annotations

import functools
import math
import numbers
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from mill.api.budget import Price
from mill.api.consent import Consent, consenting
from mill.api.errors import MillError, SpecError, UnknownName
from mill.api.registry import own_names
from mill.models.spec.open import guess
from mill.models.spec.parse import split_list
from mill.support.clocks import own_clock
from mill.support.files import is_file
from mill.support.secrets import is_secret, redact_text
from mill.support.terminal import own_warnings

# Options that commands had, with what to use instead.
REMOVED = {
    "eval": {
        "reuse": "was removed, because its estimates could be wrong: use --sample N or --precision P alone",
        **dict.fromkeys(
            ("engine", "executor", "address", "gpus_per_worker"),
            "was removed with Ray: torchrun starts ranks, --base_url takes several servers, mill schedule submits jobs",
        ),
    },
    "schedule": {
        "forget": "was removed: to forget a job, delete its file in schedule/cells of the output folder",
        "local": "was removed: mill eval MODELS TASKS --n_shots N runs models one after another on this machine",
    },
    "show": {"format": "was removed: samples/TASK.jsonl and manifest.json in the folder of the run are JSON"},
}


@dataclass(frozen=True)
class Hints:
    """What a type cannot express. A field carries it as `Meta(extra=hints(...))`."""

    aliases: tuple[str, ...] = ()
    """Second names."""
    from_text: Callable[[str], Any] | None = None
    """Reads a text that represents a value of another type; used in run files and Python too."""
    check: Callable[[Any], None] | None = None
    """Raises MillError for a value that has the right type and still cannot be used."""
    default: str = ""
    """The default, where the value itself does not explain it."""
    expected: str = ""
    """The accepted values in words, where the type does not explain them."""
    metavar: str = ""
    """What help texts show for the value, where the type does not explain it."""
    off: str = ""
    """The opposite of a flag, such as no_chat."""
    positional: bool = False
    """Whether it is an argument of a command, not an option."""
    paths: int = 0
    """How many paths follow the option, where it takes several."""


def hints(**given: Any) -> dict[str, Any]:
    return {"hints": Hints(**given)}


@dataclass(frozen=True)
class Option:
    """An option of a Struct. `read` takes values as YAML and Python have them, `read_text` what a user types."""

    name: str
    kind: Any
    default: Any
    description: str
    hints: Hints
    info: inspect.Type

    @property
    def names(self) -> tuple[str, ...]:
        """Every accepted spelling, the first one being the name."""
        return (self.name, *self.hints.aliases)

    @property
    def is_flag(self) -> bool:
        return isinstance(self.info, inspect.BoolType)

    @property
    def is_list(self) -> bool:
        return isinstance(self.info, inspect.ListType)

    @property
    def help(self) -> str:
        """The description with the default, where there is one worth showing."""
        default = self.hints.default
        if not default and self.default not in (None, "", [], {}, msgspec.NODEFAULT) and not isinstance(self.default, bool):
            default = f"{self.default:g}" if isinstance(self.default, float) else str(self.default)
        return f"{self.description} [default: {default}]" if default else self.description

    @property
    def metavar(self) -> str:
        if self.hints.metavar:
            return self.hints.metavar
        if isinstance(self.info, inspect.LiteralType):
            return f"[{'|'.join(map(str, self.info.values))}]"
        names: dict[type, str] = {inspect.IntType: "INTEGER", inspect.FloatType: "NUMBER"}
        return names.get(type(self.info), "TEXT")

    def read(self, value: Any, where: str) -> Any:
        """A checked value. `where` starts the message about one that is refused."""
        plain = _plain(value)
        if isinstance(plain, str) and self.hints.from_text is not None:
            if not plain.strip():
                raise self._refusal(value, where)
            plain = self._converted(self.hints.from_text, plain, where)
        if isinstance(plain, float) and not math.isfinite(plain):
            raise self._refusal(value, where)
        try:
            checked = msgspec.convert(plain, self.kind)
        except (msgspec.ValidationError, OverflowError, RecursionError, UnicodeError) as error:
            raise self._wrong_type(value, where) from error
        if self.hints.check is not None:
            self._converted(self.hints.check, checked, where)
        return checked

    def read_text(self, text: str, where: str) -> Any:
        """The same for a word of the command line, where numbers are texts as well."""
        types = _number_types(self.info)
        if not types or self.hints.from_text is not None or text in _literals(self.info):
            return self.read(text, where)
        for number in types if _NUMBER.fullmatch(text) else ():
            try:
                return self.read(number(text), where)
            except ValueError:
                continue
        raise self._refusal(text, where)

    def _converted(self, convert: Callable[[Any], Any], value: Any, where: str) -> Any:
        try:
            return convert(value)
        except MillError as error:
            raise SpecError(f"{where}: {error}") from error
        except ValueError as error:
            raise self._refusal(value, where) from error

    def _refusal(self, value: Any, where: str) -> SpecError:
        return SpecError(f"{where} must be {self.expected}, not {shown(value)}")

    def _wrong_type(self, value: Any, where: str) -> SpecError:
        """The refusal of a value that YAML or Python gives. "5" looks right where a number is expected."""
        takes_numbers = self.is_flag or (_number_types(self.info) and self.hints.from_text is None)
        is_quoted = isinstance(value, str) and takes_numbers
        return SpecError(f"{where} must be {self.expected}, not {'the text ' * bool(is_quoted)}{shown(value)}")

    @property
    def expected(self) -> str:
        if self.hints.expected:
            return self.hints.expected
        return f"a comma-separated text or {_expected(self.info)}" if self.is_list else _expected(self.info)


@functools.cache
def options_of(kind: type[msgspec.Struct]) -> dict[str, Option]:
    """The options that a Struct defines, by name, in the order of its fields."""
    return {field.name: _option(field) for field in msgspec.structs.fields(kind)}


def find_option(name: str, options: Mapping[str, Option], what: str) -> Option:
    """The option of any of its spellings, with - or _; an unknown one is refused with the nearest names."""
    spelled = name.replace("-", "_")
    for option in options.values():
        if spelled in option.names:
            return option
    if spelled in REMOVED["eval"]:
        raise SpecError(f"{name} {REMOVED['eval'][spelled]}")
    known = [spelling for option in options.values() for spelling in option.names]
    raise UnknownName(what, name, known, hint=f"options are {', '.join(sorted(options))}")


def read_all(
    given: Mapping[Any, Any], options: Mapping[str, Option], what: str, suffix: str = "", skip: Iterable[str] = ()
) -> dict[str, Any]:
    """Checked values by option name. None counts as not given; the values of `skip` are taken as they are."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        option = find_option(str(name), options, what)
        if option.name in values:
            raise SpecError(f"{option.name}{suffix} is given twice")
        if option.name in skip or value is None:
            values[option.name] = value
        else:
            values[option.name] = option.read(value, f"{name}{suffix}")
    return {name: value for name, value in values.items() if value is not None}


def shown(value: Any) -> str:
    """A value in a message: short, without secrets, and also built in short time where a value is huge."""
    text = _REPR.repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


class _SafeRepr(reprlib.Repr):
    """Shows no values of names that look like those of secrets."""

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        first = islice(x.items(), self.maxdict + 1)  # one more, so that the dots are shown
        return super().repr_dict({name: "***" if is_secret(str(name)) else value for name, value in first}, level)

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(redact_text(x[: self.maxstring * 10]), level)


_NUMBER = re.compile(r"[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?")
_REPR = _SafeRepr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxlong, _REPR.maxother = 3, 200, 200, 200
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = 20


def _option(field: msgspec.structs.FieldInfo) -> Option:
    info, description, extra = inspect.type_info(field.type), "", Hints()
    while isinstance(info, (inspect.Metadata, inspect.UnionType)):
        if isinstance(info, inspect.Metadata):
            description = (info.extra_json_schema or {}).get("description", description)
            extra = (info.extra or {}).get("hints", extra)
            info = info.type
            continue
        types = tuple(part for part in info.types if not isinstance(part, inspect.NoneType))
        if len(types) > 1:
            info = inspect.UnionType(types)
            break
        info = types[0]
    default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    return Option(field.name, field.type, default, description, extra, info)


def _plain(value: Any) -> Any:
    """A Python value as YAML would give it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain_number(item) for name, item in value.items()}
    return list(value) if isinstance(value, (tuple, set)) else _plain_number(value)


def _plain_number(value: Any) -> Any:
    """A number of another package, such as numpy's, as Python's own."""
    if isinstance(value, numbers.Real) and type(value).__module__ != "builtins":
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return value


def _number_types(info: inspect.Type) -> list[type[int] | type[float]]:
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    kinds: dict[type, type[int] | type[float]] = {inspect.IntType: int, inspect.FloatType: float}
    return [kinds[type(part)] for part in parts if type(part) in kinds]


def _literals(info: inspect.Type) -> tuple[Any, ...]:
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    return tuple(value for part in parts if isinstance(part, inspect.LiteralType) for value in part.values)


def _expected(info: inspect.Type) -> str:
    """A type in words: "a whole number of at least 1"."""
    if isinstance(info, inspect.UnionType):
        return " or ".join(_expected(part) for part in info.types)
    if isinstance(info, inspect.LiteralType):
        return " or ".join(map(str, info.values))
    if isinstance(info, inspect.IntType):
        return f"a whole number{_range(info)}"
    if isinstance(info, inspect.FloatType):
        return f"a number{_range(info)}"
    if isinstance(info, inspect.StrType):
        return "a text that is not empty" if info.pattern else "a text"
    names: dict[type, str] = {
        inspect.BoolType: "true or false",
        inspect.ListType: "a list of texts",
        inspect.DictType: "a mapping",
    }
    return names[type(info)]


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.gt is not None:
        return f" above {info.gt:g}" + (f" and up to {info.le:g}" if info.le is not None else "")
    if info.ge is None:
        return ""
    return f" from {info.ge} to {info.le}" if info.le is not None else f" of at least {info.ge:g}"


@contextmanager
def one_call(given: Mapping[str, Any]) -> Iterator[None]:
    """What the options allow, the names that their files register, and which warnings were logged end with this context."""
    consent = Consent(**{field.name: given[field.name] for field in fields(Consent) if given.get(field.name)})
    with consenting(consent), own_names(), own_warnings(), own_clock():
        yield


_UNSIGNED = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][0-9]+)?"
_TOKENS = re.compile(rf"({_UNSIGNED})\s*([kKmMbB]?)")
_PARTS = re.compile(rf"({_UNSIGNED})\s*([hms])\s*")
_DOLLARS = re.compile(rf"\$?\s*({_UNSIGNED})")
_MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_FIELDS = {"in": "prompt", "out": "output", "cached": "cached", "reasoning": "reasoning"}
MOST_DOLLARS = 1e6  # for a million tokens


def read_tokens(text: str) -> int:
    """20M, 500k, 1.5B or a plain number."""
    found = _TOKENS.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if found is None:
        raise ValueError(text)
    count = float(found[1]) * _MULTIPLES[found[2].lower()]
    if not math.isfinite(count) or count != int(count):
        raise ValueError(text)
    return int(count)


def read_seconds(text: str) -> float:
    """2h, 90m, 30s, 1h30m or a plain number of seconds."""
    text = text.strip().lower()
    if re.fullmatch(_NUMBER, text):
        return float(text)
    parts = _PARTS.findall(text)
    units = [unit for _, unit in parts]
    if not parts or _PARTS.sub("", text) or units != [unit for unit in _SECONDS if unit in units]:
        raise ValueError(text)
    return sum(float(count) * _SECONDS[unit] for count, unit in parts)


def read_dollars(text: str) -> float:
    """15, 0.50 or $15."""
    found = _DOLLARS.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    return float(found[1])


def check_price(given: Mapping[Any, Any]) -> None:
    """Refuse unknown names, values that are no price, and a price of one direction alone."""
    pairs = parse_pairs(given)
    for name, value in pairs.items():
        if name not in _FIELDS:
            raise SpecError(f"{str(name)[:40]!r} has no price: names are {', '.join(_FIELDS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_DOLLARS:  # nor NaN
            raise SpecError(f"{name}={str(value)[:40]} is no price in dollars for a million tokens")
    missing = [name for name in ("in", "out") if name not in pairs]
    if missing:
        raise SpecError(f"{missing[0]}= is missing: give both, such as in=0.15,out=0.60 (dollars for a million tokens)")


def make_price(given: Mapping[str, Any]) -> Price | None:
    """The price of an option; None where it is not given."""
    pairs = parse_pairs(given)
    return Price(**{_FIELDS[name]: float(value) for name, value in pairs.items()}) if pairs else None


_STOP_STRINGS = ("until", "stop")  # their values stay texts, also where they look like numbers


def split_names(text: str) -> list[str]:
    """A comma-separated text; commas inside brackets belong to a spec, and those in the name of a file to the name.

    Only a file that is given alone may have commas: two names with a comma between could be one name as well.
    """
    return [text] if Path(text).suffix and is_file(text) else split_list(text)


def read_list(text: str) -> list[str]:
    """The same, of at least one name."""
    parts = split_names(text)
    if not parts:
        raise ValueError("an empty list")
    return parts


def parse_pairs(text: str | Mapping[Any, Any]) -> dict[str, Any]:
    """`key=value,key=value` as typed values. Quoted values may contain anything; stop strings may be a list: until=[a,b]."""
    if isinstance(text, Mapping):
        for name in text:
            if not isinstance(name, str):
                raise SpecError(f"{name!r} is not the name of an option")
        return dict(text)
    pairs: dict[str, Any] = {}
    for part in split_list(text):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SpecError(f"{part!r} is not key=value")
        if name in pairs:
            raise SpecError(f"{name} is given twice")
        pairs[name] = _stop_strings(value.strip()) if name in _STOP_STRINGS else _value(value.strip())
    return pairs


def format_pairs(pairs: Mapping[str, Any]) -> str:
    """The inverse of `parse_pairs`."""
    return ",".join(f"{name}={_format(value)}" for name, value in pairs.items())


def _format(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_format, value))}]"
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    escaped = re.sub(r"""[\[\],"']""", lambda sign: f"\\x{ord(sign[0]):02x}", value.encode("unicode_escape").decode("ascii"))
    return f'"{escaped}"'


def _stop_strings(text: str) -> str | list[str]:
    parts = split_list(text[1:-1], quoted=True) if text.startswith("[") and text.endswith("]") else [text]
    unquoted = [part for part in parts if _unquoted(part) == part]
    if any(sign in part for part in unquoted for sign in "[]"):
        raise SpecError(
            f"the stop strings {text!r} have brackets that do not match: write until=[a,b], or quote them: until='['"
        )
    return [_unquoted(part) for part in parts] if text.startswith("[") else _unquoted(text)


def _value(text: str) -> Any:
    plain = _unquoted(text)
    return guess(text) if plain == text else plain


def _unquoted(text: str) -> str:
    """A quoted text without its quotes and with its escapes decoded; any other text unchanged."""
    if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        return text
    try:
        return text[1:-1].encode().decode("unicode_escape") if text.isascii() else text[1:-1]
    except ValueError as error:
        raise SpecError(f"{text} has an invalid escape") from error
