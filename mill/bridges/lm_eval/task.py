"""A task of lm-evaluation-harness as a task of mill.

lm-eval loads the documents, draws the examples, renders the prompts, filters and scores; mill sends the requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from typing import Any

from mill.api.errors import DataError
from mill.api.message import AUDIO, IMAGE, Context, Media, Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.api.task import Opaque, RenderSettings, Sample, Task, TaskType, Value
from mill.bridges.lm_eval import library
from mill.bridges.lm_eval.library import Splits, compiled_once, local_first, missing_part, one_line
from mill.bridges.lm_eval.scoring import aggregated, filtered, hub_metrics, limits_of, metric_name, scored
from mill.sandbox.programs import chosen_sandbox
from mill.tasks.hooks import attempt

PREFIX = "lm-eval:"
_TYPES = {
    "multiple_choice": TaskType.MULTIPLE_CHOICE,
    "loglikelihood": TaskType.MULTIPLE_CHOICE,
    "loglikelihood_rolling": TaskType.PERPLEXITY,
    "generate_until": TaskType.GENERATIVE_QA,
}
_KINDS = {"multiple_choice": LOGLIKELIHOOD, "loglikelihood": LOGLIKELIHOOD, "loglikelihood_rolling": ROLLING}


class LmEvalTask(Task):
    """One task of lm-eval. `task` is lm-eval's own object."""

    open_metrics = True
    own_prompts = True

    def __init__(self, name: str, task: Any, random_state: Any = None) -> None:
        self.task, self._random_state = task, random_state
        output_type = str(task.OUTPUT_TYPE or "generate_until")
        self.task_type = _TYPES[output_type]
        self.kind = _KINDS.get(output_type, GENERATE)
        self.version = f"lm-eval {library.version()}, task {task.VERSION}"
        shots = task.get_config("num_fewshot")
        self.n_shots = int(shots or 0)
        self.takes_shots = shots != 0 and task.OUTPUT_TYPE != "loglikelihood_rolling"  # a task that says 0 stays at 0
        self.runs_code = bool(getattr(task, "UNSAFE_CODE", False))
        media = {IMAGE: task.get_config("doc_to_image"), AUDIO: task.get_config("doc_to_audio")}
        self.modalities = frozenset({"text", *(kind for kind, given in media.items() if given)})
        super().__init__(name)
        self._check_config()
        self._docs: list[Any] = []
        self._instances: dict[int, list[Any]] = {}
        self._without_template = False
        self._without_gold = 0

    def _check_config(self) -> None:
        """What lm-eval takes without a word, and then fails on when it scores, or reports nothing."""
        for key in ("metric_list", "filter_list"):
            if self.task.get_config(key) == []:
                raise DataError(f"{self.name} has an empty {key}: nothing would be measured")
        if self.task.get_config("process_results") is None:
            missing = [name for name, function in getattr(self.task, "_metric_fn_list", {}).items() if function is None]
            if missing:
                raise DataError(f"{self.name} needs the metric {missing[0]}, which neither lm-eval nor the hub gives")

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Tasks that are Python classes may send requests of several kinds, as the first document shows."""
        if self.task.OUTPUT_TYPE is not None:
            return frozenset({self.kind})
        with self._calls("the requests cannot be made"):
            made = self.task.construct_requests(doc=self._documents()[0], ctx="", metadata=(self.name, 0, 1))
        return frozenset(instance.request_type for instance in (made if isinstance(made, list) else [made]))

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(number), _plain(doc)) for number, doc in enumerate(self._documents())]

    def _documents(self) -> list[Any]:
        """All documents. lm-eval's object gets the same list: its own may be shuffled again at each access."""
        if not self._docs:
            with self._calls("the documents cannot be read"):
                self._docs = list(self.task.eval_docs)
            evaluated = self.task.get_config("test_split") or self.task.get_config("validation_split")
            self._check_split(evaluated, "which is evaluated")
            attribute = "test_docs" if self.task.has_test_docs() else "validation_docs"
            setattr(self.task, attribute, lambda: self._docs)
        return self._docs

    def prepare(self, samples: Sequence[Sample], settings: RenderSettings) -> None:
        """Render all prompts at once: lm-eval draws the examples of all documents from one stream of random numbers."""
        task, chat = self.task, settings.apply_chat_template
        multiturn = library.default_multiturn() if settings.fewshot_as_multiturn is None else settings.fewshot_as_multiturn
        self._documents()
        shots = settings.n_shots if settings.n_shots is not None and self.takes_shots else self.n_shots
        if shots:
            self._check_split(self._shots_split(), "which its examples are drawn from")
        with self._calls("prompts cannot be rendered"), library.random_numbers(self._random_state):
            task.set_config(key="num_fewshot", value=shots)
            task.set_fewshot_seed(seed=library.FEWSHOT_SEED if settings.seed is None else settings.seed)
            task.build_all_requests(
                limit=len(samples),
                rank=0,
                world_size=1,
                system_instruction=settings.system_prompt,
                apply_chat_template=chat,
                fewshot_as_multiturn=chat and multiturn,
                chat_template=return_messages if chat else None,
            )
        self._instances = {}
        for instance in task.instances:
            self._instances.setdefault(instance.doc_id, []).append(instance)
        for instances in self._instances.values():
            instances.sort(key=lambda instance: int(instance.idx))
        self._try_scoring()
        self._without_gold = sum(1 for sample in samples if attempt(partial(self._lacks_gold, sample)))
        first = self._instances[min(self._instances)][0]
        self._without_template = chat and self.kind != ROLLING and not isinstance(first.args[0], ChatPrompt)

    def _try_scoring(self) -> None:
        """Score an empty answer, so that a package that only scoring needs is missed before the model loads."""
        if self.runs_code:
            return
        instances = self._instances[min(self._instances)]
        empty: list[Any] = [
            "" if one.request_type == GENERATE else -1.0 if one.request_type == ROLLING else (-1.0, False)
            for one in instances
            for _ in range(one.repeats or 1)
        ]
        try:
            with compiled_once(), library.silent():
                scored(self.task, instances[0].doc, empty, self._repeats)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an empty answer may be more than a task's scoring can take
            missing = missing_part(error)
            if missing is not None:
                raise DataError(f"{self.name} cannot be scored: {missing}") from error

    def warnings(self) -> list[str]:
        lines = ["its prompts are sent without the chat template, as by lm-eval"] if self._without_template else []
        if self._without_gold:
            lines.append(
                f"{self._without_gold} samples have a gold answer that is none of the choices: wrong, as in lm-eval"
            )
        if self.runs_code and chosen_sandbox().isolates:
            lines.append(f"programs run in {chosen_sandbox().name}")
        return lines

    def example_docs(self) -> list[Any]:
        """The documents that examples are drawn from."""
        self._check_split(self._shots_split(), "which its examples are drawn from")
        with self._calls("the examples cannot be read"), library.random_numbers(self._random_state):
            return list(self.task.fewshot_docs() or ())

    def _shots_split(self) -> str | None:
        config = self.task.config
        own = getattr(config, "fewshot_split", None)
        return own or getattr(config, "training_split", None) or getattr(config, "validation_split", None)

    def _check_split(self, split: str | None, why: str) -> None:
        dataset = getattr(self.task, "dataset", None)
        if isinstance(dataset, Splits):
            with one_line(self.name):
                dataset.require(split, why)

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        """The instances of a document, each as often as the task repeats it."""
        return [
            as_request(instance, settings.options, repeats=settings.repeats, draw=draw * settings.repeats)
            for instance in self._instances[int(sample.id)]
            for draw in range(instance.repeats or 1)
        ]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        with compiled_once(), library.silent():
            found = scored(self.task, sample.doc, [_response(response) for response in responses], self._repeats)
        return {metric_name(metric, key): self._value(metric, value) for (metric, key), value in found.items()}

    def _value(self, metric: str, value: Any) -> Value:
        """A number whose mean is the metric as it is; what is aggregated otherwise is for lm-eval alone."""
        from lm_eval.api.metrics import mean

        by_mean = self.task.aggregation().get(metric, mean) is mean
        return float(value) if by_mean and isinstance(value, (bool, int, float)) else Opaque(value)

    @property
    def _repeats(self) -> int:
        repeats = self.task.get_config("repeats")
        return 1 if repeats is None else int(repeats)

    def aggregate(self, metric: str, values: Sequence[Any]) -> tuple[float, float | None]:
        with library.silent():
            return aggregated(self.task, metric, values)

    def limits(self, metric: str) -> tuple[float, float]:
        return limits_of(self.task, metric)

    def target(self, sample: Sample) -> Any:
        with compiled_once(), library.silent():
            target = self.task.doc_to_target(sample.doc)
        choices = self._choices(sample)
        return choices[target] if isinstance(target, int) and 0 <= target < len(choices) else target

    def extracts(self, sample: Sample) -> bool:
        return bool(self._choices(sample)) or bool(self.task.get_config("filter_list"))

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> Any:
        """The choice with the largest log-probability, or what the first filter finds in the answer."""
        choices = self._choices(sample)
        if choices:
            scores = [response.score or 0.0 for response in responses[: len(choices)]]
            return choices[scores.index(max(scores))]
        if self.kind != GENERATE:
            return None
        with compiled_once(), library.silent():
            answers = [_response(response) for response in responses]
            first = next(iter(filtered(self.task, sample.doc, answers, self._repeats).values()))
        return first[0] if isinstance(first[0], (str, int, float)) else str(first[0])

    def choice_texts(self, sample: Sample) -> Sequence[str]:
        return self._choices(sample)

    def _choices(self, sample: Sample) -> list[str]:
        """The choices that are scored; none where it is not multiple choice."""
        if self.task.OUTPUT_TYPE != "multiple_choice" or not hasattr(self.task, "doc_to_choice"):
            return []
        with compiled_once(), library.silent():
            return [str(choice) for choice in self.task.doc_to_choice(sample.doc)]

    def _lacks_gold(self, sample: Sample) -> bool:
        """Whether no choice can be right, which lm-eval only logs."""
        choices = self._choices(sample)
        own_scoring = self.task.get_config("process_results") is not None or bool(
            getattr(self.task, "multiple_input", False)
        )
        if not choices or own_scoring:
            return False
        with compiled_once(), library.silent():
            target = self.task.doc_to_target(sample.doc)
        golds = target if isinstance(target, list) else [target]
        indices = range(-len(choices), len(choices))
        return not any(gold in (choices if isinstance(gold, str) else indices) for gold in golds)

    def _calls(self, problem: str) -> AbstractContextManager[None]:
        return loading(f"{self.name}: {problem}")


@contextmanager
def loading(what: str) -> Iterator[None]:
    """lm-eval's code runs here with local data first, without its output, and with one line for every failure."""
    with one_line(what), library.quiet(), compiled_once(), local_first(), hub_metrics():
        yield


def _plain(doc: Any) -> Any:
    """A document that can be recorded: images by their content's digest."""
    if isinstance(doc, Mapping):
        return {name: _plain(value) for name, value in doc.items()}
    if isinstance(doc, list):
        return [_plain(value) for value in doc]
    return f"<image {Media(IMAGE, doc).digest}>" if type(doc).__module__.startswith("PIL.") else doc


def _response(response: Response) -> Any:
    """A response as lm-eval's models return it."""
    if response.text is not None:
        return response.text
    return response.score if response.is_greedy is None else (response.score, response.is_greedy)


# Instances of lm-eval as requests of mill, and the chat template that lm-eval gets: one that returns the messages.

_MARK = "\u2061\u2062"  # invisible; starts the text of every ChatPrompt, so that one that lm-eval changed is noticed
_PLACEHOLDERS = {"<image>": IMAGE, "<audio>": AUDIO}
_MEDIA_ARGUMENTS = {"visual": IMAGE, "audio": AUDIO}


class ChatPrompt(str):
    """What lm-eval takes for the rendered text of a chat: a text that carries the messages."""

    messages: tuple[Message, ...]

    def __new__(cls, turns: Sequence[Mapping[str, Any]]) -> ChatPrompt:
        prompt = super().__new__(cls, _MARK + "\n".join(f"<{turn['role']}> {turn['content']}" for turn in turns))
        prompt.messages = tuple(Message(str(turn["role"]), str(turn["content"])) for turn in turns)
        return prompt


def return_messages(turns: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> ChatPrompt:
    """A chat template for lm-eval. Messages that end with the assistant's are continued by the model."""
    return ChatPrompt(turns)


def context_of(prompt: str, media: Mapping[str, Any] | None = None) -> Context:
    """The prompt of an instance: messages, or a text. With media it is always a dialog."""
    if not isinstance(prompt, ChatPrompt) and _MARK in prompt:
        raise DataError("its prompts are changed after the chat template: leave out --apply_chat_template")
    if not media:
        return prompt.messages if isinstance(prompt, ChatPrompt) else str(prompt)
    messages = prompt.messages if isinstance(prompt, ChatPrompt) else (Message("user", str(prompt)),)
    waiting = {kind: [Media(kind, one) for one in media.get(name) or ()] for name, kind in _MEDIA_ARGUMENTS.items()}
    placed = tuple(Message(message.role, _placed(message.text, waiting)) for message in messages)
    if any(waiting.values()):
        raise DataError("a prompt has more media than placeholders")
    return placed


def _placed(text: str, waiting: dict[str, list[Media]]) -> str | tuple[str | Media, ...]:
    """A text with the next media in place of its placeholders, which are used up."""
    pieces = filter(None, re.split(f"({'|'.join(_PLACEHOLDERS)})", text))
    parts = tuple(waiting[kind].pop(0) if waiting.get(kind := _PLACEHOLDERS.get(piece, "")) else piece for piece in pieces)
    return parts if any(isinstance(part, Media) for part in parts) else text


# Options that change nothing at these values.
_WITHOUT_EFFECT = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True, "early_stopping": False}


def as_request(instance: Any, decoding: Callable[..., dict[str, Any]], *, repeats: int = 1, draw: int = 0) -> Request:
    """`decoding` turns the decoding options of the instance into those of the request."""
    kind, arguments = instance.request_type, instance.args
    if kind == ROLLING:
        return Request(ROLLING, str(arguments[0]), repeats=repeats)
    context = context_of(arguments[0], arguments[2] if len(arguments) > 2 else None)
    if kind == LOGLIKELIHOOD:
        return Request(LOGLIKELIHOOD, context, str(arguments[1]), repeats=repeats)
    if kind != GENERATE:
        raise DataError(f"lm-eval sends {kind} requests here, which mill does not have")
    return Request(GENERATE, context, options=decoding(**_effective(arguments[1])), repeats=repeats, draw=draw)


def _effective(given: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding options without those that change nothing, such as an empty stop string."""
    options = {name: value for name, value in given.items() if _WITHOUT_EFFECT.get(name, _WITHOUT_EFFECT) != value}
    until = options.get("until")
    if until is not None:
        options["until"] = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
    return options
