"""The `hf` backend: any causal language model that transformers can load."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mill.api.batching import BatchLimits, Observer, Unit, as_response
from mill.api.errors import SpecError, UnknownName
from mill.api.model import MillModel, ModelCapabilities, watched
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request, Response
from mill.models.hf import decoding, loading, memory, scoring
from mill.models.hf.tokens import Tokens

DTYPES = ("bfloat16", "float16", "float32")


class TransformersModel(MillModel):
    """Weights load at the first request, so that everything else can be checked before."""

    def __init__(
        self,
        path: str,
        modalities: list[str] | tuple[str, ...] = ("text",),
        dtype: str = "bfloat16",
        device_map: str = "auto",
        max_context_length: int = 4096,
        batch_size: int | None = None,
        attn_implementation: str | None = None,
        trust_remote_code: bool = True,
        use_chat_template: bool = False,
        revision: str | None = None,
        add_bos_token: bool | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise UnknownName("dtype of hf", dtype, DTYPES, hint=f"it takes {', '.join(DTYPES)}")
        if max_context_length < 2:
            raise SpecError(f"hf[max_context_length={max_context_length}]: at least 2 tokens are needed")
        if batch_size is not None and batch_size < 1:
            raise SpecError(f"hf[batch_size={batch_size}]: at least 1 is needed; leave it out for auto")
        self.source = loading.locate(path, revision)
        self.dtype, self.device_map = dtype, device_map
        self.max_context_length, self.batch_size = max_context_length, batch_size
        self.attn_implementation, self.trust_remote_code = attn_implementation, trust_remote_code
        self.use_chat_template, self.add_bos_token = use_chat_template, add_bos_token
        self.capabilities = ModelCapabilities(
            modalities=set(modalities),
            max_context_length=max_context_length,
            supports_logprobs=True,
            supports_chat_template=True,
        )
        self._model: Any = None

    @property
    def model_name(self) -> str:
        return self.source.name

    def identity(self) -> dict[str, Any]:
        """Weights by content, and the settings that reach the logits; batch size and device are not among them."""
        return {
            "backend": "hf",
            "weights": self.source.fingerprint(),
            "dtype": self.dtype,
            "max_context_length": self.max_context_length,
            "attn_implementation": self.attn_implementation,
            "use_chat_template": self.use_chat_template,
            "add_bos_token": self.add_bos_token,
        }

    @cached_property
    def config(self) -> Any:
        return loading.load_config(self.source, trust_remote_code=self.trust_remote_code)

    @cached_property
    def tokens(self) -> Tokens:
        tokenizer = loading.load_tokenizer(self.source, trust_remote_code=self.trust_remote_code)
        text_config = self.config.get_text_config()
        return Tokens(
            tokenizer,
            window=min(
                self.max_context_length,
                getattr(text_config, "max_position_embeddings", None) or self.max_context_length,
            ),
            add_bos=self.add_bos_token,
            model_type=str(getattr(text_config, "model_type", "")),
            chat=self.use_chat_template,
        )

    def count_tokens(self, requests: Sequence[Request]) -> int:
        texts = [self.tokens.render(request.context) + request.continuation for request in requests]
        return sum(map(len, self.tokens.encode_all(texts)))

    @property
    def model(self) -> Any:
        """The loaded transformers model."""
        if self._model is None:
            self._model = loading.load_weights(
                self.source,
                self.config,
                dtype=self.dtype,
                device_map=self.device_map,
                attn_implementation=self.attn_implementation,
                trust_remote_code=self.trust_remote_code,
            )
            self._eos_ids = decoding.take_eos_ids(self._model, self.tokens.tokenizer)
        return self._model

    def load(self) -> None:
        _ = self.model

    def has_chat_template(self) -> bool:
        return bool(self.tokens.tokenizer.chat_template)

    def clean(self) -> None:
        self._model = None
        self._free_memory()

    def _free_memory(self) -> None:
        gc.collect()
        memory.empty_caches()

    def loglikelihood(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        pairs = dict(zip(map(id, requests), self.tokens.pairs(requests), strict=True))
        fitting = [request for request in requests if pairs[id(request)].fits]
        rows = scoring.shared_rows(fitting, [pairs[id(request)] for request in fitting])
        units = [Unit(row.requests, len(row.ids), row) for row in rows]
        limits = BatchLimits(requests=self.batch_size)
        if self.batch_size is None:
            limits = BatchLimits(tokens=memory.scoring_tokens(self.model, logits_per_token=0.2))

        def hook(batch: list[Unit]) -> list[list[Response]]:
            answers = scoring.score_rows(self.model, [unit.data for unit in batch])
            return [[as_response(answer, LOGLIKELIHOOD) for answer in of_row] for of_row in answers]

        with watched(LOGLIKELIHOOD, requests, observer) as watching:
            found = self._run_units(units, hook, limits, watching)
            for request in requests:
                if not pairs[id(request)].fits:
                    found[id(request)] = Response(
                        error=f"the continuation is longer than the context of {self.tokens.window} tokens"
                    )
                    watching.answered(request, found[id(request)])
        return [found[id(request)] for request in requests]

    def loglikelihood_rolling(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        documents = [self.tokens.windows(request) for request in requests]
        units = [
            Unit([request], sum(len(row.ids) for row in rows), rows)
            for request, rows in zip(requests, documents, strict=True)
        ]
        budget = memory.scoring_tokens(self.model, logits_per_token=1.0)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            answers = scoring.score_documents(self.model, [unit.data for unit in batch], budget)
            return [[as_response(answer, ROLLING)] for answer in answers]

        with watched(ROLLING, requests, observer) as watching:
            found = self._run_units(units, hook, BatchLimits(self.batch_size, budget), watching)
        return [found[id(request)] for request in requests]

    def generate_until(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        return self._generate(GENERATE, requests, observer)

    def generate_until_multi_round(self, requests: Sequence[Request], observer: Observer | None = None) -> list[Response]:
        return self._generate(MULTI_ROUND, requests, observer)

    def _generate(self, kind: str, requests: Sequence[Request], observer: Observer | None) -> list[Response]:
        groups: dict[str, list[Unit]] = {}
        for prompt in self.tokens.prompts(requests):
            unit = Unit([prompt.request], len(prompt.ids) + prompt.max_new_tokens, prompt)
            groups.setdefault(repr(sorted(prompt.request.options.items())), []).append(unit)
        limits = BatchLimits(self.batch_size, None if self.batch_size else memory.generation_tokens(self.model))
        found: dict[int, Response] = {}

        def hook(batch: list[Unit]) -> list[list[Response]]:
            answers = decoding.generate(self.model, self.tokens, [unit.data for unit in batch], self._eos_ids)
            return [[answer] for answer in answers]

        with watched(kind, requests, observer) as watching:
            for units in groups.values():
                found |= self._run_units(units, hook, limits, watching)
        return [found[id(request)] for request in requests]
