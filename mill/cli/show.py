"""`mill show RUN TASK ID`: a sample with its rounds, reasoning, tool calls and scores; `--timing`: where the time went."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mill.api.errors import RunError, SpecError, UnknownName
from mill.api.response import Response
from mill.api.tools import OK
from mill.cli.options import FilePath
from mill.report.tables import number, print_table
from mill.store.folder import MANIFEST, RunFolder
from mill.store.sample_row import PENDING, SampleRow, flag_words, unique_rows
from mill.store.samples import RunSample, sample_of
from mill.store.schema import SessionEntry
from mill.store.session import read_entries
from mill.support.clocks import DECODING, FORWARD
from mill.support.files import json_text
from mill.support.terminal import echo, echo_data, one_line


@click.command("show")
@click.argument("run", type=FilePath())
@click.argument("task", required=False)
@click.argument("sample_id", metavar="[ID]", required=False)
@click.option("--repeat", type=click.IntRange(min=0), default=0, show_default=True, help="Which of several answers.")
@click.option("--timing", is_flag=True, help="Where the time of the run went, phase by phase.")
def command(run: str, task: str | None, sample_id: str | None, repeat: int, timing: bool) -> int:
    """Show the sample ID of TASK in the folder RUN: prompt, reasoning, tool calls with their results, answer and scores.

    Without ID it lists the samples with up to three of their metrics. TASK may be left out where the run has one task.

    \b
    Examples:
      mill show results/SmolLM2-135M-Instruct-1a2b3c4d/default gsm8k
      mill show results/SmolLM2-135M-Instruct-1a2b3c4d/default gsm8k 17
      mill show results/SmolLM2-135M-Instruct-1a2b3c4d/default --timing
    """
    folder = RunFolder(Path(run))
    names = list(folder.manifest()["tasks"])
    if timing:
        if task is not None or repeat:
            raise SpecError("--timing is about the whole run: leave out TASK, ID and --repeat")
        _print_timing(list(read_entries(folder, MANIFEST, "sessions", SessionEntry).values()))
        return 0
    if len(names) == 1 and sample_id is None and task not in names:
        task, sample_id = names[0], task  # the id alone, or none
    if task is None:
        raise SpecError(f"the run has {len(names)} tasks, name one of them: {', '.join(names[:20])}")
    if task not in names:
        raise UnknownName("task of this run", task, names, hint=f"it has {', '.join(names[:20])}")
    rows = {str(row.id): row for _, row in unique_rows(folder.samples_file(task)).values()}
    if sample_id is None:
        _list(rows)
        return 0
    if sample_id not in rows:
        listing = shlex.join(["mill", "show", run, task])
        raise UnknownName(f"sample of {task}", sample_id, rows, hint=f"`{listing}` lists them")
    row = rows[sample_id]
    if repeat >= max(1, len(row.keys)):
        raise SpecError(f"--repeat {repeat}: sample {sample_id} has {len(row.keys)} answers, from 0 on")
    echo_data(transcript(row, repeat))
    return 0


def _list(rows: Mapping[str, SampleRow]) -> None:
    metrics = list(dict.fromkeys(name for row in rows.values() for name in row.values))[:3]
    cells = []
    for name, row in rows.items():
        values = [number(row.mean(metric)) for metric in metrics]
        text = row.error or row.response or row.extracted or ("not answered" if row.status == PENDING else "")
        cells.append([name, *values, one_line(str(text))[:60]])
    print_table("", ["id", *metrics, "response"], cells, numbers=metrics)


def transcript(row: SampleRow, repeat: int = 0) -> str:
    record = sample_of(row)
    responses = record.responses[repeat] if repeat < len(record.responses) else []
    blocks = [f"{row.task} / {row.id}" + (f" / repeat {repeat}" if len(record.responses) > 1 else "")]
    messages = record.messages[repeat] if repeat < len(record.messages) else []
    for title, tools in (("tools", record.tools), ("tools added in a later round", record.added_tools)):
        blocks += [f"[{title}]\n" + "\n".join(map(_tool, tools))] if tools else []
    blocks += _dialog(messages, responses) if messages else _single(record, responses)
    blocks += [f"[{words}]" for words in map(flag_words, record.flags)]
    return f"\n{'-' * 60}\n".join([*blocks, _summary(row, repeat)]) + "\n"


def _single(record: RunSample, responses: Sequence[Response]) -> Iterator[str]:
    several = len(record.prompts) == len(responses) > 1
    if not several:
        yield from _prompt("prompt", record.sent or record.prompt)
    for index, response in enumerate(responses):
        if several:
            yield from _prompt(f"prompt {index + 1} of {len(responses)}", record.prompts[index])
        continuation = record.continuations[index] if index < len(record.continuations) else None
        title = "response" if continuation is None else f"choice {continuation!r}"
        yield f"[{title}]\n{_answer(response)}"


def _prompt(title: str, text: str) -> list[str]:
    """A prompt; where a server applied the chat template, its messages by role instead of their JSON."""
    try:
        messages = json.loads(text) if text.startswith('[{"role": ') else []
        return [f"[{title}: {message['role']}]\n{_content(message)}" for message in messages] or [f"[{title}]\n{text}"]
    except (ValueError, TypeError, LookupError, AttributeError):  # a text that only starts like messages
        return [f"[{title}]\n{text}"]


def _dialog(messages: Sequence[Mapping[str, Any]], responses: Sequence[Response]) -> Iterator[str]:
    """The messages of the last round. The last of the assistant's are the responses of the rounds before."""
    turns = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    rounds = dict(zip(reversed(turns), reversed(responses[:-1]), strict=False))
    number, shown_results = 0, False
    for index, message in enumerate(messages):
        if index in rounds:
            number += 1
            shown_results = bool(rounds[index].tool_results)
            yield from _round(number, rounds[index])
        elif message.get("role") != "tool" or not shown_results:
            yield f"[{message.get('role')}]\n{_content(message)}"
    for response in responses[-1:]:
        yield from _round(number + 1, response)


def _round(number: int, response: Response) -> Iterator[str]:
    yield f"[round {number}: assistant]\n{_answer(response)}"
    for result in response.tool_results:
        yield f"[tool {result.name}{'' if result.outcome == OK else f' ({result.outcome})'}]\n{result.output}"


def _tool(tool: Mapping[str, Any]) -> str:
    """Its name with those of its parameters, and the first line of its description."""
    function = tool["function"]
    parameters = ", ".join(function.get("parameters", {}).get("properties", {}))
    return f"{function['name']}({parameters}): {function.get('description', '').strip().partition(chr(10))[0]}"


def _answer(response: Response) -> str:
    parts = [f"[failed] {response.error}"] if response.failed else []
    parts += [f"[reasoning]\n{response.reasoning}\n[end of reasoning]"] if response.reasoning is not None else []
    parts += [text for text in (response.text, response.label) if text]
    parts += [f"[call] {call.name}({call.text})" for call in response.tool_calls]
    if response.score is not None:
        parts.append(f"log-probability {response.score:.4f}{', greedy' if response.is_greedy else ''}")
    return "\n".join(parts) or "[empty]"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or f"<{part.get('type')}>" for part in content)
    return str(content or "")


def _summary(row: SampleRow, repeat: int) -> str:
    extracted = row.extracted_repeats or [row.extracted]
    shown = {"target": row.target, "extracted": extracted[repeat] if repeat < len(extracted) else None}
    shown |= {name: values[min(repeat, len(values) - 1)] for name, values in row.values.items() if values}
    shown |= {**(row.details[repeat] if repeat < len(row.details) else {}), "error": row.error}
    texts = {name: value if isinstance(value, str) else json_text(value) for name, value in shown.items()}
    return "\n".join(f"{name}: {text}" for name, text in texts.items() if shown[name] is not None)


def _print_timing(sessions: Sequence[SessionEntry]) -> None:
    """Of the last session that computed something, or else the last one: a row for each phase, in the order of the work."""
    timed = [session for session in sessions if session.timing]
    if not timed:
        raise RunError("no session of this run has recorded its phases: it did not end, or mill was older")
    session = max(timed, key=lambda session: (session.computed > 0, session.order))
    total, columns = sum(session.timing.values()), ["phase", "seconds", "share"]
    rows = [[name, f"{taken:.2f}", f"{taken / total:.1%}" if total else ""] for name, taken in session.timing.items()]
    print_table(f"session of {session.started} ({len(sessions)} in all): {total:.1f} s", columns, rows, numbers=columns[1:])
    # No forward pass over prompts has the last token of a request: it is scored, or the first step of decoding.
    computed, requested = session.computed_tokens, session.prompt_tokens + session.scored_tokens - session.computed
    if session.scored >= 0 and requested >= computed > 0:  # older versions did not count scored requests
        saved = f"{1 - computed / requested:.0%} saved by sharing prefixes"
        echo(f"{computed:,} tokens of prompts and choices computed of {requested:,} in all requests: {saved}")
    for stage, path in session.paths.items():
        echo(f"{stage}: {path}")
    seconds, device = session.timing.get(FORWARD, 0.0), session.device
    if device is not None and computed and seconds and DECODING not in session.timing:
        rate = computed * device.operations_per_token / seconds / 1e12
        echo(f"forward passes: {rate:.3g} TFLOP/s on {device.name} in {device.dtype}")
