"""Runs in the environment of the readers: writes logs with inspect_ai and converts them. argv: a folder; prints what was
refused as JSON."""

import base64
import json
import sys
import zipfile
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

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
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score, Target, accuracy, choice, includes, match, mean, scorer, std, stderr
from inspect_ai.solver import Generate, TaskState, generate, multiple_choice, solver, system_message, use_tools
from inspect_ai.tool import Tool, ToolError, tool

from mill.api.errors import RunError
from mill.view.scan import scan

LONG = "A long document. " * 20  # inspect_ai stores longer texts as attachments


def answer(text: str, stop: str = "stop", *, reasoning: str = "", tokens: tuple[int, int, int] = (12, 6, 0)) -> ModelOutput:
    """An answer with its tokens: those of the prompt, of the answer, and of the reasoning in it."""
    content: Any = [ContentReasoning(reasoning=reasoning), ContentText(text=text)] if reasoning else text
    output = ModelOutput.from_content("mockllm/model", content, stop_reason=stop)  # type: ignore[arg-type]
    prompt, generated, reasoned = tokens
    output.usage = ModelUsage(
        input_tokens=prompt - 2, input_tokens_cache_read=2, output_tokens=generated, reasoning_tokens=reasoned or None
    )
    return output


@scorer(metrics={"length": [mean(), std()], "polite": [accuracy(), stderr()]})
def style():  # type: ignore[no-untyped-def]
    """A score that is an object."""

    async def score(state: TaskState, target: Target) -> Score:
        text = state.output.completion
        value = {"length": len(text), "polite": "C" if "please" in text else "I"}
        return Score(value=value, explanation="length and politeness", metadata={"words": len(text.split())})

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


def epochs() -> tuple[Task, list[ModelOutput]]:
    """Three questions in two epochs: answers right, right by half, wrong, cut and withheld."""
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
    scorers = [match(numeric=True), style(), grade()]
    solvers = [system_message("Be brief."), generate()]
    data = MemoryDataset(samples, name="sums")
    return Task(data, name="sums", solver=solvers, scorer=scorers, epochs=Epochs(2, ["mean", "max"]), version=3), outputs


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


def tools() -> tuple[Task, list[ModelOutput]]:
    outputs = []
    for number, (x, y) in enumerate([(20, 22), (-1, 1)]):
        call = ModelOutput.for_tool_call("m", "add", {"x": x, "y": y}, tool_call_id=f"call-{number}", content="Let me see.")
        call.usage = ModelUsage(input_tokens=30, output_tokens=10)
        outputs += [call, answer(f"The result is {x + y}", reasoning="it is added", tokens=(90, 8, 3))]
    samples = [Sample(id=1, input="Add 20 and 22.", target="42"), Sample(id=2, input="Add -1 and 1.", target="42")]
    return Task(samples, name="tools", solver=[use_tools(add()), generate()], scorer=includes()), outputs


def image() -> tuple[Task, list[ModelOutput]]:
    """An image, a dialog as input and a few-shot answer in it."""
    source = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + bytes(300)).decode()
    messages = [
        ChatMessageSystem(content="Name colours."),
        ChatMessageUser(content="What colour is the sky?"),
        ChatMessageAssistant(content="blue"),
        ChatMessageUser(content=[ContentText(text="And this?"), ContentImage(image=source)]),
    ]
    samples = [Sample(id="red", input=messages, target="red")]
    return Task(samples, name="colours", solver=generate(), scorer=includes()), [answer("It is red.")]


def choices() -> tuple[Task, list[ModelOutput]]:
    samples = [
        Sample(input="Which is a fruit?", choices=["chair", "apple", "stone"], target="B"),
        Sample(input="Which is hard?", choices=["stone", "water"], target="A"),
    ]
    return Task(samples, name="choices", solver=multiple_choice(), scorer=choice()), [answer("ANSWER: B")] * 2


@solver
def failing():  # type: ignore[no-untyped-def]
    """Fails at the second sample."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        if state.sample_id == 2:
            raise RuntimeError("the sandbox is gone <script>alert(1)</script>")
        return state

    return solve


def errors() -> tuple[Task, Iterable[ModelOutput]]:
    samples = [Sample(input=f"Say {number}.", target=str(number)) for number in (1, 2, 3)]
    return Task(samples, name="errors", solver=failing(), scorer=includes()), repeat(answer("1"))


def write(name: str, made: tuple[Task, Iterable[ModelOutput]], folder: Path, **options: Any) -> None:
    """One sample runs at a time, so that the outputs have an order."""
    task, outputs = made
    following, form = iter(outputs), name.partition(".")[2]
    model = get_model("mockllm/model", custom_outputs=lambda *_: next(following), memoize=False, token="sk-not-a-key")
    eval(
        task, model=model, log_dir=str(folder / "made"), log_format=form, display="none", max_samples=1, max_connections=1,
        **options,
    )  # fmt: skip
    (log,) = (folder / "made").iterdir()
    log.rename(folder / name)


def write_odd_logs(folder: Path) -> None:
    """Logs that ended early, without their samples or events, and damaged ones."""
    log = read_eval_log(str(folder / "errors.eval"))
    log.status, log.results = "started", None
    write_eval_log(log, str(folder / "started.eval"))
    write_eval_log(log.model_copy(update={"samples": None}), str(folder / "header.eval"))
    log = read_eval_log(str(folder / "tools.eval"))
    log.samples = [sample.model_copy(update={"events": [], "uuid": None}) for sample in log.samples or ()]
    write_eval_log(log, str(folder / "silent.eval"))
    data = (folder / "epochs.eval").read_bytes()
    with zipfile.ZipFile(folder / "epochs.eval") as file:
        start = file.getinfo("samples/second_epoch_2.json").header_offset
    (folder / "damaged.eval").write_bytes(data[: start + 100] + bytes(200) + data[start + 300 :])
    (folder / "cut.eval").write_bytes(data[: len(data) // 2])
    (folder / "empty.eval").write_bytes(b"")
    with zipfile.ZipFile(folder / "other.eval", "w") as file:
        file.writestr("notes.txt", "no log")
    (folder / "cut.json").write_bytes((folder / "image.json").read_bytes()[:-100])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write("epochs.eval", epochs(), folder, temperature=0.5, max_tokens=16)
    write("tools.eval", tools(), folder)
    write("image.json", image(), folder)
    write("choices.eval", choices(), folder)
    write("errors.eval", errors(), folder, fail_on_error=False)
    write("failed.eval", errors(), folder, fail_on_error=True)
    write_odd_logs(folder)
    refused = {}
    for found in scan(folder).logs:
        try:
            found.convert(folder / "runs" / found.path.stem / "default")
        except RunError as error:
            refused[found.path.name] = str(error)
    print(json.dumps(refused))
