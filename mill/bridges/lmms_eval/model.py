"""Any model of mill as a model of lmms-eval: `--model mill --model_args spec=SPEC`.

lmms-eval gives the prompts and scores; the requests run on mill's executor. lmms-eval cannot count a request
that failed, so its evaluation ends there; with `output_dir` the other answers are recorded, and the next run reuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lmms_eval.api.instance import GenerationResult
from lmms_eval.api.model import lmms

from mill.api.errors import RunError, SpecError
from mill.api.message import Context
from mill.api.model import MillModel, identity_of
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.bridges.lmms_eval.messages import Messages, from_lmms_eval, user_turn
from mill.bridges.lmms_eval.options import decoding_options
from mill.execute.backend import LocalBackend
from mill.execute.executor import Executor, Store
from mill.models.spec.open import open_model, resolve_spec
from mill.models.spec.parse import Spec, parse_spec
from mill.runs.folder import run_folder
from mill.runs.record import Record

_CONDITION = "lmms-eval"


class _Memory:
    """Stores responses of one evaluation."""

    def __init__(self) -> None:
        self._responses: dict[str, Response] = {}

    def get(self, request: Request) -> Response | None:
        return self._responses.get(request.key)

    def put(self, request: Request, response: Response) -> Response:
        self._responses[request.key] = response
        return response


class _Loss(GenerationResult):  # type: ignore[misc]
    """A loss and whether the continuation is greedy. The evaluator of lmms-eval 0.7.3 makes a text of a plain pair."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.text)


class MillLmms(lmms):  # type: ignore[misc]
    """Prompts as messages, for tasks that generate text."""

    is_simple = False

    def __init__(
        self,
        spec: str = "",
        output_dir: str = "",
        batch_size: int | str | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
        **arguments: Any,
    ) -> None:
        """`arguments` are further arguments of the spec. lmms-eval's own batch size, 1 unless given, is not used: mill
        chooses one, and `mill_batch_size` sets it. `device` goes to the backends that take it."""
        super().__init__()
        if not spec:
            raise SpecError("--model_args spec=SPEC names a model, as in `mill eval SPEC`")
        size = arguments.pop("mill_batch_size", None)
        parsed = resolve_spec(parse_spec(str(spec)))
        named = {**parsed.arguments, **arguments, **({"device": device} if device is not None else {})}
        self.model: MillModel = open_model(Spec(parsed.backend, named), batch_size=size)
        self.model.ready()
        self._store: Store = _record(self.model, Path(output_dir)) if output_dir else _Memory()
        self._executor = Executor(LocalBackend(self.model), self._store)

    def generate_until(self, requests: list[Any]) -> list[str]:
        return self._texts(self._generation(*instance.args) for instance in requests)

    def _generation(
        self, context: str, doc_to_messages: Any, gen_kwargs: Any, doc_id: int, task: str, split: str
    ) -> tuple[Context, Any]:
        return from_lmms_eval(doc_to_messages(self.task_dict[task][split][doc_id])), gen_kwargs

    def _texts(self, prompts: Iterable[tuple[Context, Any]]) -> list[str]:
        drawn: dict[str, int] = {}
        requests = []
        for context, given in prompts:
            options = generation_options(**decoding_options(given, "\n\n", plain=isinstance(context, str)))
            first = Request(GENERATE, context, options=options)
            draw = drawn[first.content_hash] = drawn.get(first.content_hash, -1) + 1
            requests.append(first if first.deterministic else Request(GENERATE, context, options=options, draw=draw))
        return [str(response.text) for response in self._answers(requests)]

    def loglikelihood(self, requests: list[Any]) -> list[_Loss]:
        raise NotImplementedError("choices are scored by the simple form of this model: --force_simple")

    def generate_until_multi_round(self, requests: list[Any]) -> list[str]:
        raise NotImplementedError("mill does not run lmms-eval's tasks of several rounds")

    def _answers(self, requests: list[Request]) -> list[Response]:
        for request in requests[:1]:
            self.model.check(request)
        self._executor.run(requests)
        responses = [request.resps[0] for request in requests]
        failed = [response for response in responses if response.failed]
        if failed:
            raise RunError(f"{len(failed)} of {len(requests)} requests failed, such as: {failed[0].error}")
        return responses

    def clean(self) -> None:
        self._executor.backend.close()
        if isinstance(self._store, Record):
            self._store.close()


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
        answers = self._answers(made)
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


def _record(model: MillModel, output_dir: Path) -> Record:
    folder = run_folder(output_dir, model.model_name, identity_of(model), {"condition": _CONDITION})
    return Record(folder.path, shareable=False, root=output_dir)
