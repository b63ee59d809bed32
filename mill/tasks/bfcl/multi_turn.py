"""Multi-turn categories of BFCL: the model calls functions of simulated APIs, and what they did is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from mill.api.errors import DataError
from mill.api.message import Message
from mill.api.request import MULTI_ROUND, Request
from mill.api.response import Response
from mill.api.task import MOST, RenderSettings, Sample
from mill.api.tools import MOST_CALLS, TIMED_OUT, Tool, ToolCall
from mill.support.terminal import describe
from mill.tasks.agent import tool_turns
from mill.tasks.bfcl.checker import PYTHON, tools_of
from mill.tasks.bfcl.questions import CallTask, read_code, read_dialogs, spelled, turn_messages, with_system_prompt
from mill.tasks.bfcl.simulation import ApiCode, SimulationPool

DIALOGS = [f"multi_turn_{name}" for name in ("base", "miss_func", "miss_param", "long_context")]
MOST_STEPS = 20  # of a turn, as on the leaderboard: the dialog ends at another response with calls
CALL_S = 20.0  # for a call with those before it, and for a verdict
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
_NOT_EXECUTED = "not executed, because the arguments of another call are not a JSON object"


class MultiTurnTask(CallTask):
    """Each turn leaves the APIs in the expected state and has the expected results of calls."""

    kind = MULTI_ROUND
    max_rounds = 200  # more than the turns of any dialog with all of their steps
    max_tool_output = MOST  # results are long in the category long_context

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.long_context = "long_context" in name
        self._verdicts: dict[Any, str] = {}

    @cached_property
    def _apis(self) -> SimulationPool:
        sources = read_code(self.category_name)
        self._code = ApiCode(sources)
        return SimulationPool(sources, CALL_S)

    def configure(self, settings: RenderSettings) -> None:
        """Loads the APIs: calls and scores need them, also where a recorded run is scored again."""
        _ = self._apis

    def prepare(self, samples: Sequence[Sample], settings: RenderSettings) -> None:
        """Start every dialog once: data that does not fit the APIs is refused before the run."""
        namespace = self._code.namespace()
        for sample in samples:
            try:
                simulation = namespace.start(sample.doc, long_context=self.long_context)
            except Exception as error:
                raise DataError(f"{self.name}: the APIs of {sample.id} cannot start: {describe(error)}") from error
            unknown = [one["name"] for one in sample.doc["function"] if not simulation.has(one["name"])]
            if unknown:
                raise DataError(f"{self.name}: the APIs of {sample.id} do not have the function {unknown[0]!r}")

    def samples(self) -> Sequence[Sample]:
        return [Sample(row["id"], row) for row in read_dialogs(self.category_name)]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [self._round(sample, settings, 0, _user_messages(sample, 0))]

    def _round(self, sample: Sample, settings: RenderSettings, turn: int, messages: tuple[Message, ...]) -> Request:
        return Request(
            MULTI_ROUND,
            context=with_system_prompt(messages, settings.system_prompt),
            options=settings.options(max_gen_toks=4096),
            tools=_tools(sample.doc, turn),
        )

    def next_round(self, sample: Sample, settings: RenderSettings, responses: Sequence[Response]) -> Request | None:
        """The results of calls, or the next message of the user after a response without calls."""
        turns = split_turns(responses)
        if len(turns) > len(sample.doc["question"]) or len(turns[-1]) > MOST_STEPS or _timed_out(responses[-1]):
            return None
        messages: tuple[Message, ...] = ()
        number = 0
        for index, turn in enumerate(turns):
            messages += _user_messages(sample, index)
            for response in turn:
                messages += tuple(tool_turns(response, number))
                number += 1
        return self._round(sample, settings, len(turns) - 1, messages)

    def tools(self, sample: Sample) -> Sequence[Tool]:
        """All functions: as on the leaderboard, one that the model does not have yet is executed, too."""
        return tools_of(sample.doc["function"], PYTHON)

    def call_tool(self, sample: Sample, call: ToolCall, responses: Sequence[Response]) -> str:
        """The APIs have no state between two calls of this: it follows from the calls before, on new instances."""
        *before, last = responses
        if not _is_step(last):
            return _NOT_EXECUTED
        if _timed_out(last):
            raise TimeoutError("not executed, because an earlier call took too long")
        begun = replace(last, tool_calls=last.tool_calls[: len(last.tool_results)])
        calls = [earlier for response in (*before, begun) for earlier in _executed(response)]
        return self._apis.run({**self._job(sample), "calls": [_plain(one) for one in (*calls, call)]})

    def _job(self, sample: Sample) -> dict[str, Any]:
        needed = ("involved_classes", "initial_config", "ground_truth")
        return {"doc": {name: sample.doc.get(name) for name in needed}, "long_context": self.long_context}

    def target(self, sample: Sample) -> Any:
        return sample.doc["ground_truth"]

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str:
        """The calls of each turn, in their order."""
        turns = ([call for response in turn for call in response.tool_calls] for turn in _begun(responses))
        return "; ".join(f"[{', '.join(map(spelled, calls))}]" for calls in turns)

    def wrong(self, sample: Sample, responses: Sequence[Response]) -> str:
        """Each dialog is executed once."""
        key = (sample.id, tuple(_fingerprint(response) for response in responses))
        if key not in self._verdicts:
            self._verdicts[key] = self._judged(sample, responses)
        return self._verdicts[key]

    def _judged(self, sample: Sample, responses: Sequence[Response]) -> str:
        turns, expected = _begun(responses), sample.doc["ground_truth"]
        if len(turns) < len(expected):
            ended = f"the dialog ended in turn {len(turns)} of {len(expected)}"
            return f"{ended}: it had more than {MOST_STEPS} responses with calls" if len(turns[-1]) > MOST_STEPS else ended
        for number, (turn, calls) in enumerate(zip(turns, expected, strict=True), 1):
            if calls and not any(map(_is_step, turn)) and any(response.tool_calls for response in turn):
                return f"the arguments of a call are not a JSON object in turn {number}"
        made = [
            [_plain(call) for response in turn for call in _executed(response)] if any(map(_is_step, turn)) else None
            for turn in turns
        ]
        return self._apis.run({**self._job(sample), "turns": made})


def split_turns(responses: Sequence[Response]) -> list[list[Response]]:
    """The responses of each turn, the last of which is in progress. A turn ends with a response without calls."""
    turns: list[list[Response]] = [[]]
    for response in responses:
        turns[-1].append(response)
        if not _is_step(response):
            turns.append([])
    return turns


def _begun(responses: Sequence[Response]) -> list[list[Response]]:
    return [turn for turn in split_turns(responses) if turn]


def _is_step(response: Response) -> bool:
    """Whether a response calls functions. As on the leaderboard, one with a call that cannot be parsed makes none."""
    return bool(response.tool_calls) and all(call.arguments is not None for call in response.tool_calls)


def _executed(response: Response) -> list[ToolCall]:
    """The calls of a response that changed the state: not those after the limit of rounds, which have no results; one that
    timed out changed instances that are gone."""
    if not _is_step(response):
        return []
    called = zip(response.tool_calls[:MOST_CALLS], response.tool_results, strict=False)
    return [call for call, result in called if result.outcome != TIMED_OUT]


def _timed_out(response: Response) -> bool:
    return any(result.outcome == TIMED_OUT for result in response.tool_results)


def _fingerprint(response: Response) -> tuple[Any, ...]:
    """What a verdict depends on."""
    calls = tuple((call.name, call.text, call.arguments is None) for call in response.tool_calls)
    return calls, tuple(result.outcome for result in response.tool_results)


def _plain(call: ToolCall) -> tuple[str, dict[str, Any]]:
    return call.name, dict(call.arguments or {})


def _tools(doc: Mapping[str, Any], turn: int) -> tuple[Tool, ...]:
    """The functions that the model has in a turn: those that come later are left out, and the added ones are the last.

    As on the leaderboard, descriptions of added ones have no note about the syntax.
    """
    added = doc.get("missed_function", {})
    later = {name for names in added.values() for name in names}
    by_name = {function["name"]: function for function in doc["function"]}
    first = [function for name, function in by_name.items() if name not in later]
    more = [by_name[name] for index, names in added.items() if int(index) <= turn for name in names]
    plain = (replace(tool, description=one["description"]) for tool, one in zip(tools_of(more, PYTHON), more, strict=True))
    return (*tools_of(first, PYTHON), *plain)


def _user_messages(sample: Sample, turn: int) -> tuple[Message, ...]:
    return turn_messages(sample, turn) or (Message("user", MORE_FUNCTIONS),)
