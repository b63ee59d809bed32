"""Dialogs for the multi-turn questions of BFCL: those with the expected calls, and such with one change."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.bfcl_answers import perturbed_value
from mill.api.response import Response
from mill.api.task import Sample
from mill.api.tools import OK, ToolCall, ToolResult
from mill.tasks.bfcl.multi_turn import MOST_STEPS
from mill.tasks.bfcl.simulation import expected_call

Step = list[ToolCall]
Dialog = list[list[Step]]
"""For each turn its steps: the calls of one response. After them the model answers without a call."""


def right_dialog(sample: Sample) -> Dialog:
    """The expected calls, one in each response; all of a turn in one where they are more than it may have responses."""
    parameters = {one["name"]: list(one["parameters"]["properties"]) for one in sample.doc["function"]}

    def call(text: str) -> ToolCall:
        name, values, named = expected_call(text)
        return ToolCall.parse(name, {**dict(zip(parameters[name], values, strict=False)), **named})

    dialog = [[[call(text)] for text in turn] for turn in sample.doc["ground_truth"]]
    return [turn if len(turn) <= MOST_STEPS else [[call for step in turn for call in step]] for turn in dialog]


def step_response(*calls: ToolCall) -> Response:
    """A response whose calls were executed."""
    return Response(text="", tool_calls=calls, tool_results=tuple(ToolResult(call.name, "", OK) for call in calls))


def responses(dialog: Dialog) -> list[Response]:
    """What the model generates, turn by turn. A turn ends without an answer where its last response cannot be parsed."""
    found: list[Response] = []
    for turn in dialog:
        found += [step_response(*step) for step in turn]
        if not turn or (all(call.arguments is not None for call in turn[-1]) and len(turn) <= MOST_STEPS):
            found.append(Response(text="Done."))
    return found


Change = Callable[[Dialog, Sample, random.Random], Dialog | None]
"""A dialog with one change; None where the sample has none of this kind."""


def without_calls(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    return [[] for _ in dialog]


def turn_without_calls(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    return _at(dialog, _called(dialog, draw), [])


def ends_early(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    return dialog[:-1] or None


def too_many_steps(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    """The first turn has more steps than are allowed, so that the others never begin."""
    turn = _called(dialog, draw)
    return None if turn == len(dialog) - 1 else [*dialog[:turn], _looping(dialog[turn])]


def malformed(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    turn = _called(dialog, draw)
    (first, *_), *_ = dialog[turn]
    return _at(dialog, turn, [[ToolCall.parse(first.name, first.text[:-1])]])


def late_turn(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    """The calls of a turn are made in the next one."""
    turn = _called(dialog, draw)
    if turn == len(dialog) - 1:
        return None
    return [*dialog[:turn], [], [*dialog[turn], *dialog[turn + 1]], *dialog[turn + 2 :]]


# Each of these is wrong for every question.
MISTAKES: dict[str, Change] = {
    change.__name__: change
    for change in (
        without_calls,
        turn_without_calls,
        ends_early,
        too_many_steps,
        malformed,
        late_turn,
    )
}


def one_step(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    """All calls of a turn in one response."""
    return [[[call for step in turn for call in step]] if turn else [] for turn in dialog]


def steps_up_to_the_limit(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    """A call that changes nothing fills a turn."""
    turn = _called(dialog, draw)
    return _at(dialog, turn, _looping(dialog[turn])[1:])


# Each of these is right for every question.
RIGHT: dict[str, Change] = {
    "right": lambda dialog, sample, draw: dialog,
    **{change.__name__: change for change in (one_step, steps_up_to_the_limit)},
}


def last_turn_too_long(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    return _at(dialog, len(dialog) - 1, _looping(dialog[-1]))


def missing_call(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    turn, index = _position(dialog, draw)
    return _at(dialog, turn, _at(dialog[turn], index))


def repeated_call(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    turn, index = _position(dialog, draw)
    return _at(dialog, turn, _at(dialog[turn], index, dialog[turn][index], dialog[turn][index]))


def swapped_calls(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    turn = _called(dialog, draw)
    return _at(dialog, turn, draw.sample(dialog[turn], len(dialog[turn])))


def malformed_last(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    """A response that cannot be parsed follows the expected calls."""
    turn = _called(dialog, draw)
    return _at(dialog, turn, [*dialog[turn], [*dialog[turn][0], ToolCall.parse("f", "[1]")]])


def early_turn(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    """The calls of a turn are made before it, also where functions or parameters are missing, and again in it."""
    turn = _called(dialog, draw)
    return None if turn == 0 else _at(dialog, turn - 1, [*dialog[turn - 1], *dialog[turn]])


def other_call(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    """A call of any function with values drawn from those of the question's own calls."""
    function = draw.choice(sample.doc["function"])
    values = [value for turn in dialog for step in turn for call in step for value in (call.arguments or {}).values()]
    arguments = {name: draw.choice(values or ["x"]) for name in function["parameters"]["required"]}
    turn = draw.randrange(len(dialog))
    at = draw.randint(0, len(dialog[turn]))
    return _at(dialog, turn, [*dialog[turn][:at], [ToolCall.parse(function["name"], arguments)], *dialog[turn][at:]])


def other_value(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    """One argument is another one, or in another form."""
    able = [
        (turn, index)
        for turn, steps in enumerate(dialog)
        for index, (call, *_) in enumerate(steps)
        if any(value is not None for value in (call.arguments or {}).values())
    ]
    if not able:
        return None
    turn, index = draw.choice(able)
    call, *others = dialog[turn][index]
    arguments = dict(call.arguments or {})
    name = draw.choice([name for name, value in arguments.items() if value is not None])
    changed = ToolCall.parse(call.name, {**arguments, name: perturbed_value(arguments[name], draw)})
    return _at(dialog, turn, _at(dialog[turn], index, [changed, *others]))


def unknown_function(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    turn = _called(dialog, draw)
    return _at(dialog, turn, [[ToolCall.parse(f"{call.name}_2", call.text) for call in step] for step in dialog[turn]])


def unknown_parameter(dialog: Dialog, sample: Sample, draw: random.Random) -> Dialog | None:
    turn, index = _position(dialog, draw)
    call, *others = dialog[turn][index]
    changed = ToolCall.parse(call.name, {**(call.arguments or {}), "no_such_parameter": 1})
    return _at(dialog, turn, _at(dialog[turn], index, [changed, *others]))


# Each of these may be right or wrong: cases for another checker to compare with.
EITHER: dict[str, Change] = {
    change.__name__: change
    for change in (
        last_turn_too_long,
        missing_call,
        repeated_call,
        swapped_calls,
        malformed_last,
        early_turn,
        unknown_function,
        unknown_parameter,
    )
}
EITHER |= {f"{change.__name__}_{number}": change for change in (other_call, other_value) for number in range(3)}


def _called(dialog: Dialog, draw: random.Random) -> int:
    """A turn with calls: every dialog has one."""
    return draw.choice([index for index, turn in enumerate(dialog) if turn])


def _position(dialog: Dialog, draw: random.Random) -> tuple[int, int]:
    turn = _called(dialog, draw)
    return turn, draw.randrange(len(dialog[turn]))


def _looping(turn: list[Step]) -> list[Step]:
    """As many steps as make the dialog end; the first ones call a function that there is not."""
    return [*([[ToolCall.parse("no_such_function", {})]] * (MOST_STEPS + 1 - len(turn))), *turn]


def _at(items: Sequence[Any], index: int, *others: Any) -> list[Any]:
    return [*items[:index], *others, *items[index + 1 :]]
