"""Any model of mill as a model of lm-evaluation-harness: `--model mill --model_args "spec=hf[path=...]"`.

Every answer is recorded in a run folder of mill, so that the same command continues where an earlier one ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from mill.api.errors import ModelError, SpecError
from mill.api.ranks import world_size
from mill.api.request import GENERATE, Request, generation_options
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.api.warnings import warn
from mill.bridges.lm_eval.prompts import return_messages
from mill.bridges.lm_eval.requests import as_request
from mill.models.spec.open import open_model, resolve_spec, takes_argument
from mill.models.spec.parse import Spec, make_spec
from mill.models.tokens.token_model import TokenModel
from mill.options.definitions import DEFAULT_OUTPUT_DIR
from mill.runs.evaluate import Run, record_run
from mill.tasks.load import load_files

NAME = "mill"
_UNSET = (None, 1, "1", "auto")  # batch sizes of lm-eval that leave the choice to mill; its default is 1

_DEFAULT_DEVICE = "cuda:0"  # of lm-eval, on machines without one too


class MillLM(LM):  # type: ignore[misc]
    """A model spec of mill. `output_dir` is where answers are recorded, `wait` how long a server may take to start,
    `task_paths` a Python file that registers a backend."""

    MULTIMODAL = True

    def __init__(
        self,
        spec: str = "",
        output_dir: str = DEFAULT_OUTPUT_DIR,
        wait: float = 0.0,
        task_paths: str = "",
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        if not spec:
            raise SpecError('no model is given: --model_args "spec=hf[path=org/name]"')
        if world_size() > 1:
            raise SpecError("mill distributes the work itself: start lm-eval without torchrun or accelerate")
        if task_paths:
            load_files((str(task_paths),))
        resolved = _on_device(resolve_spec(make_spec(spec)), device)
        fixed = None if batch_size in _UNSET or str(batch_size).startswith("auto") else int(str(batch_size))
        self.model = open_model(resolved, batch_size=fixed)
        self.model.ready(float(wait))
        self.spec, self.output_dir = resolved, Path(output_dir)
        self._run: Run | None = None

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> MillLM:
        pairs = [part.partition("=") for part in arg_string.split(",") if part]
        return cls.create_from_arg_obj({name.strip(): value for name, _, value in pairs}, additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> MillLM:
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**{**given, **rejoined(arg_dict)})

    @property
    def run(self) -> Run:
        """The run whose folder records the answers."""
        if self._run is None:
            self._run = record_run(self.spec, self.model, RenderSettings(), output_dir=self.output_dir)
        return self._run

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [(response.score or 0.0, bool(response.is_greedy)) for response in self._answers(requests)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [response.score or 0.0 for response in self._answers(requests)]

    def generate_until(self, requests: list[Any]) -> list[str]:
        return [response.text or "" for response in self._answers(requests)]

    def _answers(self, instances: Sequence[Any]) -> list[Response]:
        """lm-eval has no failed answers: once everything else is recorded, failures end the run."""
        requests = _numbered([as_request(instance, generation_options) for instance in instances])
        if not requests:
            return []
        if not self.model.capabilities.serves(requests[0].kind):
            raise ModelError(f"{self.model.model_name} does not answer {requests[0].kind} requests")
        self.model.check(requests[0])
        self.run.answer(requests)
        responses = [request.resps[0] for request in requests]
        failed = [response for response in responses if response.failed]
        if failed:
            raise ModelError(
                f"{len(failed)} of {len(responses)} requests failed, the first with: {failed[0].error}; the other answers "
                f"are recorded in {self.run.folder.path}, and the same command continues from them"
            )
        return responses

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text that the model gets, or for a server, which applies its template itself, the messages."""
        if not self.model.has_chat_template():
            raise SpecError(f"{self.model.model_name} has no chat template: leave out --apply_chat_template")
        prompt = return_messages(chat_history)
        if not isinstance(self.model, TokenModel):
            return prompt
        return self.model.rendered_prompt(Request(GENERATE, prompt.messages))

    @property
    def tokenizer_name(self) -> str:
        return self.model.model_name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        template = getattr(self.model.tokens.tokenizer, "chat_template", "") if isinstance(self.model, TokenModel) else ""
        return template if isinstance(template, str) else ""


def rejoined(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments whose spec lm-eval has split at its commas: `hf[path=a,dtype=b]` arrives as `hf[path=a` and `dtype=b]`."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        spec = found.get("spec")
        if isinstance(spec, str) and spec.count("[") > spec.count("]"):
            found["spec"] = f"{spec},{name}={_written(value)}"
        else:
            found[name] = value
    return found


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _on_device(spec: Spec, device: str | None) -> Spec:
    if device in (None, _DEFAULT_DEVICE) or "device" in spec.arguments:
        return spec
    if not takes_argument(spec.backend, "device"):
        warn(f"--device {device} has no effect: the backend {spec.backend} chooses the device itself")
        return spec
    return Spec(spec.backend, {**spec.arguments, "device": device})


def _numbered(requests: Sequence[Request]) -> list[Request]:
    """Equal requests are draws of one: lm-eval repeats a request that it wants several answers to."""
    seen: Counter[str] = Counter()
    numbered = []
    for request in requests:
        draw = seen[request.content_hash]
        seen[request.content_hash] += 1
        sampled = not request.deterministic
        numbered.append(
            Request(request.kind, request.context, request.continuation, request.options, draw=draw if sampled else 0)
        )
    return numbered
