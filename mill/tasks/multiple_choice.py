"""Multiple choice. By log-probability every choice is a continuation, and the likeliest is the answer.

By the generated letter (`NAME_gen`), for models that return no log-probabilities, the choices are listed and the answer is
read from the text; docs/multiple-choice.md has the prompts and how answers are read.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mill.api.errors import DataError
from mill.api.message import Context
from mill.api.registry import tasks
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import Benchmark, Opaque, RenderSettings, Sample, Task, TaskType, Value
from mill.metrics.extract import listed_choice
from mill.tasks.prompted import LETTERS, Doc, PromptedTask

GENERATED = "_gen"  # after the name of a task: its choices are listed, and the model generates the letter


@dataclass(frozen=True)
class ListedQuestion:
    """A question whose choices a prompt lists as `A. ...`. `answer` is the index of the right one; None where none is.

    Where the question's own text lists them, `in_question`, the choices are just letters and stay in their order. The
    `introduction` comes before the examples.
    """

    question: str
    choices: tuple[str, ...]
    answer: int | None
    in_question: bool = False
    introduction: str = ""


class MultipleChoiceTask(PromptedTask):
    """`acc` takes the choice of the highest log-probability, `acc_norm` that of the highest per character of the choice."""

    task_type = TaskType.MULTIPLE_CHOICE
    metrics: Mapping[str, str] = {"acc": "mean", "acc_norm": "mean"}

    @abstractmethod
    def choices(self, doc: Doc) -> Sequence[str]: ...

    @abstractmethod
    def answer(self, doc: Doc) -> int:
        """The index of the right choice."""

    def answer_text(self, doc: Doc) -> str:
        return self.choices(doc)[self.answer(doc)]

    def choice_texts(self, sample: Sample) -> Sequence[str]:
        return self.choices(sample.doc)

    def listed(self, doc: Doc) -> ListedQuestion:
        """The question for a prompt that lists the choices, with the texts of the choices."""
        return ListedQuestion(self.question(doc).removesuffix("\nAnswer:"), tuple(self.choices(doc)), self.answer(doc))

    @property
    def by_letter(self) -> str:  # type: ignore[override]
        name = self.name + GENERATED
        return name if name in tasks else ""

    def target(self, sample: Sample) -> str:
        return named_choice(self.choices(sample.doc), self.answer(sample.doc))

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        context = self.context(sample, settings)
        # A chat template ends where the answer begins: no space in between.
        delimiter = "" if settings.apply_chat_template else self.delimiter
        return [
            Request(LOGLIKELIHOOD, context=context, continuation=delimiter + choice) for choice in self.choices(sample.doc)
        ]

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str:
        """The likeliest choice, spelled as the target is."""
        return named_choice(self.choices(sample.doc), _best(_finite_scores(responses)))

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        scores = _finite_scores(responses)
        lengths = [max(1, len(choice)) for choice in self.choices(sample.doc)]
        right = self.answer(sample.doc)
        values: dict[str, Value] = {
            "acc": float(_best(scores) == right),
            "acc_norm": float(_best([score / length for score, length in zip(scores, lengths, strict=True)]) == right),
        }
        return {name: value for name, value in values.items() if name in self.metrics}


def named_choice(choices: Sequence[str], index: int) -> str:
    """The text of a choice, with its index where another choice has the same text: target and extracted are equal only
    where they are the same choice."""
    return choices[index] if choices.count(choices[index]) == 1 else f"{choices[index]} [{index}]"


def _finite_scores(responses: Sequence[Response]) -> list[float]:
    scores = [response.score if response.score is not None else float("nan") for response in responses]
    if not any(map(math.isfinite, scores)):
        raise ValueError("no choice has a finite log-probability")
    return scores


def _best(scores: Sequence[float]) -> int:
    """The first index of the largest score."""
    return max(range(len(scores)), key=lambda index: scores[index])


Order = tuple[int, ...]
"""The indices of the choices, in the order in which they are listed."""


def choice_orders(count: int, sample_id: str, settings: RenderSettings) -> list[Order]:
    """As many different orders of `count` choices as the settings say, or all that there are.

    The last is the order of the data, or the shuffled one. Before it come its rotations, so that as many orders as there are
    choices list each choice once at every position; beyond those, other orders.
    """
    draw = random.Random(f"{settings.seed or 0}/{sample_id}")
    given = list(range(count))
    if settings.shuffle_choices:
        draw.shuffle(given)
    wanted = min(settings.permutations, math.factorial(count))
    shifts = draw.sample(range(1, count), min(wanted, count) - 1)
    orders = dict.fromkeys([tuple(given), *(tuple(given[shift:] + given[:shift]) for shift in shifts)])
    while len(orders) < wanted:
        orders.setdefault(tuple(draw.sample(given, count)))
    return list(orders)[::-1]


DIRECT = "Answer with the letter of the right choice alone."
STEP_BY_STEP = 'Think step by step, and end with a line "Answer: X", where X is the letter of the right choice.'
DIRECT_TOKENS, STEP_BY_STEP_TOKENS = 32, 1024
_ENOUGH = 8  # samples with the right choice at one position, which is then no coincidence
NEXT_QUESTION = "\nQuestion:"  # where a base model continues with one of its own


class ChoiceQuestions(Protocol):
    """Where the questions come from: a MultipleChoiceTask, or a task of another package."""

    def samples(self) -> Sequence[Sample]: ...

    def listed(self, doc: Doc) -> ListedQuestion: ...

    def shots(self, sample: Sample, settings: RenderSettings) -> list[Doc]: ...

    def warnings(self) -> list[str]: ...


class GeneratedChoiceTask(Task):
    """`acc` counts answers that name the right choice, `unreadable` those that name none.

    With several permutations both are means over the orders of a question; `consistency` counts questions with the same
    choice in all orders, and `position_spread` is how far accuracy depends on the letter of the right choice.
    """

    task_type = TaskType.MULTIPLE_CHOICE
    kind = GENERATE
    takes_shots = True
    takes_choice_options = True
    separator = "\n\n"

    version: int | str = 2  # 1 was another rendering, of ARC alone

    diagnostics = ("unreadable", "consistency")

    def __init__(self, name: str, questions: ChoiceQuestions) -> None:
        super().__init__(name)
        self.questions = questions
        self._fewer_orders, self._answers = 0, Counter[int | None]()
        self.configure(RenderSettings())

    def configure(self, settings: RenderSettings) -> None:
        """Scoring needs the orders of the choices, too."""
        self._settings = settings
        how = "share" if settings.permutations > 1 else "mean"
        self.metrics = {"acc": how, "unreadable": how}
        if settings.permutations > 1:
            self.metrics |= {"consistency": "mean", "position_spread": "position_spread"}

    def samples(self) -> Sequence[Sample]:
        return self.questions.samples()

    def prepare(self, samples: Sequence[Sample], settings: RenderSettings) -> None:
        """Count what a reader of the score must know."""
        self._fewer_orders = sum(len(self._orders(sample)) < settings.permutations for sample in samples)
        self._answers = Counter(self._listed(sample).answer for sample in samples)

    def warnings(self) -> list[str]:
        lines = self.questions.warnings()
        if self._fewer_orders:
            fewer = f"{self._fewer_orders} questions have fewer than {self._settings.permutations} orders of their choices"
            lines.append(f"{fewer}: they are sent in all of them")
        if without := self._answers[None]:
            lines.append(f"{without} samples have a gold answer that is none of the choices: they count as wrong")
        (answer, count), *others = self._answers.most_common() or [(None, 0)]
        if answer is not None and not others and count >= _ENOUGH and not self._settings.reorders_choices:
            lines.append(
                f"the right choice is {LETTERS[answer]} in all {count} samples: --shuffle_choices changes the order"
            )
        return lines

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        """One request for each order of the choices."""
        tokens = STEP_BY_STEP_TOKENS if settings.cot else DIRECT_TOKENS
        until = () if settings.apply_chat_template else (NEXT_QUESTION,)
        options = settings.options(max_gen_toks=tokens, until=until)
        return [Request(GENERATE, self._context(sample, order, settings), options=options) for order in self._orders(sample)]

    def _context(self, sample: Sample, order: Order, settings: RenderSettings) -> Context:
        """Examples and question as one text, or as chat messages where a chat template is applied. A text ends where the
        answer or the reasoning starts, for models that only continue it."""
        # Zero-shot unless the run says otherwise; the task by log-probability may have examples by default.
        shots = self.questions.shots(sample, replace(settings, n_shots=settings.n_shots or 0))
        listed = self._listed(sample)
        question = self._question(listed, order, settings)
        solved = [self._solved(shot, f"{sample.id}/{number}", settings) for number, shot in enumerate(shots)]
        description = f"{listed.introduction}{self.separator}" if listed.introduction else ""
        if settings.apply_chat_template and settings.fewshot_as_multiturn:
            start = "Answer: " if settings.cot else ""
            return settings.frame(question, description, [(text, start + letter) for text, letter in solved])
        examples = [f"{text}\nAnswer: {letter}" for text, letter in solved]
        cue = "" if settings.apply_chat_template else "\nLet's think step by step." if settings.cot else "\nAnswer:"
        return settings.frame(self.separator.join([*examples, question + cue]), description)

    def _question(self, listed: ListedQuestion, order: Order, settings: RenderSettings) -> str:
        start = "" if "Question:" in listed.question else "Question: "
        lines = [f"{letter}. {listed.choices[index].strip()}" for letter, index in zip(LETTERS, order, strict=False)]
        ending = STEP_BY_STEP if settings.cot else DIRECT
        return "\n".join([f"{start}{listed.question}", *([] if listed.in_question else lines), ending])

    def _solved(self, shot: Doc, draw: str, settings: RenderSettings) -> tuple[str, str]:
        """The question of an example, whose choices are shuffled where those of the sample are, and its letter."""
        listed = self.questions.listed(shot)
        if listed.answer is None:
            raise DataError(f"{self.name}: an example has no right choice")
        (order,) = choice_orders(len(listed.choices), draw, replace(settings, permutations=1))
        return self._question(listed, order, settings), LETTERS[order.index(listed.answer)]

    def _listed(self, sample: Sample) -> ListedQuestion:
        listed = self.questions.listed(sample.doc)
        if not 2 <= len(listed.choices) <= len(LETTERS):
            what = f"sample {sample.id} has {len(listed.choices)} choices"
            raise DataError(f"{self.name}: {what}, and there must be 2 to {len(LETTERS)} to list them by letter")
        if listed.in_question and self._settings.reorders_choices:
            option = self._settings.choice_options[-1]
            raise DataError(f"{self.name}: its questions list the choices themselves, so {option} cannot change their order")
        return listed

    def _orders(self, sample: Sample) -> list[Order]:
        return choice_orders(len(self._listed(sample).choices), sample.id, self._settings)

    def target(self, sample: Sample) -> str | None:
        listed = self._listed(sample)
        return None if listed.answer is None else named_choice(listed.choices, listed.answer)

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        """The text of the choice that the last response names: that of the order of the data, or of the shuffled one."""
        chosen = self._chosen(sample, responses)[-1]
        return None if chosen is None else named_choice(self._listed(sample).choices, chosen)

    def _chosen(self, sample: Sample, responses: Sequence[Response]) -> list[int | None]:
        """For each order, the index in the data of the choice that the response names."""
        choices = self._listed(sample).choices
        orders = choice_orders(len(choices), sample.id, self._settings)
        read = [
            listed_choice(response.text or "", [choices[index] for index in order])
            for order, response in zip(orders, responses, strict=True)
        ]
        return [None if at is None else order[at] for at, order in zip(read, orders, strict=True)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        answer, chosen = self._listed(sample).answer, self._chosen(sample, responses)
        right = [float(choice is not None and choice == answer) for choice in chosen]
        values: dict[str, Value] = {"acc": sum(right) / len(right), "unreadable": chosen.count(None) / len(chosen)}
        if self._settings.permutations > 1:
            values["consistency"] = float(None not in chosen and len(set(chosen)) == 1)
            values["position_spread"] = Opaque(self._by_letter(sample, answer, right))
        return values

    def details(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Any]:
        if len(responses) < 2:
            return {}
        choices, chosen = self._listed(sample).choices, self._chosen(sample, responses)
        return {"chosen_by_order": [None if index is None else named_choice(choices, index) for index in chosen]}

    def _by_letter(self, sample: Sample, answer: int | None, right: Sequence[float]) -> dict[str, float]:
        """The share of right answers by the letter that the right choice had."""
        found: dict[str, list[float]] = defaultdict(list)
        for order, value in zip(self._orders(sample), right, strict=True):
            if answer is not None:
                found[LETTERS[order.index(answer)]].append(value)
        return {letter: sum(values) / len(values) for letter, values in sorted(found.items())}


def add_generated(*names: str) -> None:
    """Register `NAME_gen` for tasks that are a MultipleChoiceTask, and for benchmarks of them with all their members."""
    for name in names:
        entry = tasks.get(name)
        if isinstance(entry, Benchmark):
            add_generated(*entry.tasks)
            tasks.add(name + GENERATED, generated_benchmark(entry))
        else:
            tasks.add(name + GENERATED, _render)


def generated_benchmark(benchmark: Benchmark) -> Benchmark:
    members = tuple(member + GENERATED for member in benchmark.tasks)
    return Benchmark(benchmark.name + GENERATED, members, weighted=benchmark.weighted)


def is_generated(name: str) -> bool:
    """Whether a registered name is one that `add_generated` added."""
    if not name.endswith(GENERATED):
        return False
    entry = tasks.get(name)
    return entry is _render or (isinstance(entry, Benchmark) and all(map(is_generated, entry.tasks)))


def _render(name: str) -> GeneratedChoiceTask:
    plain = name.removesuffix(GENERATED)
    return GeneratedChoiceTask(name, tasks.get(plain)(plain))
