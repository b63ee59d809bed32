"""Prompt suites: the prompts that checks send when no benchmark is named. Custom ones are .jsonl files.

A line has a `prompt` (or `text`) and may have an `id`, a `category`, a gold `answer`, how to `extract` the answer (number,
plain_number, e_number, choice, yes_no, true_false, json or line) and `max_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import mill
from mill.api.errors import DataError, SpecError, UnknownName
from mill.api.message import MEDIA_KINDS, Context
from mill.api.registry import register_task
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.metrics.extract import EXTRACTORS, is_right, normal, spelled_gold
from mill.tasks.data import read_rows


@dataclass(frozen=True)
class ForcedText:
    """A context as it went to the model, and what is scored after it; `plain` where a dialog became plain text."""

    id: str
    context: Context
    continuation: str
    plain: bool = False


class ForcedTask(Task):
    """`top_logprobs` is the number of most likely tokens at each position, or "all" for the whole vocabulary."""

    task_type = TaskType.PERPLEXITY
    kind = LOGLIKELIHOOD
    metrics = {"token_perplexity": "perplexity"}

    def __init__(self, name: str, texts: Sequence[ForcedText], top_logprobs: int | str) -> None:
        super().__init__(name)
        self.texts, self.top_logprobs = {text.id: text for text in texts}, top_logprobs

    def samples(self) -> Sequence[Sample]:
        return [Sample(text.id, {"continuation": text.continuation}) for text in self.texts.values()]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        text = self.texts[sample.id]
        options = {"logprobs": self.top_logprobs}
        return [Request(LOGLIKELIHOOD, context=text.context, continuation=text.continuation, options=options)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        score = responses[0].score
        return {"token_perplexity": (float("nan") if score is None else score, float(responses[0].output_tokens or 1))}


FOLDER = Path(mill.__file__).parent / "suites"
DEFAULT_MAX_TOKENS = 256
_ALIASES = {"adversarial-numerics": "numerics"}
FREE = "free"  # the category of a prompt that names none
ANSWERED = "answered"  # the metric of prompts without a gold answer: whether the response has text


_AS_TASK, _LEFT_OUT = "--tasks FILE.jsonl runs the file as a task, which sends it", "rename or remove the column"
_UNSENT = {
    **dict.fromkeys(("system", "image", "choices"), _AS_TASK),
    **dict.fromkeys(("messages", "tools", "tool_choice", "response_format"), _LEFT_OUT),
}
"""Columns that would change a request, and what to do about them."""


class SuiteTask(Task):
    """`answered` is the share of non-empty responses, `acc` the share of right ones among prompts with a gold answer."""

    task_type = TaskType.GENERATIVE_QA

    def __init__(self, name: str, file: Path) -> None:
        super().__init__(name)
        self._file = file

    @cached_property
    def _samples(self) -> list[Sample]:
        rows = [_checked(row, index, self.name) for index, row in enumerate(read_rows(self._file))]
        if not rows:
            raise DataError(f"the prompt suite {self.name} is empty")
        return [Sample(row["id"], row) for row in rows]

    @property
    def metrics(self) -> Mapping[str, str]:  # type: ignore[override]
        gold = any("answer" in sample.doc for sample in self._samples)
        return {"acc": "mean", ANSWERED: "mean"} if gold else {ANSWERED: "mean"}

    def samples(self) -> Sequence[Sample]:
        return self._samples

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        options = settings.options(max_gen_toks=sample.doc.get("max_tokens", DEFAULT_MAX_TOKENS))
        context = settings.frame(str(sample.doc["prompt"]))
        return [Request(GENERATE, context=context, options=options)]

    def extracts(self, sample: Sample) -> bool:
        return bool(sample.doc.get("extract"))

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        how = sample.doc.get("extract")
        return EXTRACTORS[how](responses[0].text or "") if how else None

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        right: Value = None
        if "answer" in sample.doc:
            right = float(is_right(sample.doc["extract"], self.extracted(sample, responses), sample.doc["answer"]))
        return {"acc": right, ANSWERED: float(bool((responses[0].text or "").strip()))}

    def category(self, sample: Sample) -> str:
        return str(sample.doc["category"])

    def target(self, sample: Sample) -> Any:
        return sample.doc.get("answer")


def _checked(row: Mapping[str, Any], index: int, suite: str) -> dict[str, Any]:
    """A line of a suite with its defaults; refused where it cannot be sent or scored."""
    where = f"the prompt suite {suite}, line {index + 1}"
    unsent = next((name for name in _UNSENT if row.get(name) is not None), None)
    if unsent is not None:
        raise DataError(f"{where} has {unsent!r}, which is not sent with a prompt; {_UNSENT[unsent]}")
    prompt = row.get("prompt", row.get("text"))
    if not isinstance(prompt, str) or not prompt.strip():
        raise DataError(f"{where} has no text under 'prompt'; it has {', '.join(row) or 'nothing'}")
    name = index if row.get("id") is None else row["id"]
    media = next((kind for kind in MEDIA_KINDS if row.get(kind) is not None), None)
    if media is not None:
        raise DataError(f"{where} has {media}, and the prompts of a suite are text; name the file as a task instead")
    checked = {**row, "id": str(name), "prompt": prompt, "category": str(row.get("category") or FREE)}
    for optional in ("answer", "extract", "max_tokens"):
        if checked.get(optional) is None:
            checked.pop(optional, None)
    if "answer" in checked:
        checked.setdefault("extract", default_extractor(checked["answer"]))
    how, longest = checked.get("extract"), checked.get("max_tokens", DEFAULT_MAX_TOKENS)
    if how is not None and (not isinstance(how, str) or how not in EXTRACTORS):
        raise UnknownName(
            f"way to extract an answer ({where})", str(how), EXTRACTORS, hint=f"known are {', '.join(EXTRACTORS)}"
        )
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1:
        raise DataError(f"{where} has max_tokens {longest!r}, not a count of at least 1")
    if "answer" in checked and not can_be_extracted(how or "", checked["answer"]):
        gold = str(checked["answer"])[:60]
        raise DataError(f"{where} has the answer {gold!r}, which extract={how} finds in no text; {EXTRACT_HINTS[how or '']}")
    return checked


EXTRACT_HINTS = {
    "number": "give a number",
    "plain_number": "give a number",
    "e_number": "give a number",
    "choice": "give a letter from A to E",
    "yes_no": "give yes or no",
    "true_false": "give true or false",
    "json": "give an object or a list, as JSON and not as text",
    "line": "give one line with a letter or a digit in it",
}


def can_be_extracted(how: str, gold: Any) -> bool:
    """Whether there is a text from which the gold answer would be extracted."""
    if how == "json":
        return isinstance(gold, (dict, list))
    if how == "line":
        return sum(bool(normal(line)) for line in str(gold).splitlines()) == 1
    if how in ("plain_number", "e_number"):
        return can_be_extracted("number", gold)
    spelled = spelled_gold(how, gold) if how == "yes_no" else str(gold).strip().upper() if how == "choice" else str(gold)
    return is_right(how, EXTRACTORS[how](spelled), gold)


def default_extractor(gold: Any) -> str:
    """The extractor for a gold answer where the data names none."""
    if isinstance(gold, (dict, list)):
        return "json"
    return "true_false" if isinstance(gold, bool) else "number" if isinstance(gold, (int, float)) else "line"


def select_suites(names: Sequence[str]) -> tuple[SuiteTask, ...]:
    """Suites by name or file, each once."""
    suites = [find_suite(name) for name in dict.fromkeys(_ALIASES.get(name, name) for name in names)]
    if not suites:
        raise SpecError("--prompts names no suite")
    return tuple(suites)


def find_suite(name: str) -> SuiteTask:
    """A suite that comes with mill, by name, or a .jsonl file."""
    if name in SUITES:
        return SuiteTask(name, SUITES[name])
    if name.endswith(".jsonl"):
        return SuiteTask(Path(name).stem, Path(name))
    raise UnknownName("prompt suite", name, SUITES, hint=f"suites are {', '.join(SUITES)}; or give a .jsonl file")


SUITES = {file.stem: file for file in sorted(FOLDER.glob("*.jsonl"))}
for _name, _file in SUITES.items():
    register_task(_name)(partial(SuiteTask, file=_file))
