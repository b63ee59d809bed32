"""The simulated APIs of BFCL's multi-turn questions: classes of bfcl-eval, whose source code is loaded from that package.

Only the modules of these classes are executed, outside of `sys.modules`. A call of the model is a method and values of JSON:
nothing that the model wrote is executed as code.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import decimal
import importlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import CodeType, ModuleType
from typing import Any

from mill.api.errors import DataError
from mill.support.terminal import describe

CODE = "eval_checker/multi_turn_eval/func_source_code"
_PACKAGE = f"bfcl_eval.{CODE.replace('/', '.')}."
# Class -> its module. The file that describes its functions has the same name.
MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_STATELESS = ("MathAPI",)
_MOST_DIGITS = 4300  # of a number: as many as Python writes of an integer

Arguments = Mapping[str, Any]


def expected_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name and the values of a call in source code, such as `cd(folder='document')`."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
            if len(named) == len(call.keywords):
                return call.func.id, [ast.literal_eval(value) for value in call.args], named
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    raise ValueError(f"{text[:60]!r} is not a call of a function with plain values")


class ApiCode:
    """The compiled modules of the APIs."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        try:
            self._compiled = {name: compile(text, f"{CODE}/{name}.py", "exec") for name, text in sources.items()}
            namespace = ApiNamespace(self._compiled)
            for class_name in MODULES:
                namespace.class_of(class_name)
        except Exception as error:  # such as a package that is not installed
            raise DataError(f"the simulated APIs of bfcl-eval cannot be loaded: {describe(error)}") from error

    def namespace(self) -> ApiNamespace:
        return ApiNamespace(self._compiled)


class ApiNamespace:
    """Modules of their own, because the APIs change variables of theirs: dialogs that run at the same time share nothing.

    Only instances of the same namespace can be equal.
    """

    def __init__(self, compiled: Mapping[str, CodeType]) -> None:
        self._compiled = compiled
        self._modules: dict[str, ModuleType] = {}

    def class_of(self, name: str) -> type:
        found = getattr(self._module(MODULES[name]), name)
        assert isinstance(found, type)
        return found

    def start(self, doc: Mapping[str, Any], *, long_context: bool) -> Simulation:
        """The APIs of a question in their initial state."""
        instances = {}
        for name in doc["involved_classes"]:
            instances[name] = self.class_of(name)()
            if name not in _STATELESS:
                scenario = deepcopy(doc["initial_config"].get(name, {}))
                instances[name]._load_scenario(scenario, long_context=long_context)
        return Simulation(instances)

    def _module(self, name: str) -> ModuleType:
        if name not in self._modules:
            module = self._modules[name] = ModuleType(name)
            module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
            exec(self._compiled[name], module.__dict__)
        return self._modules[name]

    def _import(self, name: str, *more: Any) -> Any:
        if name.startswith(_PACKAGE):
            return self._module(name.removeprefix(_PACKAGE))
        if name.split(".")[0] == "bfcl_eval":
            raise ImportError(f"{name} is not one of the simulated APIs")
        return _own_mpmath() if name == "mpmath" else builtins.__import__(name, *more)


def _own_mpmath() -> Any:
    """mpmath with a precision of its own: that of the module is one for the whole process."""
    context = importlib.import_module("mpmath.ctx_mp").MPContext()
    context.mp = context
    return context


class Simulation:
    """The instances of a dialog, which its calls change."""

    def __init__(self, instances: Mapping[str, Any]) -> None:
        self.instances = instances
        self._methods = {
            name: method
            for instance in instances.values()
            for name, method in inspect.getmembers(instance, predicate=inspect.ismethod)
            if not name.startswith("_")
        }

    def call(self, name: str, values: Sequence[Any], named: Arguments) -> str:
        """The result of a call, in the words of the leaderboard, also where it fails."""
        try:
            if name not in self._methods:
                raise NameError(f"name {name!r} is not defined")
            json.dumps([values, named], allow_nan=False, default=str)
            with contextlib.suppress(TypeError):  # other arguments than it takes: the call itself says so
                _refuse_long_numbers(name, inspect.signature(self._methods[name]).bind(*values, **named).arguments)
            with decimal.localcontext():  # whose precision a method sets
                return _as_text(self._methods[name](*values, **deepcopy(dict(named))))  # a method may change a list
        except Exception as error:
            return f"Error during execution: {error}"

    def has(self, name: str) -> bool:
        return name in self._methods

    def difference(self, other: Simulation) -> str:
        """The first attribute that differs from that of another dialog with the same APIs; empty where there is none."""
        for name, instance in self.instances.items():
            for attribute, value in vars(other.instances[name]).items():
                if not attribute.startswith("_") and not _equal(getattr(instance, attribute, None), value):
                    return f"{name}.{attribute}"
        return ""


def _refuse_long_numbers(name: str, named: Arguments) -> None:
    """Some methods of MathAPI compute as many digits as the model wants, and Python does nothing else until they are done.

    An integer with more digits could not be written as a text anyway.
    """
    wanted = 0.0
    if name in ("logarithm", "square_root"):
        wanted = _number(named.get("precision"))
    elif name == "round_number":
        wanted = -_number(named.get("decimal_places"))
    elif name == "power" and isinstance(base := named.get("base"), int) and isinstance(named.get("exponent"), int):
        wanted = _number(named["exponent"]) * math.log10(max(abs(base), 1))
    if wanted > _MOST_DIGITS:
        raise ValueError(f"Exceeds the limit ({_MOST_DIGITS} digits) of numbers")


def _number(value: Any) -> float:
    """A number, also one in a text, as the methods read it; 0 for other values, which they refuse."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _as_text(result: Any) -> str:
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except Exception:  # of a number of mpmath, for example
            return str(result)
    return str(result)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except RecursionError:  # a directory that is in itself
        return False
