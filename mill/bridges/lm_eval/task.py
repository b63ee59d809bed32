"""A task of lm-evaluation-harness as a task of mill.

lm-eval loads the documents, draws the examples, renders the prompts, filters and scores; mill sends the requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from mill.api.errors import DataError
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.api.task import Opaque, RenderSettings, Sample, Task, TaskType, Value
from mill.bridges.lm_eval import library
from mill.bridges.lm_eval.data import Splits, local_first
from mill.bridges.lm_eval.prompts import context_of, keep_messages
from mill.bridges.lm_eval.scoring import aggregated, metric_name, scored
from mill.bridges.lm_eval.templates import compiled_once

PREFIX = "lm-eval:"
_TYPES = {
    "multiple_choice": TaskType.MULTIPLE_CHOICE,
    "loglikelihood": TaskType.MULTIPLE_CHOICE,
    "loglikelihood_rolling": TaskType.PERPLEXITY,
    "generate_until": TaskType.GENERATIVE_QA,
}
_KINDS = {"multiple_choice": LOGLIKELIHOOD, "loglikelihood": LOGLIKELIHOOD, "loglikelihood_rolling": ROLLING}
# Options that change nothing at these values.
_WITHOUT_EFFECT = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True, "early_stopping": False}


class LmEvalTask(Task):
    """One task of lm-eval. `task` is lm-eval's own object."""

    open_metrics = True
    takes_shots = True

    def __init__(self, name: str, task: Any) -> None:
        self.task = task
        output_type = str(task.OUTPUT_TYPE or "generate_until")
        self.task_type = _TYPES[output_type]
        self.kind = _KINDS.get(output_type, GENERATE)
        self.version = f"lm-eval {library.version()}, task {task.VERSION}"
        self.n_shots = int(task.get_config("num_fewshot") or 0)
        super().__init__(name)
        self._docs: list[Any] = []
        self._instances: dict[int, list[Any]] = {}

    def samples(self) -> Sequence[Sample]:
        """All documents. lm-eval's object gets the same list: its own may be shuffled anew at each access."""
        if not self._docs:
            with self._calls("the documents cannot be read"):
                self._docs = list(self.task.eval_docs)
            evaluated = self.task.get_config("test_split") or self.task.get_config("validation_split")
            self._check_split(evaluated, "which is evaluated")
            attribute = "test_docs" if self.task.has_test_docs() else "validation_docs"
            setattr(self.task, attribute, lambda: self._docs)
        return [Sample(str(number), doc) for number, doc in enumerate(self._docs)]

    def prepare(self, samples: Sequence[Sample], settings: RenderSettings) -> None:
        """Render all prompts at once: lm-eval draws the examples of all documents from one stream of random numbers."""
        task = self.task
        with self._calls("prompts cannot be rendered"):
            shots = task.get_config("num_fewshot")
            if settings.n_shots is not None and shots != 0:  # as in lm-eval, a task that says 0 keeps it
                task.set_config(key="num_fewshot", value=settings.n_shots)
            elif shots is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=library.FEWSHOT_SEED if settings.seed is None else settings.seed)
            task.build_all_requests(
                limit=len(samples),
                rank=0,
                world_size=1,
                system_instruction=settings.system_prompt,
                apply_chat_template=settings.apply_chat_template,
                fewshot_as_multiturn=settings.apply_chat_template,
                chat_template=keep_messages if settings.apply_chat_template else None,
            )
        if task.get_config("num_fewshot"):
            self._check_split(self._shots_split(), "which its examples are drawn from")
        self._instances = {}
        for instance in task.instances:
            self._instances.setdefault(instance.doc_id, []).append(instance)
        for instances in self._instances.values():
            instances.sort(key=lambda instance: int(instance.idx))

    def _shots_split(self) -> str | None:
        config = self.task.config
        own = getattr(config, "fewshot_split", None)
        return own or getattr(config, "training_split", None) or getattr(config, "validation_split", None)

    def _check_split(self, split: str | None, why: str) -> None:
        dataset = getattr(self.task, "dataset", None)
        if isinstance(dataset, Splits):
            dataset.require(split, why)

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        """The instances of a document, each as often as the task repeats it."""
        return [
            self._request(instance, settings, draw)
            for instance in self._instances[int(sample.id)]
            for draw in range(instance.repeats or 1)
        ]

    def _request(self, instance: Any, settings: RenderSettings, draw: int) -> Request:
        kind, arguments = instance.request_type, instance.args
        if kind == LOGLIKELIHOOD:
            return Request(LOGLIKELIHOOD, context_of(arguments[0]), str(arguments[1]), repeats=settings.repeats)
        if kind == ROLLING:
            return Request(ROLLING, str(arguments[0]), repeats=settings.repeats)
        if kind != GENERATE:
            raise DataError(f"{self.name} sends {kind} requests, which mill does not have")
        options = {
            name: value for name, value in arguments[1].items() if _WITHOUT_EFFECT.get(name, _WITHOUT_EFFECT) != value
        }
        return Request(
            GENERATE, context_of(arguments[0]), options=settings.options(**options), repeats=settings.repeats, draw=draw
        )

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        with compiled_once(), library.quiet():
            found = scored(self.task, sample.doc, [_response(response) for response in responses], self._repeats)
        return {metric_name(metric, key): _value(value) for (metric, key), value in found.items()}

    @property
    def _repeats(self) -> int:
        return int(self.task.get_config("repeats") or 1)

    def aggregate(self, metric: str, values: Sequence[Any]) -> tuple[float, float | None]:
        with library.quiet():
            return aggregated(self.task, metric, values)

    def target(self, sample: Sample) -> Any:
        with compiled_once(), library.quiet():
            return self.task.doc_to_target(sample.doc)

    def _calls(self, problem: str) -> AbstractContextManager[None]:
        return loading(f"{self.name}: {problem}")


@contextmanager
def loading(what: str) -> Iterator[None]:
    """lm-eval's code runs here with local data first, without its output, and with one line for whatever fails."""
    with library.one_line(what), library.quiet(), compiled_once(), local_first():
        yield


def _response(response: Response) -> Any:
    """A response as lm-eval's models return it."""
    if response.text is not None:
        return response.text
    return response.score if response.is_greedy is None else (response.score, response.is_greedy)


def _value(value: Any) -> Value:
    """A plain number as it is; anything else is for lm-eval's own aggregation alone."""
    return float(value) if isinstance(value, (bool, int, float)) else Opaque(value)
