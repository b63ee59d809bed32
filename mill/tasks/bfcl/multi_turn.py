"""Multi-turn categories of BFCL: the model calls functions of simulated APIs, and what they did is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from mill.api.message import Message
from mill.api.request import MULTI_ROUND, Request
from mill.api.response import Response
from mill.api.task import MOST, RenderSettings, Sample, Task, TaskType, Value
from mill.api.tools import MOST_CALLS, TIMED_OUT, Tool, ToolCall
from mill.tasks.agent import tool_turns
from mill.tasks.bfcl.function_docs import PYTHON, tools_of
from mill.tasks.bfcl.questions import read_code, read_dialogs
from mill.tasks.bfcl.simulation import ApiCode, ApiNamespace, Simulation, expected_call
from mill.tasks.bfcl.task import spelled, turn_messages, with_system_prompt

DIALOGS = [f"multi_turn_{name}" for name in ("base", "miss_func", "miss_param", "long_context")]
MOST_STEPS = 20  # of a turn, as on the leaderboard: the dialog ends at another response with calls
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
_NOT_EXECUTED = "not executed, because the arguments of another call are not a JSON object"


class MultiTurnTask(Task):
    """`acc` is 1 where each turn leaves the APIs in the expected state and has the expected results of calls."""

    task_type = TaskType.GENERATIVE_QA
    kind = MULTI_ROUND
    metrics = {"acc": "mean"}
    max_rounds = 200  # more than the turns of any dialog with all of their steps
    max_tool_output = MOST  # results are long in the category long_context

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.category_name = name.removeprefix("bfcl_")
        self.long_context = "long_context" in name

    @cached_property
    def _code(self) -> ApiCode:
        return ApiCode(read_code(self.category_name))

    def configure(self, settings: RenderSettings) -> None:
        """Loads the APIs: calls and scores need them, also where a recorded run is scored again."""
        _ = self._code

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
            repeats=settings.repeats,
        )

    def next_round(self, sample: Sample, settings: RenderSettings, responses: Sequence[Response]) -> Request | None:
        """The results of calls, or the next message of the user after a response without calls."""
        turns = split_turns(responses)
        if len(turns) > len(sample.doc["question"]) or len(turns[-1]) > MOST_STEPS:
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
        simulation = self._start(sample, self._code.namespace())
        begun = replace(last, tool_calls=last.tool_calls[: len(last.tool_results)])
        for earlier in (earlier for response in (*before, begun) for earlier in _executed(response)):
            _run(simulation, earlier)
        return _run(simulation, call)

    def _start(self, sample: Sample, namespace: ApiNamespace) -> Simulation:
        return namespace.start(sample.doc, long_context=self.long_context)

    def target(self, sample: Sample) -> Any:
        return sample.doc["ground_truth"]

    def extracts(self, sample: Sample) -> bool:
        return True

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str:
        """The calls of each turn, in their order."""
        turns = ([call for response in turn for call in response.tool_calls] for turn in _begun(responses))
        return "; ".join(f"[{', '.join(map(spelled, calls))}]" for calls in turns)

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"acc": float(not self.wrong(sample, responses))}

    def details(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Any]:
        reason = self.wrong(sample, responses)
        return {"reason": reason} if reason else {}

    def wrong(self, sample: Sample, responses: Sequence[Response]) -> str:
        """Why a dialog is wrong; empty where it is right.

        Calls of a turn without expected ones are executed and not judged, as on the leaderboard.
        """
        turns, expected = _begun(responses), sample.doc["ground_truth"]
        if len(turns) < len(expected):
            ended = f"the dialog ended in turn {len(turns)} of {len(expected)}"
            return f"{ended}: it had more than {MOST_STEPS} responses with calls" if len(turns[-1]) > MOST_STEPS else ended
        namespace = self._code.namespace()
        own, wanted = self._start(sample, namespace), self._start(sample, namespace)
        results: list[str] = []
        for number, (turn, calls) in enumerate(zip(turns, expected, strict=True), 1):
            steps = [response for response in turn if _is_step(response)]
            results += [_run(own, call) for response in steps for call in _executed(response)]
            needed = [wanted.call(*expected_call(text)) for text in calls]
            if not needed:
                continue
            if not steps:
                malformed = any(response.tool_calls for response in turn)
                return f"{'the arguments of a call are not a JSON object' if malformed else 'no call'} in turn {number}"
            if different := own.difference(wanted):
                return f"{different} is not as expected after turn {number}"
            if missing := _missing(needed, results):
                return f"no call up to turn {number} gave {missing[0][:200]}"
        return ""


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


def _run(simulation: Simulation, call: ToolCall) -> str:
    return simulation.call(call.name, (), call.arguments or {})


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
