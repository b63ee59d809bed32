"""The `hf` backend: any causal language model that transformers can load."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from mill.api.batching import Answered, BatchLimits, Unit, as_response
from mill.api.errors import SpecError, UnknownName
from mill.api.message import MEDIA_KINDS
from mill.api.model import ModelCapabilities, options_text
from mill.api.ranks import world_size
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request
from mill.api.response import Response
from mill.api.warnings import warn
from mill.models import memory
from mill.models.device import choose_device, cpu_has_bfloat16
from mill.models.hf import decoding, loading, logprobs, sharding
from mill.models.hf.media_model import DEFAULT_VIDEO_FRAMES, TEXT_ONLY, MediaModel
from mill.models.hf.multimodal import MediaRow
from mill.models.prefix import padded_scoring, paths
from mill.models.prefix.engine import PrefixEngine
from mill.models.prefix.packed_scoring import Skipped
from mill.models.tokens.pairs import TokenPair
from mill.models.tokens.rows import Row, shared_rows
from mill.models.tokens.tokenizer import Tokens

DTYPES = ("bfloat16", "float16", "float32")


class _Default(str):
    """A default, as distinct from the same value given by the user."""


DEFAULT_DTYPE = _Default("bfloat16")  # float32 on a CPU that would have to emulate it
FLOAT32_FALLBACK = (
    "this CPU has no bfloat16 arithmetic, so dtype=float32 is taken; dtype=bfloat16 would be emulated, which is slow"
)


class TransformersModel(MediaModel):
    """Weights load at the first request, so that everything else can be checked before."""

    def __init__(
        self,
        path: str,
        modalities: list[str] | tuple[str, ...] = TEXT_ONLY,
        dtype: str = DEFAULT_DTYPE,
        device_map: str = "auto",
        max_context_length: int = 4096,
        batch_size: int | None = None,
        attn_implementation: str | None = None,
        trust_remote_code: bool = True,
        use_chat_template: bool = False,
        revision: str | None = None,
        add_bos_token: bool | None = None,
        video_frames: int = DEFAULT_VIDEO_FRAMES,
        exact: bool = False,
        fsdp: bool = False,
    ) -> None:
        for modality in modalities:
            if modality not in ("text", *MEDIA_KINDS):
                raise UnknownName("modality", modality, MEDIA_KINDS, hint=f"known are text, {', '.join(MEDIA_KINDS)}")
        if dtype not in DTYPES:
            raise UnknownName("dtype of hf", dtype, DTYPES, hint=f"it takes {', '.join(DTYPES)}")
        if max_context_length < 2:
            raise SpecError(f"hf[max_context_length={max_context_length}]: at least 2 tokens are needed")
        if batch_size is not None and batch_size < 1:
            raise SpecError(f"hf[batch_size={batch_size}]: at least 1 is needed; leave it out for auto")
        if fsdp:
            sharding.check_ranks()
        self.source = loading.locate(path, revision)
        self._requested_dtype, self.device_map = dtype, device_map
        self.max_context_length, self.batch_size = max_context_length, batch_size
        self.attn_implementation, self.trust_remote_code = attn_implementation, trust_remote_code
        self.use_chat_template, self.add_bos_token = use_chat_template, add_bos_token
        self.modalities, self.video_frames, self.exact = modalities, video_frames, exact
        self.lock_step = fsdp
        self._model: Any = None
        self._passes: sharding.ShardedPasses | None = None
        self._empty_passes = 0
        self._paths = paths.PathLog()

    @property
    def model_name(self) -> str:
        return self.source.name

    def identity(self) -> dict[str, Any]:
        """Weights by content, and the settings that reach the logits; batch size and device are not among them."""
        return {
            "backend": "hf",
            "weights": self.source.fingerprint(trust_remote_code=self.trust_remote_code),
            "dtype": self.dtype,
            "max_context_length": self.max_context_length,
            "attn_implementation": self.attn_implementation,
            "use_chat_template": self.use_chat_template,
            "add_bos_token": self.add_bos_token,
            **({} if self.video_frames == DEFAULT_VIDEO_FRAMES else {"video_frames": self.video_frames}),
            **({"exact": True} if self.exact else {}),
        }

    @cached_property
    def dtype(self) -> str:
        """The requested one. By default bfloat16, or float32 on a CPU that has no bfloat16 arithmetic."""
        if self._requested_dtype is not DEFAULT_DTYPE or cpu_has_bfloat16() or choose_device(self.device_map) != "cpu":
            return str(self._requested_dtype)
        warn(FLOAT32_FALLBACK)
        return "float32"

    @property
    def _fell_back_to_float32(self) -> bool:
        return self._requested_dtype is DEFAULT_DTYPE and self.__dict__.get("dtype") == "float32"

    def fixed_arguments(self) -> dict[str, Any]:
        return {"dtype": self.dtype} if self._requested_dtype is DEFAULT_DTYPE else {}

    @cached_property
    def capabilities(self) -> ModelCapabilities:  # type: ignore[override]
        return ModelCapabilities(
            self._modalities(lambda: self.config),
            max_context_length=self.max_context_length,
            supports_logprobs=True,
            supports_chat_template=True,
            top_logprobs=None,
        )

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
            processor=self.processor if self.multimodal else None,
        )

    @property
    def model(self) -> Any:
        """The loaded transformers model."""
        if self._model is None:
            self._model = loading.load_weights(
                self.source,
                self.config,
                multimodal=self.multimodal,
                dtype=self.dtype,
                device_map="cpu" if self.lock_step else self.device_map,
                attn_implementation=self.attn_implementation,
                trust_remote_code=self.trust_remote_code,
            )
            if self.lock_step:
                self._passes = sharding.shard(self._model)
            self._eos_ids = decoding.take_eos_ids(self._model, self.tokens.tokenizer)
        return self._model

    def load(self) -> None:
        _ = self.model, self.prefix_engine  # loads the weights and probes them, before the time of the first request starts

    def synchronize(self) -> None:
        if self._passes is not None:
            self._passes.synchronize()

    def warnings(self) -> list[str]:
        if self._passes is not None:
            self._empty_passes = self._passes.empty_passes
        sharded = f"weights sharded over {world_size()} ranks; empty passes of rank 0: {self._empty_passes}"
        return [*([FLOAT32_FALLBACK] if self._fell_back_to_float32 else []), *([sharded] if self.lock_step else [])]

    def clean(self) -> None:
        self.warnings()
        self._model = self._passes = None
        self.__dict__.pop("prefix_engine", None)
        self._free_memory()

    def _free_memory(self) -> None:
        gc.collect()
        memory.empty_caches()

    def _stream(self, kind: str, requests: Sequence[Request]) -> Iterator[Answered]:
        if kind == LOGLIKELIHOOD:
            return self._split_media(requests, self._score_texts, self._score_media)
        if kind == ROLLING:
            return self._score_documents(requests)
        if kind in (GENERATE, MULTI_ROUND):
            return self._split_media(requests, self._generate_texts, self._generate_media)
        raise self._cannot(kind)

    def _score_texts(self, requests: Sequence[Request]) -> Iterator[Answered]:
        with_logprobs = [request for request in requests if request.options.get("logprobs")]
        if with_logprobs:
            yield from self._score_with_logprobs(with_logprobs)
        plain = [request for request in requests if not request.options.get("logprobs")]
        if plain:
            yield from self._score_plain(plain)

    def _score_with_logprobs(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Scores with tokens and distributions, padded: they are requested to find differences, not to save time."""

        def hook(batch: list[Unit]) -> list[list[Response]]:
            return logprobs.score_with_logprobs(self.model, self.tokens.tokenizer, [unit.data for unit in batch])

        def units(requests: Sequence[Request], pairs: Sequence[TokenPair]) -> list[Unit]:
            return [Unit(row.requests, len(row.ids), row) for row in shared_rows(requests, pairs)]

        self._paths.add(paths.SCORING, paths.PADDED, len(requests), "logprobs requested")
        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=2.0))
        return self._score_pairs(requests, units, hook, limits)

    def _score_plain(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Packed, sharing prefixes, where the model's layers allow it; what is left is padded."""
        fitting, pairs, too_long = self._fitting_pairs(requests)
        yield from too_long
        left: list[Row] = []
        rows, healthy = shared_rows(fitting, pairs), self.canary is not None
        for row, outcome in self.prefix_engine.score(rows, batch_size=self.batch_size, healthy=healthy):
            if isinstance(outcome, Skipped):
                left.append(row)
                self._paths.add(paths.SCORING, paths.PADDED, len(row.requests), outcome.reason)
            else:
                self._paths.add(paths.SCORING, paths.PACKED, len(row.requests))
                responses = [as_response(response, LOGLIKELIHOOD) for response in outcome]
                yield from zip(row.requests, responses, strict=True)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            return padded_scoring.score_rows(self.model, [unit.data for unit in batch])

        units = [Unit(row.requests, len(row.ids), row) for row in left]
        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=0.2))
        yield from self._stream_checked(LOGLIKELIHOOD, units, hook, limits)

    @cached_property
    def prefix_engine(self) -> PrefixEngine:
        model = self.model  # first: loading sets the tokens that end an answer
        return PrefixEngine(
            model, self.tokens.tokenizer, self._eos_ids, free_memory=self._free_memory, disabled=self._sharing_disabled
        )

    @property
    def prefix_sharing(self) -> bool:
        """Whether shared prefixes are computed once."""
        return not self.prefix_engine.disabled

    @property
    def _sharing_disabled(self) -> str:
        """Why an argument forbids prefix sharing: with `fsdp` all ranks must compute the same passes."""
        return "exact=true" if self.exact else "fsdp=true" if self.lock_step else ""

    def planned_paths(self) -> dict[str, str]:
        return paths.planned(self._sharing_disabled)

    def execution_paths(self) -> dict[str, str]:
        return self._paths.summary()

    def _score_media(self, requests: Sequence[Request]) -> Iterator[Answered]:
        def score(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            return self.media.score(self.model, rows, decoded)

        self._paths.add(paths.SCORING, paths.PADDED, len(requests), "media")
        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=1.0))
        return self._stream_media(LOGLIKELIHOOD, self.media.rows(requests), score, limits)

    def _score_documents(self, requests: Sequence[Request]) -> Iterator[Answered]:
        documents = zip(requests, map(self.tokens.windows, requests), strict=True)
        units = [Unit([request], sum(len(row.ids) for row in rows), rows) for request, rows in documents]
        budget = memory.scoring_tokens(self.model, logits_per_token=1.0)
        self._paths.add(paths.ROLLING, paths.PADDED, len(requests))

        def hook(batch: list[Unit]) -> list[list[Response]]:
            return [[answer] for answer in padded_scoring.score_documents(self.model, [unit.data for unit in batch], budget)]

        return self._stream_checked(ROLLING, units, hook, BatchLimits(self.batch_size, budget))

    def _generate_texts(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """By continuous batching where prefixes are shared; what is left in plain batches of equal decoding options."""
        groups: dict[str, list[Unit]] = {}
        prompts, healthy = self.tokens.prompts(requests), self.canary is not None
        for prompt, outcome in self.prefix_engine.decode(prompts, batch_size=self.batch_size, healthy=healthy):
            if isinstance(outcome, Skipped):
                unit = Unit([prompt.request], len(prompt.ids) + prompt.max_new_tokens, prompt)
                groups.setdefault(options_text(prompt.request), []).append(unit)
                self._paths.add(paths.DECODING, paths.PLAIN, 1, outcome.reason)
            else:
                self._paths.add(paths.DECODING, paths.CONTINUOUS, 1)
                yield prompt.request, as_response(outcome, GENERATE)
        limits = self._token_limits(memory.generation_tokens(self.model))

        def hook(batch: list[Unit]) -> list[list[Response]]:
            answers = decoding.generate(self.model, self.tokens, [unit.data for unit in batch], self._eos_ids)
            return [[answer] for answer in answers]

        for group in groups.values():
            yield from self._stream_units(group, hook, limits)

    def _generate_media(self, requests: Sequence[Request]) -> Iterator[Answered]:
        def answer(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            return [[one] for one in self.media.generate(self.model, rows, decoded, self._eos_ids)]

        self._paths.add(paths.DECODING, paths.PLAIN, len(requests), "media")
        rows = [MediaRow(request, self.media.render(request.context)) for request in requests]
        return self._stream_media(GENERATE, rows, answer, self._token_limits(memory.generation_tokens(self.model)))

    def _token_limits(self, budget: int) -> BatchLimits:
        """The requested batch size, else as many tokens as fit."""
        return BatchLimits(requests=self.batch_size) if self.batch_size else BatchLimits(tokens=budget)
