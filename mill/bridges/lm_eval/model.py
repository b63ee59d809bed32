"""Any model of mill as a model of lm-evaluation-harness: `--model mill --model_args "spec=hf[path=...]"`."""

from __future__ import annotations

from typing import Any

from lm_eval.api.model import LM

from mill.api.errors import SpecError
from mill.api.model import has_chat_template
from mill.api.request import GENERATE, Request, generation_options
from mill.api.response import Response
from mill.bridges.lm_eval.task import as_request, return_messages
from mill.bridges.recorded_model import RecordedModel
from mill.models.token_model import TokenModel

NAME = "mill"


def read_arguments(text: str) -> dict[str, str]:
    """The text of --model_args, split at every comma, as lm-eval does."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    return {name.strip(): value for name, _, value in pairs}


class MillLM(LM):  # type: ignore[misc]
    """`spec` and the other arguments are those of `RecordedModel`. `max_batch_size` is for lm-eval's own batches: unused."""

    MULTIMODAL = True

    def __init__(self, spec: str = "", max_batch_size: int | None = None, **arguments: Any) -> None:
        super().__init__()
        self.recorded = RecordedModel.from_arguments({"spec": spec, **arguments})
        self.model = self.recorded.model

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> MillLM:
        return cls.create_from_arg_obj(read_arguments(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> MillLM:
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**{**given, **arg_dict})

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [(response.score or 0.0, bool(response.is_greedy)) for response in self._answers(requests)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [response.score or 0.0 for response in self._answers(requests)]

    def generate_until(self, requests: list[Any]) -> list[str]:
        return [response.text or "" for response in self._answers(requests)]

    def _answers(self, instances: list[Any]) -> list[Response]:
        return self.recorded.answers([as_request(instance, generation_options) for instance in instances])

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text that the model gets, or for a server, which applies its template itself, the messages."""
        if not has_chat_template(self.model):
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
