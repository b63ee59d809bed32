"""Writes the logs of this folder with the real inspect_ai: see README.md."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import anyio
from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score, Target, accuracy, choice, includes, match, mean, scorer, std, stderr
from inspect_ai.solver import Generate, TaskState, generate, multiple_choice, solver, system_message, use_tools
from inspect_ai.tool import Tool, ToolError, tool

HERE = Path(__file__).parent
LONG = "A long document. " * 20  # inspect_ai stores longer texts of events as attachments


def png() -> str:
    """A red image of 2 x 2 pixels as a data URL."""
    rows = b"".join(b"\0" + b"\xff\0\0" * 2 for _ in range(2))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def answer(text: str, stop: str = "stop", *, reasoning: str = "", tokens: tuple[int, int, int] = (12, 6, 0)) -> ModelOutput:
    """An answer with its tokens: those of the prompt, of the answer, and of the reasoning in it."""
    content: str | list[ContentReasoning | ContentText] = text
    if reasoning:
        content = [ContentReasoning(reasoning=reasoning), ContentText(text=text)]
    output = ModelOutput.from_content("mockllm/model", content, stop_reason=stop)  # type: ignore[arg-type]
    prompt, generated, reasoned = tokens
    output.usage = ModelUsage(
        input_tokens=prompt, output_tokens=generated, total_tokens=prompt + generated, reasoning_tokens=reasoned or None
    )
    return output


def run(task: Task, outputs: Iterable[ModelOutput], *, form: str = "eval", **options: Any) -> Path:
    """The log of a task, written to a temporary folder. One sample runs at a time, so that the outputs have an order."""
    folder = Path(tempfile.mkdtemp())
    following = iter(outputs)
    model = get_model("mockllm/model", custom_outputs=lambda *_: next(following), memoize=False)
    eval(
        task, model=model, log_dir=str(folder), log_format=form, display="none", max_samples=1, max_connections=1,
        log_model_api=False, model_args={"api_key": "sk-not-a-key"}, **options,
    )  # fmt: skip
    (log,) = folder.glob(f"*.{form}")
    return log


def store(file: Path, name: str) -> None:
    """Stores a log without the paths of this machine, which errors have in them."""
    log = read_eval_log(str(file))
    log.eval.revision = None
    log.eval.model_args = {"custom_outputs": "<function>", "api_key": "sk-not-a-key"}
    for error in (log.error, *(sample.error for sample in log.samples or [])):
        if error:
            error.traceback = error.traceback_ansi = "Traceback"
            error.message = "CancelledError()" if error.message.startswith("CancelledError") else error.message
    for sample in log.samples or []:
        sample.events = [event for event in sample.events if event.event in ("model", "tool")]
    write_eval_log(log, str(HERE / name))


@scorer(metrics={"length": [mean(), std()], "polite": [accuracy(), stderr()]})
def style():  # type: ignore[no-untyped-def]
    """A score that is an object."""

    async def score(state: TaskState, target: Target) -> Score:
        text = state.output.completion
        return Score(
            value={"length": len(text), "polite": "C" if "please" in text else "I"},
            explanation="length and politeness",
            metadata={"words": len(text.split())},
        )

    return score


@scorer(metrics=[mean(), stderr()])
def grade():  # type: ignore[no-untyped-def]
    """Partial credit, no answer, and answers that cannot be scored."""

    async def score(state: TaskState, target: Target) -> Score:
        text = state.output.completion
        if "unreadable" in text:
            return Score.unscored(reason="grader_failed", explanation="no grade was found")
        return Score(value="P" if "half" in text else "N" if not text else "C" if target.text in text else "I", answer=text)

    return score


def epochs_log() -> Path:
    """Three questions, two epochs, two scorers, reasoning, usage, a long input and an answer that was cut."""
    samples = [
        Sample(id="first", input="What is 1 + 1?", target="2", metadata={"level": "easy"}),
        Sample(id="second", input="What is 2 + 2?", target=["4", "four"]),
        Sample(id="third", input=f"{LONG} What is 3 + 3?", target="6"),
    ]
    outputs = [
        answer("The answer is 2", reasoning="one and one", tokens=(12, 9, 4)),
        answer("The answer is 5"),
        answer("", "max_tokens", reasoning="three and three and", tokens=(80, 16, 16)),
        answer("half of it"),
        answer("please 4"),
        answer("unreadable", "content_filter"),
    ]
    task = Task(
        dataset=MemoryDataset(samples, name="sums"),
        name="sums",
        solver=[system_message("Be brief."), generate()],
        scorer=[match(numeric=True), style(), grade()],
        epochs=Epochs(2, ["mean", "max"]),
        version=3,
    )
    config = GenerateConfig(temperature=0.5, max_tokens=16)
    return run(task, outputs, **config.model_dump(exclude_none=True))


@tool
def add() -> Tool:
    async def execute(x: int, y: int) -> str:
        """Adds two numbers.

        Args:
            x: First number.
            y: Second number.
        """
        if x < 0:
            raise ToolError("negative numbers are not supported")
        return f"{LONG}{x + y}"

    return execute


def tools_outputs() -> Iterator[ModelOutput]:
    calls = [{"x": 20, "y": 22}, {"x": -1, "y": 1}]
    for number, arguments in enumerate(calls):
        call = ModelOutput.for_tool_call(
            "mockllm/model", "add", arguments, tool_call_id=f"call-{number}", content="Let me see."
        )
        call.usage = ModelUsage(input_tokens=30, output_tokens=10, total_tokens=40)
        yield call
        yield answer(f"The result is {arguments['x'] + arguments['y']}", reasoning="it is added", tokens=(90, 8, 3))


def tools_log() -> Path:
    samples = [Sample(id=1, input="Add 20 and 22.", target="42"), Sample(id=2, input="Add -1 and 1.", target="42")]
    return run(
        Task(dataset=samples, name="tools", solver=[use_tools(add()), generate()], scorer=includes()), tools_outputs()
    )


def image_log() -> Path:
    """A .json log with an image, a dialog as input and a few-shot answer in it."""
    messages = [
        ChatMessageSystem(content="Name colours."),
        ChatMessageUser(content="What colour is the sky?"),
        ChatMessageAssistant(content="blue"),
        ChatMessageUser(content=[ContentText(text="And this?"), ContentImage(image=png())]),
    ]
    task = Task(
        dataset=[Sample(id="red", input=messages, target="red")], name="colours", solver=generate(), scorer=includes()
    )
    return run(task, [answer("It is red.")], form="json")


def choices_log() -> Path:
    samples = [
        Sample(input="Which is a fruit?", choices=["chair", "apple", "stone"], target="B"),
        Sample(input="Which is hard?", choices=["stone", "water"], target="A"),
    ]
    task = Task(dataset=samples, name="choices", solver=multiple_choice(), scorer=choice())
    return run(task, [answer("ANSWER: B"), answer("ANSWER: B")])


@solver
def failing(how: str):  # type: ignore[no-untyped-def]
    """Fails, stops the evaluation or ends the process at the second sample."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        if state.sample_id == 2 and how == "error":
            raise RuntimeError("the sandbox is gone <script>alert(1)</script>")
        if state.sample_id == 2 and how == "cancel":
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep(60)
        if state.sample_id == 2 and how == "exit":
            await anyio.sleep(3)  # until the first sample is written
            os._exit(1)
        return state

    return solve


def errors_log(how: str = "error", **options: Any) -> Path:
    samples = [Sample(input=f"Say {number}.", target=str(number)) for number in (1, 2, 3)]
    task = Task(dataset=samples, name="errors", solver=failing(how), scorer=includes())
    return run(task, repeat(answer("1")), **options)


def interrupted_log(how: str) -> Path:
    """The log that a process leaves that ends during the evaluation."""
    folder = tempfile.mkdtemp()
    subprocess.run([sys.executable, __file__, how], cwd=folder, env={**os.environ, "TMPDIR": folder})
    (log,) = Path(folder).rglob("*.eval")
    return log


if __name__ == "__main__":
    if len(sys.argv) > 1:
        errors_log(sys.argv[1])
        sys.exit()
    store(epochs_log(), "epochs.eval")
    store(tools_log(), "tools.eval")
    store(image_log(), "image.json")
    store(choices_log(), "choices.eval")
    store(errors_log(fail_on_error=False), "errors.eval")
    store(errors_log(fail_on_error=True), "failed.eval")
    store(interrupted_log("cancel"), "cancelled.eval")
    shutil.copyfile(interrupted_log("exit"), HERE / "interrupted.eval")
