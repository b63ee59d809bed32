"""The questions of lm-eval's multiple-choice tasks for prompts that list the choices: `lm-eval:NAME_gen`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mill.api.errors import DataError
from mill.api.task import RenderSettings, Sample
from mill.bridges.lm_eval import library
from mill.bridges.lm_eval.problems import one_line
from mill.bridges.lm_eval.task import LmEvalTask
from mill.bridges.lm_eval.templates import compiled_once
from mill.tasks.fewshot import shots_from
from mill.tasks.generative import LETTERS
from mill.tasks.multiple_choice import GENERATED, ListedQuestion
from mill.tasks.prompted import Doc

_QUESTION_CUE = re.compile(r"^\s*Q:\s*(?!.*\nQ:)", re.DOTALL)  # of one question; others have examples in their text
_ANSWER_CUE = re.compile(r"\n\s*\w{1,12}\s?[:\uff1a]\s*$")  # a last line of one word: `Answer:`


def why_not_listed(task: LmEvalTask) -> str:
    """Why the choices of a task cannot be listed in its prompts; empty where they can."""
    if task.task.OUTPUT_TYPE != "multiple_choice" or not hasattr(task.task, "doc_to_choice"):
        return "it is not multiple choice"
    if task.modalities != {"text"}:
        return f"it shows {' and '.join(sorted(task.modalities - {'text'}))}"
    if getattr(task.task, "multiple_input", False):
        return "its choices complete the question in different ways, they are not answers to it"
    if getattr(task.task, "multiple_target", False):
        return "its questions have several right answers"
    if task.task.get_config("process_results") is not None:
        return "its own code scores the choices, so which of them is right is not known"
    return ""


class LmEvalQuestions:
    """Texts, choices and answers as lm-eval renders them. Examples are chosen as for mill's own tasks."""

    def __init__(self, task: LmEvalTask) -> None:
        self._task, self.name = task, task.name + GENERATED
        if reason := why_not_listed(task):
            raise DataError(f"{self.name}: {task.name} cannot be answered by a letter: {reason}")
        self._known: dict[int, tuple[Doc, ListedQuestion]] = {}

    def samples(self) -> Sequence[Sample]:
        return self._task.samples()

    def warnings(self) -> list[str]:
        return []

    @cached_property
    def _pool(self) -> list[Doc]:
        return self._task.example_docs()

    def shots(self, sample: Sample, settings: RenderSettings) -> list[Doc]:
        if not settings.n_shots:
            return []
        how = self._task.task.get_config("fewshot_config")
        sampler = how.get("sampler") if isinstance(how, dict) else getattr(how, "sampler", None)
        options: dict[str, Any] = {"fixed": sampler == "first_n", "task": self.name, "where": "the split of its examples"}
        return shots_from(self._pool, settings.n_shots, sample, settings, **options)

    def listed(self, doc: Doc) -> ListedQuestion:
        """lm-eval renders a document once; it is used for the prompt, the target and the score."""
        known = self._known.get(id(doc))
        if known is None or known[0] is not doc:
            known = self._known[id(doc)] = (doc, self._render(doc))
        return known[1]

    def _render(self, doc: Doc) -> ListedQuestion:
        from lm_eval.utils import apply_template

        inner = self._task.task
        with one_line(f"{self.name}: a question cannot be rendered"), compiled_once(), library.silent():
            text, target = inner.doc_to_text(doc), inner.doc_to_target(doc)
            choices = list(inner.doc_to_choice(doc))
            introduction = apply_template(str(inner.get_config("description") or ""), doc)
        if not all(isinstance(choice, (str, int, float)) for choice in choices):
            raise DataError(f"{self.name}: the choices of a question are not texts")
        if isinstance(target, list):
            raise DataError(f"{self.name}: a question has several right answers")
        texts = tuple(str(choice) for choice in choices)
        question = _ANSWER_CUE.sub("", _QUESTION_CUE.sub("", str(text).rstrip()))
        if not question.strip():
            raise DataError(f"{self.name}: a question has no text beside its choices")
        letters = tuple(re.sub(r"\W", "", choice).upper() for choice in texts)
        in_question = letters == tuple(LETTERS[: len(letters)])
        if in_question and not all(re.search(rf"(?<!\w){letter}[.):]", question) for letter in letters):
            raise DataError(f"{self.name}: the choices are letters, which the text of a question does not list")
        answer = _index(target, choices)
        return ListedQuestion(question, letters if in_question else texts, answer, in_question, introduction.strip())


def _index(target: Any, choices: list[Any]) -> int | None:
    """The index of the right choice as lm-eval finds it: a text among the choices, or an index."""
    if isinstance(target, str):
        return choices.index(target) if target in choices else None
    return target % len(choices) if isinstance(target, int) and -len(choices) <= target < len(choices) else None
