"""The `hf` backend: any causal language model that transformers can load."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from mill.api.batching import Completed, free_memory
from mill.api.engine import local_engine
from mill.api.errors import ModelError, SpecError
from mill.api.model import ComputeDevice, ModelCapabilities, StreamContext, cannot_serve
from mill.api.request import LOGLIKELIHOOD, ROLLING, Request
from mill.models.device import read_device
from mill.models.files import TEXT_ONLY, locate
from mill.models.hf import sharding
from mill.models.hf.checkpoint import DECODED, DEFAULT_DTYPE, Checkpoint, read_tokens, take_eos_ids
from mill.models.hf.decoding import Decoder
from mill.models.hf.media_prefixes import MediaPrefixes
from mill.models.hf.scoring import Scorer
from mill.models.hf.startup import Startup
from mill.models.media.inputs import DEFAULT_VIDEO_FRAMES, MediaInputs, split_media
from mill.models.prefix import paths
from mill.models.prefix.fast_path import FastPath
from mill.models.prefix.paths import PathLog, mixed_rows
from mill.models.token_model import TokenModel
from mill.models.tokens.tokenizer import Tokens
from mill.support.clocks import LOADING, phase
from mill.support.processes import world_size
from mill.support.terminal import warn


class TransformersModel(TokenModel):
    """Its parts are made when they are needed: the checkpoint knows the files, the startup loads them, the scorer and the
    decoder answer requests. Weights load at the first request, so that everything else can be checked before."""

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
        if max_context_length < 2:
            raise SpecError(f"hf[max_context_length={max_context_length}]: at least 2 tokens are needed")
        if batch_size is not None and batch_size < 1:
            raise SpecError(f"hf[batch_size={batch_size}]: at least 1 is needed; leave it out for auto")
        if fsdp and world_size() == 1:
            raise SpecError(
                "hf[fsdp=true] shards weights over ranks: start with torchrun --nproc_per_node N -m mill eval ..."
            )
        self.checkpoint = Checkpoint(
            locate(path, revision),
            dtype=dtype,
            device_map=device_map,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
            modalities=modalities,
            sharded=fsdp,
        )
        self.max_context_length, self.batch_size = max_context_length, batch_size or (1 if exact else None)
        self.use_chat_template, self.add_bos_token = use_chat_template, add_bos_token
        self.video_frames, self.exact, self.lock_step = video_frames, exact, fsdp
        self.startup: Startup = Startup(
            self.checkpoint, lambda: self.tokens, lambda: self.fast_path, shares=not self._unshared
        )
        self._log = PathLog()
        self._model: Any = None
        self._eos_ids: list[int] = []
        self._passes: sharding.ShardedPasses | None = None
        self._empty_passes = 0
        self._padding = ""
        """Why rows are not padded."""
        self._device: ComputeDevice | None = None
        self.use_engine(local_engine("transformers", "torch"))

    @property
    def model_name(self) -> str:
        return self.checkpoint.source.name

    def identity(self) -> dict[str, Any]:
        """Weights by content, and the settings that change the logits; batch size and device do not."""
        checkpoint = self.checkpoint
        mixed = not self.exact and mixed_rows(checkpoint.architecture, checkpoint.dtype)
        return {
            "backend": "hf",
            "weights": self.startup.digest(),
            "dtype": checkpoint.dtype,
            "max_context_length": self.max_context_length,
            "attn_implementation": checkpoint.attn_implementation,
            "use_chat_template": self.use_chat_template,
            "add_bos_token": self.add_bos_token,
            **({} if self.video_frames == DEFAULT_VIDEO_FRAMES else {"video_frames": self.video_frames}),
            **({"exact": True} if self.exact else {}),
            **({"media": "as transformers loads them"} if checkpoint.given_modalities != TEXT_ONLY else {}),
            **({"shared_prefixes": "proved"} if mixed else {}),
        }

    @cached_property
    def capabilities(self) -> ModelCapabilities:  # type: ignore[override]
        return ModelCapabilities(
            self.checkpoint.modalities,
            max_context_length=self.max_context_length,
            supports_logprobs=True,
            supports_chat_template=True,
            supports_tools=True,
            top_logprobs=None,
        )

    def ready(self, wait: float = 0.0) -> None:
        self.startup.begin()

    def set_concurrency(self, concurrency: int | None) -> None:
        self.batch_size = concurrency or self.arguments.get("batch_size")

    def weight_bytes(self) -> int | None:
        return self.checkpoint.source.size

    @cached_property
    def tokens(self) -> Tokens:
        checkpoint = self.checkpoint
        with phase(LOADING):
            text_config = (
                checkpoint.config.get_text_config()
            )  # which the tokenizer needs: its faults are not the tokenizer's
            tokenizer = checkpoint.tokenizer
        positions = getattr(text_config, "max_position_embeddings", None)
        if positions in (None, -1):  # no limit
            positions = self.max_context_length
        if not isinstance(positions, int) or positions < 1:
            raise ModelError(f"max_position_embeddings of {self.model_name} is {positions!r}, not a positive whole number")
        return Tokens(
            tokenizer,
            window=min(self.max_context_length, positions),
            add_bos=self.add_bos_token,
            model_type=str(getattr(text_config, "model_type", "")),
            chat=self.use_chat_template,
            processor=checkpoint.processor if checkpoint.multimodal else None,
            in_pieces=not self.exact,
        )

    def _counting_tokens(self, requests: Sequence[Request]) -> Tokens:
        source = self.checkpoint.source
        plain = source.local and not source.gguf and not self.use_chat_template and "tokens" not in self.__dict__
        if plain and all(isinstance(request.context, str) for request in requests):
            tokens = read_tokens(Path(source.path), most=self.max_context_length, add_bos=self.add_bos_token)
            return tokens or self.tokens
        return self.tokens

    @cached_property
    def media(self) -> MediaInputs:
        return MediaInputs(self.checkpoint.processor, self.tokens, video_frames=self.video_frames)

    @property
    def model(self) -> Any:
        """The loaded network."""
        if self._model is None:
            network = self.startup.weights()
            if self.lock_step:
                self._passes = sharding.shard(network)
            self._eos_ids = take_eos_ids(network, self.tokens.tokenizer)
            with contextlib.suppress(Exception):  # a tokenizer may be third-party code
                known, rows = len(self.tokens.tokenizer), network.get_input_embeddings().weight.shape[0]
                if known > rows:
                    others = "a request with one of the others fails"
                    warn(f"{self.model_name}: the tokenizer has {known} tokens, the model {rows}; {others}")
            with contextlib.suppress(Exception):  # a model may be third-party code, and only a report needs it
                self._device = read_device(network)
            self._model = network
        return self._model

    @cached_property
    def fast_path(self) -> FastPath:
        pads = self.batch_size != 1 and not self.lock_step
        fast = FastPath(self.model, self._log, disabled=self._unshared, pads=pads)
        self._padding = fast.padding_obstacle
        return fast

    @cached_property
    def media_prefixes(self) -> MediaPrefixes:
        return MediaPrefixes(self.media, self.fast_path)

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.fast_path, self.tokens, self.startup.ahead, lambda: self.media_prefixes)

    @cached_property
    def decoder(self) -> Decoder:
        return Decoder(self.fast_path, self.tokens, self._eos_ids, self.startup.ahead, lambda: self.media_prefixes)

    @property
    def _unshared(self) -> str:
        """Why an argument forbids prefix sharing: with `fsdp` all ranks must compute the same passes."""
        return "exact=true" if self.exact else "fsdp=true" if self.lock_step else ""

    def load(self) -> None:
        self.startup.load()

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Completed]:
        if kind == ROLLING:
            return self._together(self.scorer.documents(requests, context, self.batch_size))
        if kind != LOGLIKELIHOOD and kind not in DECODED:
            raise cannot_serve(self, kind)
        texts, shown, errors = split_media(requests, lambda: self.media)
        part: Scorer | Decoder = self.scorer if kind == LOGLIKELIHOOD else self.decoder
        streams = [part.texts(texts, context, self.batch_size)] if texts else []
        streams += [part.media(shown, context, self.batch_size)] if shown else []
        return self._together(errors, *streams)

    def _together(self, *streams: Iterable[Completed]) -> Iterator[Completed]:
        """One after another."""
        return chain(*streams) if self._passes is None else self._passes.in_step(chain(*streams))

    def warnings(self) -> list[str]:
        if self._passes is not None:
            self._empty_passes = self._passes.empty_passes
        sharded = f"weights sharded over {world_size()} ranks; empty passes of rank 0: {self._empty_passes}"
        return [
            *self.checkpoint.warnings(),
            *([sharded] if self.lock_step else []),
            *self._log.failures,
            *([self._padding] if self._padding else []),
        ]

    def planned_paths(self) -> dict[str, str]:
        return paths.planned(self._unshared, alone=self.batch_size == 1)

    def execution_paths(self) -> dict[str, str]:
        return self._log.summary()

    def compute_device(self) -> ComputeDevice | None:
        return self._device

    def clean(self) -> None:
        self.startup.end()
        self.warnings()  # which counts the empty passes
        for name in ("fast_path", "media_prefixes", "scorer", "decoder"):
            self.__dict__.pop(name, None)
        if self._model is not None and self.made_with.holds_weights:
            for name in [name for name in vars(self._model) if name.startswith("_mill_")]:
                del self._model.__dict__[name]  # what refers to its layers as they are now
        elif self._model is not None:
            self._model = self._passes = None
            free_memory()
