"""Any model of mill as a model of lmms-eval: `--model mill --model_args spec=SPEC`.

lmms-eval gives the prompts and scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lmms_eval.api.instance import GenerationResult
from lmms_eval.api.model import lmms

from mill.api.errors import SpecError
from mill.api.message import Context
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.bridges.lmms_eval.messages import Messages, decoding_options, from_lmms_eval, user_turn
from mill.bridges.recorded_model import RecordedModel


class _Loss(GenerationResult):  # type: ignore[misc]
    """A loss and whether the continuation is greedy. The evaluator of lmms-eval 0.7.3 makes a text of a plain pair."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.text)


class MillLmms(lmms):  # type: ignore[misc]
    """Prompts as messages, for tasks that generate text."""

    is_simple = False

    def __init__(self, spec: str = "", max_batch_size: int | None = None, **arguments: Any) -> None:
        """`spec` and the other arguments are those of `RecordedModel`; `max_batch_size` is for lmms-eval's models alone."""
        super().__init__()
        self.recorded = RecordedModel.from_arguments({"spec": spec, **arguments})
        self.model = self.recorded.model

    def generate_until(self, requests: list[Any]) -> list[str]:
        made = []
        for context, given in (self._generation(*instance.args) for instance in requests):
            options = generation_options(**decoding_options(given, "\n\n", plain=isinstance(context, str)))
            made.append(Request(GENERATE, context, options=options))
        return [str(response.text) for response in self.recorded.answers(made)]

    def _generation(
        self, context: str, doc_to_messages: Any, gen_kwargs: Any, doc_id: int, task: str, split: str
    ) -> tuple[Context, Any]:
        return from_lmms_eval(doc_to_messages(self.task_dict[task][split][doc_id])), gen_kwargs

    def loglikelihood(self, requests: list[Any]) -> list[_Loss]:
        raise SpecError("choices are scored by the simple form of this model: --force_simple")

    def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
        raise SpecError("mill does not run lmms-eval's tasks of several rounds")

    def clean(self) -> None:
        self.model.clean()


class MillSimpleLmms(MillLmms):
    """Prompts as text and media, for tasks that compare choices."""

    is_simple = True

    def _generation(  # type: ignore[override]
        self, context: str, gen_kwargs: Any, doc_to_visual: Callable[[Any], Any], doc_id: int, task: str, split: str
    ) -> tuple[Context, Any]:
        return self._prompt(context, doc_to_visual, self.task_dict[task][split][doc_id]), gen_kwargs

    def loglikelihood(self, requests: list[Any]) -> list[_Loss]:
        """The loss of each continuation, of which lmms-eval takes the smallest."""
        made = [self._choice(*instance.args) for instance in requests]
        answers = self.recorded.answers(made)
        return [_Loss((-float(answer.score or 0.0), bool(answer.is_greedy))) for answer in answers]

    def _choice(
        self, context: str, continuation: Any, doc_to_visual: Callable[[Any], Any], doc_id: int, task: str, split: str
    ) -> Request:
        doc = self.task_dict[task][split][doc_id]
        text = continuation if isinstance(continuation, str) else str(continuation(doc))
        return Request(LOGLIKELIHOOD, self._prompt(context, doc_to_visual, doc), text)

    def _prompt(self, context: str, doc_to_visual: Callable[[Any], Any], doc: Any) -> Context:
        """Text alone goes through a chat template where the model has one and the spec says so."""
        messages: Messages = user_turn(doc_to_visual(doc) or [], context)
        return messages if messages[0].media or self.model.use_chat_template else context
