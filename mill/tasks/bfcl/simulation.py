"""The simulated APIs of BFCL's multi-turn questions: classes of bfcl-eval, whose source code is loaded from that package.

Only the modules of these classes are executed, outside of `sys.modules`. A call of the model is a method and values of JSON:
nothing that the model wrote is executed as code. Calls may take any time and memory, so they run in worker processes: one
gets the source code of the APIs as a line of JSON, then one job after another, each with one line as its answer. One that
takes too long is ended, and a new one takes the next job.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import decimal
import importlib
import inspect
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
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


Compiled = Mapping[str, CodeType]
"""The modules of the APIs."""


def compile_apis(sources: Mapping[str, str]) -> Compiled:
    try:
        compiled = {name: compile(text, f"{CODE}/{name}.py", "exec") for name, text in sources.items()}
        namespace = ApiNamespace(compiled)
        for class_name in MODULES:
            namespace.class_of(class_name)
    except Exception as error:  # such as a package that is not installed
        raise DataError(f"the simulated APIs of bfcl-eval cannot be loaded: {describe(error)}") from error
    return compiled


class ApiNamespace:
    """Modules of their own, because the APIs change variables of theirs: dialogs that run at the same time share nothing.

    Only instances of the same namespace can be equal.
    """

    def __init__(self, compiled: Compiled) -> None:
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
            with decimal.localcontext():  # whose precision a method sets
                return _as_text(self._methods[name](*values, **named))
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


START_S = 60.0  # for a process to start, on a busy machine
MOST_MEMORY = 2 << 30  # bytes

Call = tuple[str, Mapping[str, Any]]


def last_result(code: Compiled, doc: Mapping[str, Any], long_context: bool, calls: Sequence[Call]) -> str:
    """The result of the last call, on new instances that the calls before have changed."""
    simulation = ApiNamespace(code).start(doc, long_context=long_context)
    return [simulation.call(name, (), named) for name, named in calls][-1]


def first_difference(
    code: Compiled, doc: Mapping[str, Any], long_context: bool, turns: Sequence[Sequence[Call] | None]
) -> str:
    """Why the calls of the turns are not as expected; empty where they are. A turn is None where the model called nothing.

    Calls of a turn without expected ones are executed and not judged, as on the leaderboard.
    """
    namespace = ApiNamespace(code)
    own, wanted = (namespace.start(doc, long_context=long_context) for _ in range(2))
    results: list[str] = []
    for number, (turn, expected) in enumerate(zip(turns, doc["ground_truth"], strict=True), 1):
        results += [own.call(name, (), named) for name, named in turn or ()]
        needed = [wanted.call(*expected_call(text)) for text in expected]
        if not needed:
            continue
        if turn is None:
            return f"no call in turn {number}"
        if different := own.difference(wanted):
            return f"{different} is not as expected after turn {number}"
        if missing := Counter(needed) - Counter(results):  # each result of all calls so far counts once
            return f"no call up to turn {number} gave {next(iter(missing))[:200]}"
    return ""


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


class SimulationPool:
    """As many processes as there are jobs at the same time. They end with this process, which closes their input."""

    def __init__(self, sources: Mapping[str, str], timeout: float) -> None:
        self._sources, self.timeout = dict(sources), timeout
        self._idle: queue.LifoQueue[subprocess.Popen[str]] = queue.LifoQueue()

    def run(self, job: Mapping[str, Any]) -> str:
        """The answer to a job; raises TimeoutError, or RuntimeError with what went wrong."""
        try:
            given = json.dumps(job)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"the calls cannot be written as JSON: {error}") from error
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            command, pipe = [sys.executable, "-m", "mill.tasks.bfcl.simulation"], subprocess.PIPE
            nowhere = subprocess.DEVNULL
            worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment, text=True)
            _call(worker, json.dumps(self._sources), START_S)
        answer = _call(worker, given, self.timeout)
        self._idle.put(worker)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return str(answer["answer"])


def _call(worker: subprocess.Popen[str], given: str, timeout: float) -> dict[str, Any]:
    assert worker.stdin is not None and worker.stdout is not None
    answer, started, timer = "", time.monotonic(), threading.Timer(timeout, worker.kill)
    timer.start()
    try:
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(given + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
    finally:
        timer.cancel()
        if not answer:
            worker.kill()
            worker.wait()
    if answer:
        found: dict[str, Any] = json.loads(answer)
        return found
    if time.monotonic() - started >= timeout:
        raise TimeoutError(f"the simulated API took more than {timeout:g} s")
    raise RuntimeError("the process of the simulated APIs ended, perhaps for lack of memory")


def main() -> None:
    _limit_memory()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where what the APIs print goes, too
    code = compile_apis(json.loads(sys.stdin.readline()))
    print("{}", file=output, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        given = (code, job["doc"], job["long_context"])
        try:
            found = last_result(*given, job["calls"]) if "calls" in job else first_difference(*given, job["turns"])
            answer = {"answer": found}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=output, flush=True)  # surrogates are escaped


if __name__ == "__main__":
    main()
