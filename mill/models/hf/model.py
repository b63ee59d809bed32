"""The `hf` backend: any causal language model that transformers can load."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from mill.api.batching import Answered, BatchLimits, Unit, as_response, describe, is_out_of_memory
from mill.api.errors import MillError, SpecError, UnknownName
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
from mill.models.prefix import packed_scoring, padded_scoring
from mill.models.prefix.continuous import ContinuousDecoder
from mill.models.tokens.pairs import Pair
from mill.models.tokens.rows import Row, shared_rows
from mill.models.tokens.tokenizer import Prompt, Tokens

DTYPES = ("bfloat16", "float16", "float32")


class _Default(str):
    """A default, as distinct from the same value given by the user."""


DEFAULT_DTYPE = _Default("bfloat16")  # float32 on a CPU that would have to emulate it
FLOAT32_FALLBACK = (
    "this CPU has no bfloat16 arithmetic, so dtype=float32 is taken; dtype=bfloat16 would be emulated, which is slow"
)
MAX_SEQUENCES = 512  # decoded at once


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

    @property
    def model_name(self) -> str:
        return self.source.name

    def identity(self) -> dict[str, Any]:
        """Weights by content, and the settings that change the logits; batch size and device do not."""
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
        """The requested dtype. By default bfloat16, or float32 on a CPU without bfloat16 arithmetic."""
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
                self._passes = sharding.spread(self._model)
            self._eos_ids = decoding.take_eos_ids(self._model, self.tokens.tokenizer)
        return self._model

    def load(self) -> None:
        _ = self.model, self.prefix_sharing  # so that rates include neither loading nor probing

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
        self.__dict__.pop("prefix_sharing", None)
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

        def units(requests: Sequence[Request], pairs: Sequence[Pair]) -> list[Unit]:
            return [Unit(row.requests, len(row.ids), row) for row in shared_rows(requests, pairs)]

        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=2.0))
        return self._score_pairs(requests, units, hook, limits)

    def _score_plain(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Packed, sharing prefixes, where the model's layers allow it; the other rows in padded batches."""
        fitting, pairs, too_long = self._fitting_pairs(requests)
        yield from too_long
        rows = shared_rows(fitting, pairs)
        scored: set[Row] = set()
        if self.prefix_sharing:
            for row, responses in self._score_packed(rows):
                scored.add(row)
                yield from zip(row.requests, responses, strict=True)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            return padded_scoring.score_rows(self.model, [unit.data for unit in batch])

        units = [Unit(row.requests, len(row.ids), row) for row in rows if row not in scored]
        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=0.2))
        yield from self._stream_checked(LOGLIKELIHOOD, units, hook, limits)

    @cached_property
    def prefix_sharing(self) -> bool:
        """Whether shared prefixes are computed once: not with `exact`, nor by models whose layers do not allow it, nor where
        weights are sharded over ranks, which must all compute the same batches."""
        return not self.exact and not self.lock_step and packed_scoring.can_share(self.model)

    def _score_packed(self, rows: list[Row]) -> Iterator[tuple[Row, list[Response]]]:
        """Rows with their responses; rows that do not fit are left out."""
        tokens = memory.scoring_tokens(self.model, logits_per_token=0.0)
        if self.batch_size:  # as many tokens as that many of the longest rows
            tokens = min(tokens, self.batch_size * max((len(row.ids) for row in rows), default=1))
        scorer = packed_scoring.PrefixScorer(
            self.model, packed_scoring.Budget(tokens, memory.logit_rows(self.model)), self._free_memory
        )
        try:
            for row, responses in scorer.run(rows):
                yield row, [as_response(response, LOGLIKELIHOOD) for response in responses]
        except MillError:
            raise
        except Exception as error:  # padded batches isolate the request that fails
            warn(f"prefix sharing is off from here on: {describe(error)}")
            self.prefix_sharing = False

    def _score_media(self, requests: Sequence[Request]) -> Iterator[Answered]:
        def score(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            return self.media.score(self.model, rows, decoded)

        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=1.0))
        return self._stream_media(LOGLIKELIHOOD, self.media.rows(requests), score, limits)

    def _score_documents(self, requests: Sequence[Request]) -> Iterator[Answered]:
        documents = zip(requests, map(self.tokens.windows, requests), strict=True)
        units = [Unit([request], sum(len(row.ids) for row in rows), rows) for request, rows in documents]
        budget = memory.scoring_tokens(self.model, logits_per_token=1.0)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            return [[answer] for answer in padded_scoring.score_documents(self.model, [unit.data for unit in batch], budget)]

        return self._stream_checked(ROLLING, units, hook, BatchLimits(self.batch_size, budget))

    def _generate_texts(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """By continuous batching where prefixes are shared; the others in plain batches of equal decoding options."""
        prompts = self.tokens.prompts(requests)
        decoded: set[Prompt] = set()
        if self.prefix_sharing:
            for prompt, response in self._generate_continuously(prompts):
                decoded.add(prompt)
                yield prompt.request, as_response(response, GENERATE)
        groups: dict[str, list[Unit]] = {}
        for prompt in prompts:
            if prompt not in decoded:
                unit = Unit([prompt.request], len(prompt.ids) + prompt.max_new_tokens, prompt)
                groups.setdefault(options_text(prompt.request), []).append(unit)
        limits = self._token_limits(memory.generation_tokens(self.model))

        def hook(batch: list[Unit]) -> list[list[Response]]:
            answers = decoding.generate(self.model, self.tokens, [unit.data for unit in batch], self._eos_ids)
            return [[answer] for answer in answers]

        for group in groups.values():
            yield from self._stream_units(group, hook, limits)

    def _generate_continuously(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Response]]:
        """Prompts with their responses; those that do not fit memory or the attention window are left out."""
        window = packed_scoring.shortest_window(self.model.config.get_text_config())
        groups: dict[int, list[Prompt]] = {}
        for prompt in prompts:  # every slot is as long as the longest sequence of its group
            if window is None or len(prompt.ids) + prompt.max_new_tokens <= window:
                groups.setdefault(prompt.max_new_tokens.bit_length(), []).append(prompt)
        for group in groups.values():
            yield from self._decode_group(group)

    def _decode_group(self, prompts: list[Prompt]) -> Iterator[tuple[Prompt, Response]]:
        """Halve the number of concurrent sequences whenever memory runs out."""
        limit = self.batch_size or MAX_SEQUENCES
        done: set[Prompt] = set()
        while limit and self.prefix_sharing and (left := [prompt for prompt in prompts if prompt not in done]):
            decoder = ContinuousDecoder(
                self.model,
                self.tokens.tokenizer,
                self._eos_ids,
                tokens=memory.generation_tokens(self.model),
                at_once=memory.scoring_tokens(self.model, logits_per_token=0.0),
            )
            try:
                for prompt, response in decoder.run(left, limit):
                    done.add(prompt)
                    yield prompt, response
            except MillError:
                raise
            except Exception as error:
                if not is_out_of_memory(error):  # plain batches isolate the request that fails
                    warn(f"continuous batching is off from here on: {describe(error)}")
                    self.prefix_sharing = False
                    return
                limit = min(limit, len(left)) // 2
            else:
                del decoder  # it is in no reference cycle: its memory is free at once
                memory.empty_caches()
                return
            del decoder
            self._free_memory()

    def _generate_media(self, requests: Sequence[Request]) -> Iterator[Answered]:
        def answer(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            return [[response] for response in self.media.generate(self.model, rows, decoded, self._eos_ids)]

        rows = [MediaRow(request, self.media.render(request.context)) for request in requests]
        return self._stream_media(GENERATE, rows, answer, self._token_limits(memory.generation_tokens(self.model)))

    def _token_limits(self, budget: int) -> BatchLimits:
        """The requested batch size, else as many tokens as fit."""
        return BatchLimits(requests=self.batch_size) if self.batch_size else BatchLimits(tokens=budget)
