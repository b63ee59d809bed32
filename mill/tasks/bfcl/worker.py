"""A process that runs the simulated APIs, because calls of a model may take any time and memory. `process.py` starts it.

It gets the source code of the APIs as JSON, then one job after another, each with one answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from mill.sandbox.worker import LENGTH_BYTES
from mill.tasks.bfcl.simulation import ApiCode, expected_call

MOST_MEMORY = 2 << 30  # bytes

Call = tuple[str, Mapping[str, Any]]


def last_result(code: ApiCode, doc: Mapping[str, Any], long_context: bool, calls: Sequence[Call]) -> str:
    """The result of the last call, on new instances that the calls before have changed."""
    simulation = code.namespace().start(doc, long_context=long_context)
    return [simulation.call(name, (), named) for name, named in calls][-1]


def first_difference(
    code: ApiCode, doc: Mapping[str, Any], long_context: bool, turns: Sequence[Sequence[Call] | None]
) -> str:
    """Why the calls of the turns are not as expected; empty where they are. A turn is None where the model called nothing.

    Calls of a turn without expected ones are executed and not judged, as on the leaderboard.
    """
    namespace = code.namespace()
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
        if missing := _missing(needed, results):
            return f"no call up to turn {number} gave {missing[0][:200]}"
    return ""


def _missing(needed: Sequence[str], results: Sequence[str]) -> list[str]:
    """The expected results that are not among those of all calls so far, each of which counts once."""
    left = list(results)
    missing = []
    for result in needed:
        if result in left:
            left.remove(result)
        else:
            missing.append(result)
    return missing


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def main() -> None:
    _limit_memory()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # where what the APIs print goes, too
    code = ApiCode(_receive())
    _send(output, {})
    while job := _receive():
        given = (code, job["doc"], job["long_context"])
        try:
            found = last_result(*given, job["calls"]) if "calls" in job else first_difference(*given, job["turns"])
            answer = {"answer": found}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _send(output, answer)


def _receive() -> Any:
    length = int.from_bytes(sys.stdin.buffer.read(LENGTH_BYTES), "big")
    return json.loads(sys.stdin.buffer.read(length)) if length else None


def _send(output: IO[bytes], answer: Mapping[str, str]) -> None:
    data = json.dumps(answer).encode()  # surrogates are escaped
    output.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    output.flush()


if __name__ == "__main__":
    main()
