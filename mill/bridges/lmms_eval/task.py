"""A task of lmms-eval as a task of mill.

lmms-eval loads the documents, renders prompts with images, video and audio, filters and scores; mill sends the requests.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from mill.api.errors import DataError
from mill.api.judge import Judge
from mill.api.message import Context, Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import Opaque, RenderSettings, Sample, Task, TaskType, Value
from mill.bridges.lm_eval.library import FEWSHOT_SEED, Splits, one_line
from mill.bridges.lm_eval.scoring import metric_name
from mill.bridges.lmms_eval import library
from mill.bridges.lmms_eval.judge import JUDGE, Refused, Unanswered, answers
from mill.bridges.lmms_eval.messages import Messages, decoding_options, deferred, from_lmms_eval, user_turn
from mill.bridges.lmms_eval.scoring import NoNumber, aggregated, prepare_filters, scored
from mill.support.terminal import describe, warn
from mill.tasks.hooks import attempt

_MEDIA = ("Image", "Audio", "Video", "Pdf")
_BATCH = 64


def plain_rows(docs: Any) -> Iterator[dict[str, Any]]:
    """The rows of a dataset. Media are read and not decoded, which would take longer than all the rest."""
    features = getattr(docs, "features", None)
    if not isinstance(features, Mapping) or not hasattr(docs, "with_format"):
        yield from (_plain(row) for row in docs)
        return
    media = [name for name, feature in features.items() if _has_media(feature)]
    for batch in docs.with_format("arrow").iter(batch_size=_BATCH):
        for row in batch.to_pylist():
            digests = {name: digest for name in media if (digest := _digest(row.pop(name))) is not None}
            yield _plain(row) | digests


def _digest(value: Any) -> str | None:
    """Of the bytes of a cell, or of the path in their stead; None where the cell is empty."""
    hasher = hashlib.blake2b(digest_size=8)
    found = [_update(hasher, part) for part in (value if isinstance(value, list) else [value])]
    return f"blake2b:{hasher.hexdigest()}" if any(found) else None


def _update(hasher: Any, value: Any) -> bool:
    given = value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value
    if given is None:
        return False
    hasher.update(given if isinstance(given, bytes) else str(given).encode())
    return True


def _has_media(feature: Any) -> bool:
    if type(feature).__name__ in _MEDIA:
        return True
    if isinstance(feature, Mapping):
        return any(map(_has_media, feature.values()))
    if isinstance(feature, (list, tuple)):
        return any(map(_has_media, feature))
    inner = getattr(feature, "feature", None)
    return inner is not None and _has_media(inner)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, tuple, Mapping, datetime.date))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items() if _is_plain(inner)}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value if _is_plain(inner)]
    return value.isoformat() if isinstance(value, datetime.date) else value


GENERATED, CHOICES = "generate_until", "multiple_choice"
MOST_PROBED = 100  # documents that are searched for media


class LmmsEvalTask(Task):
    """One task of lmms-eval. `task` is lmms-eval's own object."""

    open_metrics = True

    def __init__(self, name: str, task: Any, judge: Judge | None = None) -> None:
        self.task, self.judge = task, judge
        chosen = task.OUTPUT_TYPE == CHOICES
        self.task_type = TaskType.MULTIPLE_CHOICE if chosen else TaskType.GENERATIVE_QA
        self.kind = LOGLIKELIHOOD if chosen else GENERATE
        self.version = f"lmms-eval {library.version()}, task {task.VERSION}"
        self.takes_shots = self._text_only and hasattr(task, "sampler")
        self.n_shots = int(task.get_config("num_fewshot") or 0) if self.takes_shots else 0
        super().__init__(name)
        prepare_filters(task)
        self._instances: dict[int, list[Any]] = {}
        self._prompts: dict[int, Messages] = {}
        self._lock = threading.Lock()
        self._rendered = functools.lru_cache(maxsize=16)(self._render)

    @property
    def _text_only(self) -> bool:
        config = self.task.config
        return config.doc_to_visual is None and not callable(config.doc_to_messages)

    @functools.cached_property
    def modalities(self) -> frozenset[str]:  # type: ignore[override]
        """From the first document that has media."""
        found: set[str] = set()
        if not self._text_only:
            with self._calls("a prompt cannot be rendered"):
                for number in range(min(len(self.task.eval_docs), MOST_PROBED)):
                    found = {media.kind for message in self._render(number) for media in message.media}
                    if found:
                        break
        return frozenset({"text", *found})

    def samples(self) -> Sequence[Sample]:
        with self._calls("the documents cannot be read"):
            dataset = self.task.dataset
            if isinstance(dataset, Splits):
                dataset.require(self.task.config.test_split or self.task.config.validation_split, "which is evaluated")
            return [Sample(str(number), row) for number, row in enumerate(plain_rows(self.task.eval_docs))]

    def prepare(self, samples: Sequence[Sample], settings: RenderSettings) -> None:
        """Render all prompts in order: lmms-eval draws the examples of all documents from one stream of random numbers."""
        task, self._instances, self._prompts = self.task, {}, {}
        with self._calls("prompts cannot be rendered"):
            shots = task.get_config("num_fewshot")
            if settings.n_shots is not None and shots != 0:  # as in lmms-eval, a task that says 0 keeps it
                task.set_config(key="num_fewshot", value=settings.n_shots)
            elif shots is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=FEWSHOT_SEED if settings.seed is None else settings.seed)
            task.build_all_requests(limit=len(samples), rank=0, world_size=1)
            for instance in task.instances:
                self._instances.setdefault(int(instance.doc_id), []).append(instance)
            for sample in samples:
                number = int(sample.id)
                if not self._text_only:
                    where = f"sample {number} of {self.name}"
                    messages = self._rendered(number)
                    self._prompts[number] = deferred(messages, functools.partial(self._render_again, number), where)
                elif self.kind == GENERATE and settings.apply_chat_template:  # a second draw, as for lmms-eval's chat models
                    self._prompts[number] = user_turn([], self._context(self.task.eval_docs[number]))

    def _context(self, doc: Any) -> str:
        return str(self.task.fewshot_context(doc, self.task.get_config("num_fewshot") or 0))

    def _render(self, number: int) -> Messages:
        """The messages of a document with its media."""
        from lmms_eval.api.task import ConfigurableMessagesTask

        doc = self.task.eval_docs[number]
        if self.kind == GENERATE and callable(self.task.config.doc_to_messages):
            return from_lmms_eval(ConfigurableMessagesTask.doc_to_messages(self.task, doc))
        text = self.task.doc_to_text(doc)
        if not isinstance(text, (str, int, float)):
            raise DataError(f"doc_to_text gives a {type(text).__name__}, not a text")
        return user_turn(self.task.doc_to_visual(doc), str(text))

    def _render_again(self, number: int) -> Messages:
        """For media that are sent now. Backends read them in threads, so the process's output stays as it is."""
        with self._lock, one_line(f"{self.name}: the prompt of sample {number} cannot be rendered"):
            return self._rendered(number)

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        """The instances of a document, each as often as the task repeats it."""
        number = int(sample.id)
        if self.kind == LOGLIKELIHOOD:
            return [self._choice(number, instance, settings) for instance in self._instances[number]]
        if number in self._prompts:
            context: Context = _with_system(self._prompts[number], settings.system_prompt)
        else:
            context = settings.frame(str(self._instances[number][0].args[0]))
        config, repeats = self.task.config, settings.repeats
        plain = isinstance(context, str)
        options = settings.options(**decoding_options(config.generation_kwargs, config.fewshot_delimiter, plain=plain))
        draws = range(0, self._repeats * repeats, repeats)
        return [Request(GENERATE, context, options=options, repeats=repeats, draw=draw) for draw in draws]

    def _choice(self, number: int, instance: Any, settings: RenderSettings) -> Request:
        text, continuation = str(instance.args[0]), str(instance.args[1])
        context: Context = settings.frame(text)
        if self._prompts.get(number) and self._prompts[number][0].media:
            media = self._prompts[number][0].media  # the text has the description and examples, too
            context = _with_system((Message("user", (*media, text)),), settings.system_prompt)
        return Request(LOGLIKELIHOOD, context, continuation, repeats=settings.repeats)

    @property
    def _repeats(self) -> int:
        return int(self.task.get_config("repeats") or 1)

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return self._scored(sample, responses, None)

    def score_judged(
        self, sample: Sample, responses: Sequence[Response], judgements: Sequence[str | None]
    ) -> dict[str, Value]:
        return self._scored(sample, responses, judgements)

    def _scored(
        self, sample: Sample, responses: Sequence[Response], judgements: Sequence[str | None] | None, *, chat: bool = True
    ) -> dict[str, Value]:
        with library.quiet(), library.environment(), answers(judgements, chat=chat):
            _seed(int(sample.id))
            given = [_response(response) for response in responses]
            repeats = 1 if self.kind == LOGLIKELIHOOD else self._repeats
            found = scored(self.task, self._doc(sample), given, repeats)
        return {metric_name(metric, key): _value(value) for (metric, key), value in found.items()}

    def judge_requests(
        self, sample: Sample, responses: Sequence[Response], judgements: Sequence[str], *, chat: bool
    ) -> list[Request]:
        try:
            self._scored(sample, responses, judgements, chat=chat)
        except Unanswered as call:
            return [call.request]
        except Refused as error:
            raise DataError(f"{self.name} cannot be scored: {error}") from error
        return []

    def aggregate(self, metric: str, values: Sequence[Any]) -> tuple[float, float | None]:
        """NaN, with a warning, where the task's aggregation gives no number or fails; other metrics keep theirs."""
        try:
            with library.quiet(), answers(None):
                return aggregated(self.task, metric, values)
        except NoNumber as found:
            why = f"gives {found}"
        except Exception as error:  # third-party code may raise anything
            why = f"raised {describe(error)}"
        warn(f"{self.name}: {metric} has no value, because its aggregation {why}")
        return math.nan, None

    def target(self, sample: Sample) -> Any:
        with library.quiet():
            return attempt(lambda: self.task.doc_to_target(self._doc(sample)))

    def choice_texts(self, sample: Sample) -> Sequence[str]:
        if self.kind != LOGLIKELIHOOD:
            return ()
        with library.quiet():
            return [str(choice) for choice in self.task.doc_to_choice(self._doc(sample))]

    def _doc(self, sample: Sample) -> Any:
        """The document as lmms-eval scores it: without media, unless the task says that its scoring needs them."""
        return self.task.eval_docs_no_media[int(sample.id)]

    def _calls(self, problem: str) -> AbstractContextManager[None]:
        return library.running(f"{self.name}: {problem}")


def _seed(number: int) -> None:
    """Some tasks take a random choice for an answer that they cannot read. It is the same each time that a sample is scored,
    as it must be where scoring starts again with each text of a judge, and another for each sample."""
    import numpy as np

    random.seed(number)
    np.random.seed(number)


def _with_system(messages: Messages, system: str | None) -> Messages:
    if not system:
        return messages
    rest = messages[1:] if messages[0].role == "system" else messages
    return (Message("system", system), *rest)


def _response(response: Response) -> Any:
    """A response as lmms-eval's models return it: of a choice the loss, of which the smallest is best."""
    if response.text is not None:
        return response.text
    return (-float(response.score or 0.0), bool(response.is_greedy))


def _value(value: Any) -> Value:
    """A plain number as it is; anything else is for lmms-eval's own aggregation alone."""
    return float(value) if isinstance(value, (bool, int, float)) else Opaque(value)


def make_task(name: str, task: Any, judged: bool) -> LmmsEvalTask:
    """A task of lmms-eval's simple form takes the form with messages, which adds methods only."""
    from lmms_eval.api.task import ConfigurableMessagesTask, ConfigurableTask

    if type(task) is ConfigurableTask and task.OUTPUT_TYPE == GENERATED:
        task.__class__ = ConfigurableMessagesTask
    return LmmsEvalTask(name, task, JUDGE if judged else None)
