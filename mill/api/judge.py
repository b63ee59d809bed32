"""LLM-as-judge: what a judge is asked about an answer, and how its verdict becomes a value."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mill.api.errors import DataError
from mill.api.message import Message
from mill.api.request import GENERATE, Request, generation_options
from mill.api.task import Value

FIRST, SECOND, TIE = "FIRST", "SECOND", "TIE"

GRADE = """You grade an answer to a question. {rubric}

[Question]
{question}

[Reference answer]
{reference}

[Answer to grade]
{answer}

[End of the answer]
Compare the answer with the reference in one or two sentences. Then end with a line that holds VERDICT: and one of these
words alone: {words}."""

PREFER = """You compare two answers to a question. {rubric} The order in which they stand says nothing about them.

[Question]
{question}

[First answer]
{first}

[Second answer]
{second}

[End of the answers]
Compare them in one or two sentences. Then end with a line that holds VERDICT: and one of these words alone: {words}."""


@dataclass(frozen=True)
class Judge:
    """A task's judge. `prompt` may name {question}, {answer}, {reference}, {rubric} and {words}, which are the verdicts.

    Every verdict has a value. What a task knows to be right (`gold_verdict`) is compared with the judge's value.
    """

    prompt: str = GRADE
    rubric: str = ""
    verdicts: Mapping[str, float] = field(default_factory=lambda: {"CORRECT": 1.0, "INCORRECT": 0.0})
    max_gen_toks: int = 512

    metrics: Mapping[str, str] = field(
        default_factory=lambda: {
            "judge": "mean",
            "judge_read": "mean",
            "judge_agreement": "mean",
            "judge_kappa": "kappa",
        },
        repr=False,
    )
    """judge_read is the share of verdicts that could be read; agreement and kappa are with what is known to be right."""

    def requests(self, told: Mapping[str, str], *, chat: bool) -> list[Request]:
        return [self._request({**told}, chat=chat)]

    def values(self, texts: Sequence[str | None], gold: float | None) -> dict[str, Value]:
        """From what the judge wrote; None stands for a judge that failed."""
        value = self.read(texts[0])
        known = value is not None and gold is not None
        return {
            "judge": value,
            "judge_read": float(value is not None),
            "judge_agreement": float(value == gold) if known else None,
            "judge_kappa": (value, gold) if value is not None and gold is not None else None,
        }

    def read(self, text: str | None) -> float | None:
        """The value of the last verdict in a text; None where there is none."""
        word = self._word(text or "")
        return None if word is None else self.verdicts[word]

    def _word(self, text: str) -> str | None:
        words = sorted(self.verdicts, key=len, reverse=True)  # A+ before A
        pattern = rf"VERDICT\W{{1,8}}?({'|'.join(map(re.escape, words))})(?!\w)"
        found = re.findall(pattern, text, re.IGNORECASE)
        alone = text.strip()
        for candidate in found[-1:] or (alone, alone.strip(string.punctuation + " ")):
            for word in words:
                if word.upper() == candidate.upper():
                    return word
        return None

    def _request(self, told: Mapping[str, str], *, chat: bool) -> Request:
        words = ", ".join(self.verdicts)
        try:
            text = self.prompt.format(**{"rubric": self.rubric, "words": words, **told})
        except (KeyError, IndexError, ValueError) as error:
            raise DataError(f"the judge's prompt names a field that the task does not give: {error}") from error
        context = (Message("user", text),) if chat else text
        return Request(GENERATE, context=context, options=generation_options(max_gen_toks=self.max_gen_toks))


@dataclass(frozen=True)
class PairwiseJudge(Judge):
    """Prefers the model's answer or the one it is held against (`reference`), asked in both orders.

    A preference that turns with the order is none: the value is then a half, and judge_consistent tells how often.
    """

    prompt: str = PREFER
    verdicts: Mapping[str, float] = field(default_factory=lambda: {FIRST: 1.0, SECOND: 0.0, TIE: 0.5})
    metrics: Mapping[str, str] = field(
        default_factory=lambda: {
            "judge": "mean",
            "judge_read": "mean",
            "judge_consistent": "mean",
            "judge_agreement": "mean",
            "judge_kappa": "kappa",
        },
        repr=False,
    )

    def requests(self, told: Mapping[str, str], *, chat: bool) -> list[Request]:
        mine, other = told["answer"], told["reference"]
        orders = ((mine, other), (other, mine))
        return [self._request({**told, "first": first, "second": second}, chat=chat) for first, second in orders]

    def values(self, texts: Sequence[str | None], gold: float | None) -> dict[str, Value]:
        in_front, behind = (self.read(text) for text in texts)
        if in_front is None or behind is None:
            return {name: 0.0 if name == "judge_read" else None for name in self.metrics}
        value = (in_front + 1.0 - behind) / 2
        return {
            "judge": value,
            "judge_read": 1.0,
            "judge_consistent": float(in_front == 1.0 - behind),
            "judge_agreement": None if gold is None else float(value == gold),
            "judge_kappa": None if gold is None else (value, gold),
        }
