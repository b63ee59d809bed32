"""What `mill show` prints: a sample as people read it (the dialog with its reasoning, tool calls and results, then what was
scored), and where the time of a run went."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mill.api.errors import RunError
from mill.api.response import Response
from mill.api.tools import OK
from mill.report.tables import print_table
from mill.store.sample_row import SampleRow, flag_words
from mill.store.samples import RunSample
from mill.store.schema import SessionEntry
from mill.support.clocks import DECODING, FORWARD, PHASES
from mill.support.files import json_text
from mill.support.terminal import echo

_RULE = "-" * 60
_SHOWN = 100  # characters of the description of a tool


def transcript(row: SampleRow, record: RunSample, repeat: int = 0) -> str:
    """`row` is the sample's line in the samples file, with its metrics."""
    responses = record.responses[repeat] if repeat < len(record.responses) else []
    blocks = [f"{row.task} / {row.id}" + (f" / repeat {repeat}" if len(record.responses) > 1 else "")]
    messages = record.messages[repeat] if repeat < len(record.messages) else []
    for title, tools in (("tools", record.tools), ("tools added in a later round", record.added_tools)):
        blocks += [_block(title, "\n".join(map(_tool, tools)))] if tools else []
    blocks += _dialog(messages, responses) if messages else _single(record, responses)
    blocks += [f"[{words}]" for words in map(flag_words, record.flags)]
    return f"\n{_RULE}\n".join([*blocks, _summary(row, repeat)]) + "\n"


def _single(record: RunSample, responses: Sequence[Response]) -> Iterator[str]:
    several = len(record.prompts) == len(responses) > 1
    if not several:
        yield from _prompt("prompt", record.sent or record.prompt)
    for index, response in enumerate(responses):
        if several:
            yield from _prompt(f"prompt {index + 1} of {len(responses)}", record.prompts[index])
        continuation = record.continuations[index] if index < len(record.continuations) else None
        yield _block("response" if continuation is None else f"choice {continuation!r}", _answer(response))


def _prompt(title: str, text: str) -> Iterator[str]:
    """A prompt; where a server applied the chat template, its messages by role instead of their JSON."""
    try:
        messages = json.loads(text) if text.startswith('[{"role": ') else None
    except ValueError:
        messages = None
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        yield _block(title, text)
        return
    for message in messages:
        yield _block(f"{title}: {message.get('role')}", _content(message))


def _dialog(messages: Sequence[Mapping[str, Any]], responses: Sequence[Response]) -> Iterator[str]:
    """The messages of the last round. The last of the assistant's are the responses of the rounds before."""
    turns = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    rounds = dict(zip(reversed(turns), reversed(responses[:-1]), strict=False))
    number = 0
    for index, message in enumerate(messages):
        if index in rounds:
            number += 1
            yield _block(f"round {number}: assistant", _answer(rounds[index]))
        elif message.get("role") == "tool" and rounds:
            yield _block(f"tool {message.get('name', '')}{_outcome(rounds, index)}", _content(message))
        else:
            yield _block(str(message.get("role")), _content(message))
    for response in responses[-1:]:
        yield _block(f"round {number + 1}: assistant", _answer(response))


def _tool(tool: Mapping[str, Any]) -> str:
    """Its name with those of its parameters, and the first line of its description."""
    function = tool["function"]
    properties = function.get("parameters", {}).get("properties", {})
    parameters = ", ".join(map(str, properties)) if isinstance(properties, Mapping) else ""
    about = function.get("description", "").strip().partition("\n")[0]
    return f"{function['name']}({parameters}): {about if len(about) <= _SHOWN else f'{about[:_SHOWN]}...'}"


def _outcome(rounds: Mapping[int, Response], index: int) -> str:
    """How a call ended, where that was not well; the results of a round follow it in the order of its calls."""
    start = max((round_ for round_ in rounds if round_ < index), default=None)
    results = rounds[start].tool_results if start is not None else ()
    position = index - start - 1 if start is not None else 0
    return f" ({results[position].outcome})" if position < len(results) and results[position].outcome != OK else ""


def _answer(response: Response) -> str:
    if response.failed:
        return f"[failed] {response.error}"
    parts = [f"[reasoning]\n{response.reasoning}\n[end of reasoning]"] if response.reasoning is not None else []
    parts += [text for text in (response.text, response.label) if text]
    parts += [f"[call] {call.name}({call.text})" for call in response.tool_calls]
    if response.score is not None:
        parts.append(f"log-probability {response.score:.4f}{', greedy' if response.is_greedy else ''}")
    if response.truncated_reasoning:
        parts.append("[it ended inside of its reasoning: there is no answer]")
    return "\n".join(parts) or "[empty]"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or f"<{part.get('type')}>" for part in content if isinstance(part, Mapping))
    return str(content or "")


def _summary(row: SampleRow, repeat: int) -> str:
    values = {name: found[min(repeat, len(found) - 1)] for name, found in row.values.items() if found}
    details = row.details[repeat] if repeat < len(row.details) else {}
    repeats = row.extracted_repeats or [row.extracted]
    shown = {
        "target": row.target,
        "extracted": repeats[repeat] if repeat < len(repeats) else None,
        **values,
        **details,
        "error": row.error,
    }
    return "\n".join(
        f"{name}: {value if isinstance(value, str) else json_text(value)}"
        for name, value in shown.items()
        if value is not None
    )


def _block(title: str, text: str) -> str:
    return f"[{title}]\n{text}"


PEAKS = {  # dense TFLOP/s in bfloat16, by a part of the device's name
    "H200": 989, "H100 PCIe": 756, "H100": 989, "H800": 989, "GH200": 989, "B200": 2250, "A100": 312, "A800": 312,
    "L40S": 362, "L40": 181, "L4": 121, "A10": 125, "A30": 165, "RTX 4090": 165, "RTX 3090": 71, "RTX A6000": 155,
}  # fmt: skip


def print_timing(sessions: Sequence[SessionEntry]) -> None:
    """The last session that computed something, or else the last one: a row for each phase, in the order of the work."""
    timed = [session for session in sessions if session.timing]
    if not timed:
        raise RunError("no session of this run has recorded its phases: it did not end, or mill was older")
    session = next((one for one in reversed(timed) if one.computed), timed[-1])
    total = sum(session.timing.values())
    names = [*(name for name in PHASES if name in session.timing), *(name for name in session.timing if name not in PHASES)]
    rows = [[name, f"{session.timing[name]:.2f}", f"{session.timing[name] / total:.1%}" if total else ""] for name in names]
    title = f"session of {session.started}: {total:.1f} s"
    print_table(title, ["phase", "seconds", "share"], rows, numbers=("seconds", "share"))
    for line in timing_lines(session, sessions):
        echo(line)


def timing_lines(session: SessionEntry, sessions: Sequence[SessionEntry]) -> list[str]:
    """What the phases do not say."""
    lines = []
    if session.computed_tokens and (requested := _requested_tokens(session)) >= session.computed_tokens:
        saved = f"{1 - session.computed_tokens / requested:.0%} saved by sharing prefixes"
        what = (
            "tokens"
            if DECODING not in session.timing
            else "tokens of prompts and choices"
            if session.scored
            else "tokens of prompts"
        )
        lines.append(f"{session.computed_tokens:,} {what} computed of {requested:,} in all requests: {saved}")
    if generated := session.output_tokens - session.scored_tokens if session.computed > session.scored >= 0 else 0:
        lines.append(f"{generated:,} tokens generated")
    lines += [f"{stage}: {path}" for stage, path in session.paths.items()]
    rate = _rate(session)
    if rate is not None and session.device is not None:
        device = f"{session.device.name} in {session.device.dtype}"
        speed = f"{rate:.3g} TFLOP/s" if rate >= 1 else f"{1000 * rate:.3g} GFLOP/s"
        lines.append(f"forward passes: {speed} on {device}{_share(session)}")
    if len(sessions) > 1:
        lines.append(f"session {sessions.index(session) + 1} of {len(sessions)} of this run; --format json has all")
    return lines


def _requested_tokens(session: SessionEntry) -> int:
    """Those of all requests but the last of each, which is scored, or the first step of decoding; 0 where unknown."""
    if session.scored >= 0:
        return session.prompt_tokens + session.scored_tokens - session.computed
    generated = (
        DECODING in session.timing
    )  # an older version counted neither prompts of these nor which tokens were generated
    return 0 if generated else session.prompt_tokens + session.output_tokens - session.computed


def _rate(session: SessionEntry) -> float | None:
    """TFLOP/s of the forward passes over prompts; None where tokens were also generated in them, or nothing is known."""
    seconds = session.timing.get(FORWARD, 0.0)
    if session.device is None or not session.computed_tokens or not seconds or DECODING in session.timing:
        return None
    return session.computed_tokens * session.device.operations_per_token / seconds / 1e12


def _share(session: SessionEntry) -> str:
    device, rate = session.device, _rate(session)
    if device is None or rate is None or device.dtype not in ("bfloat16", "float16"):
        return ""
    peak = next((peak for name, peak in PEAKS.items() if name in device.name), None)
    return f", {rate / peak:.0%} of its peak of {peak:,} TFLOP/s" if peak else ""
