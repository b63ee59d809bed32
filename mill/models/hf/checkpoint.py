"""A causal language model of transformers: its arguments, identity, tokenizer and weights."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.batching import WINDOW
from mill.api.errors import ModelError, SpecError, UnknownName
from mill.api.message import MEDIA_KINDS
from mill.api.model import ComputeDevice, ModelCapabilities
from mill.api.request import GENERATE, MULTI_ROUND, Request
from mill.models import memory
from mill.models.device import choose_device, cpu_has_bfloat16, read_device
from mill.models.hf import decoding, loading, sharding
from mill.models.hf.ahead import is_plain
from mill.models.hf.file_tokenizer import read_tokens
from mill.models.hf.media_model import DEFAULT_VIDEO_FRAMES, TEXT_ONLY, MediaModel
from mill.models.prefix.fused_kernels import Compiling, start_compiling
from mill.models.prefix.paths import PathLog, mixed_rows
from mill.models.tokens.tokenizer import Tokens
from mill.support.clocks import LOADING, phase
from mill.support.processes import Background, world_size
from mill.support.terminal import warn
from mill.support.validate import read_file


@dataclass(frozen=True)
class MappedFiles:
    """The files, and their attributes before the model was loaded."""

    states: dict[Path, os.stat_result]

    @classmethod
    def of(cls, files: Sequence[Path]) -> MappedFiles:
        return cls({file: file.stat() for file in files})

    def overwritten(self) -> Path | None:
        """One that was written to since then. A file that was replaced by another one stays as it was for the model."""
        for file, before in self.states.items():
            with contextlib.suppress(OSError):
                now = file.stat()
                if os.path.samestat(now, before) and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                    return file
        return None


DTYPES = ("bfloat16", "float16", "float32")
PARTS = ("text_config", "llm_config", "language_config")
DECODED = (GENERATE, MULTI_ROUND)  # kinds of requests whose answers are generated
LOADED_IN_A_THREAD = ("cuda",)  # devices where it needs little of the interpreter


class _Default(str):
    """A default, as distinct from the same value given by the user."""


DEFAULT_DTYPE = _Default("bfloat16")  # float32 on a CPU that would have to emulate it
FLOAT32_FALLBACK = (
    "this CPU has no bfloat16 arithmetic, so dtype=float32 is taken; dtype=bfloat16 would be emulated, which is slow"
)


class TransformersCheckpoint(MediaModel):
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
            raise UnknownName("dtype of hf", dtype, DTYPES, hint=f"it takes auto, {', '.join(DTYPES)}")
        if max_context_length < 2:
            raise SpecError(f"hf[max_context_length={max_context_length}]: at least 2 tokens are needed")
        if batch_size is not None and batch_size < 1:
            raise SpecError(f"hf[batch_size={batch_size}]: at least 1 is needed; leave it out for auto")
        if fsdp:
            sharding.check_ranks()
        self.source = loading.locate(path, revision)
        self._requested_dtype, self.device_map = dtype, device_map
        self.max_context_length, self.batch_size = max_context_length, batch_size or (1 if exact else None)
        self.attn_implementation, self.trust_remote_code = attn_implementation, trust_remote_code
        self.use_chat_template, self.add_bos_token = use_chat_template, add_bos_token
        self.modalities, self.video_frames, self.exact = modalities, video_frames, exact
        self.lock_step = fsdp
        self._model: Any = None
        self._passes: sharding.ShardedPasses | None = None
        self._empty_passes = 0
        self._paths = PathLog()
        self._hashing: Background[str] | None = None
        self._identified: str | None = None
        self._loading: Background[None] | None = None
        self._loading_tokens: Background[Tokens] | None = None
        self._compiling: Compiling | None = None
        self._first_requests: Sequence[Request] | None = None
        self._device: ComputeDevice | None = None
        self._mapped: MappedFiles | None = None

    @property
    def model_name(self) -> str:
        return self.source.name

    def start_hashing(self) -> None:
        if self.source.local:
            self._hashing = Background(self._fingerprint)

    def start_loading(self, requests: Sequence[Request]) -> None:
        self._first_requests = requests[:WINDOW]

    @property
    def loads_in_thread(self) -> bool:
        return self._loading is not None and not self._loading.done

    def _digest(self) -> str:
        """The fingerprint. Weights that are hashed for the first time have no recorded responses, as a rule: meanwhile there
        is time for imports, and the weights may load."""
        if self._hashing is None:
            self._identified = self._fingerprint()
            return self._identified
        requests, self._first_requests = self._first_requests, None
        if requests is not None and not self._hashing.done:
            with phase(LOADING):
                self._import_packages(decodes=any(request.kind in DECODED for request in requests))
                if self._can_load_in_thread:
                    _ = self.dtype  # which both threads need
                    tokens = self._start_tokens()
                    self._loading = Background(self._load)
                    tokens.result()
                    self._tokenize_ahead([request for request in requests if is_plain(request)])
        self._identified = self._hashing.result()
        return self._identified

    def load(self) -> None:
        """So that rates include neither loading nor probing."""
        self._wait_for_loading()
        self._load()
        self._refuse_changed()

    @property
    def _can_load_in_thread(self) -> bool:
        on_such_device = (self.device or "").partition(":")[0] in LOADED_IN_A_THREAD
        return on_such_device and not (self.source.gguf or self.lock_step or self.multimodal)

    def _refuse_changed(self) -> None:
        """Responses must be recorded under the identity of the files that were loaded."""
        expected, self._identified = self._identified, None
        if expected is not None and self.source.local and self._fingerprint() != expected:
            raise ModelError(f"the files of {self.model_name} changed while the model was loaded: run the command again")

    def _refuse_overwritten(self) -> None:
        """On a CPU weights are read from their files while the model computes."""
        if self._mapped is not None and (file := self._mapped.overwritten()) is not None:
            again = "run the command again when it is complete"
            raise ModelError(f"{file} was overwritten while the model computed from it: {again}")

    def _import_packages(self, *, decodes: bool = True) -> None:
        """What loading needs, before `config` imports most of it in its own way. Kernels are compiled in a thread, while
        packages are imported and weights are loaded."""
        if self._compiling is None:
            if self.source.local and not self.source.gguf:
                config = read_file(Path(self.source.path) / "config.json", dict[str, Any], ModelError)
            else:
                config = self.config.to_dict()
            self._compiling = start_compiling(config, self.dtype, self.device, decodes=decodes)
        loading.import_transformers()

    def _wait_for_loading(self) -> None:
        """Until a thread that loads the model is done; raises what it raised."""
        loading, self._loading = self._loading, None
        if loading is not None:
            with phase(LOADING):
                loading.result()

    def _load(self) -> None:
        _ = self.model

    def _tokenize_ahead(self, requests: Sequence[Request]) -> None:
        """Tokenize the first of these, which are scored next, in a thread."""

    def _fingerprint(self) -> str:
        return self.source.fingerprint(trust_remote_code=self.trust_remote_code)

    def identity(self) -> dict[str, Any]:
        """Weights by content, and the settings that change the logits; batch size and device do not."""
        return {
            "backend": "hf",
            "weights": self._digest(),
            "dtype": self.dtype,
            "max_context_length": self.max_context_length,
            "attn_implementation": self.attn_implementation,
            "use_chat_template": self.use_chat_template,
            "add_bos_token": self.add_bos_token,
            **({} if self.video_frames == DEFAULT_VIDEO_FRAMES else {"video_frames": self.video_frames}),
            **({"exact": True} if self.exact else {}),
            **({"media": "as transformers loads them"} if self.modalities != TEXT_ONLY else {}),
            **({"shared_prefixes": "proved"} if not self.exact and mixed_rows(self._architecture, self.dtype) else {}),
        }

    @cached_property
    def _architecture(self) -> str:
        """The types in its config, without the code of the model; the name of a GGUF file, which is slow to read."""
        if self.source.gguf:
            return self.model_name
        if self.source.local:
            config = read_file(Path(self.source.path) / "config.json", dict[str, Any], ModelError)
        else:
            config = vars(self.config)
        parts = [part for part in (config, *map(config.get, PARTS)) if part]
        return " ".join(str((part if isinstance(part, dict) else vars(part)).get("model_type", "")) for part in parts)

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
            self._modalities(),
            max_context_length=self.max_context_length,
            supports_logprobs=True,
            supports_chat_template=True,
            supports_tools=True,
            top_logprobs=None,
        )

    @cached_property
    def config(self) -> Any:
        return loading.load_config(self.source, trust_remote_code=self.trust_remote_code)

    @cached_property
    def tokens(self) -> Tokens:
        with phase(LOADING):
            text_config = self.config.get_text_config()  # which the tokenizer needs: its faults are not the tokenizer's
            tokenizer = loading.load_tokenizer(self.source, trust_remote_code=self.trust_remote_code)
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
            processor=self.processor if self.multimodal else None,
            in_pieces=not self.exact,
        )

    def _counting_tokens(self, requests: Sequence[Request]) -> Tokens:
        plain = self.source.local and not self.source.gguf and not self.use_chat_template
        if plain and "tokens" not in self.__dict__ and all(isinstance(request.context, str) for request in requests):
            return (
                read_tokens(Path(self.source.path), most=self.max_context_length, add_bos=self.add_bos_token) or self.tokens
            )
        return self.tokens

    @cached_property
    def device(self) -> str | None:
        """The device of the weights; None if they are on several."""
        return choose_device("cpu" if self.lock_step else self.device_map, self._weight_bytes)

    def _weight_bytes(self) -> int | None:
        """At most, in memory; a hub model may not be downloaded yet."""
        if self.source.size is None:
            return loading.parameter_bytes(self.config, multimodal=self.multimodal, dtype=self.dtype)
        return self.source.size * (4 if self.source.gguf else 1) * (2 if self.dtype == "float32" else 1)

    @property
    def model(self) -> Any:
        """The loaded transformers model."""
        if self._model is None:
            with phase(LOADING):
                self._import_packages()
                tokens = self._start_tokens() if self._can_load_in_thread else None
                if self.device in (None, "cpu"):
                    self._mapped = MappedFiles.of(self.source.weights)
                self._model = loading.load_weights(
                    self.source,
                    self.config,
                    multimodal=self.multimodal,
                    dtype=self.dtype,
                    device=self.device,
                    device_map=self.device_map,
                    attn_implementation=self.attn_implementation,
                    trust_remote_code=self.trust_remote_code,
                )
                if tokens is not None:
                    tokens.result()
                if self._compiling is not None:
                    self._compiling.first.result()
            if self.lock_step:
                self._passes = sharding.shard(self._model)
            self._eos_ids = decoding.take_eos_ids(self._model, self.tokens.tokenizer)
            self._compare_vocabularies(self._model)
            with contextlib.suppress(Exception):  # a model may be third-party code, and only a report needs it
                self._device = read_device(self._model)
        return self._model

    def _start_tokens(self) -> Background[Tokens]:
        """Load the tokenizer in a thread, while the weights are copied. Remote code is loaded before them."""
        if self._loading_tokens is None:
            has_code = hasattr(self.config, "auto_map")
            self._loading_tokens = Background(lambda: self.tokens)
            if has_code:
                self._loading_tokens.result()
        return self._loading_tokens

    def _compare_vocabularies(self, model: Any) -> None:
        with contextlib.suppress(Exception):  # a tokenizer may be third-party code
            known, rows = len(self.tokens.tokenizer), model.get_input_embeddings().weight.shape[0]
            if known > rows:
                others = "a request with one of the others fails"
                warn(f"{self.model_name}: the tokenizer has {known} tokens, the model {rows}; {others}")

    def compute_device(self) -> ComputeDevice | None:
        return self._device

    def synchronize(self) -> None:
        if self._passes is not None:
            self._passes.synchronize()

    def warnings(self) -> list[str]:
        if self._passes is not None:
            self._empty_passes = self._passes.empty_passes
        sharded = f"weights sharded over {world_size()} ranks; empty passes of rank 0: {self._empty_passes}"
        fallback = [FLOAT32_FALLBACK] if self._fell_back_to_float32 else []
        return [*super().warnings(), *fallback, *([sharded] if self.lock_step else [])]

    def clean(self) -> None:
        self.warnings()
        if self._model is not None and self.made_with.holds_weights:
            for name in [name for name in vars(self._model) if name.startswith("_mill_")]:
                del self._model.__dict__[name]  # what refers to its layers as they are now
        elif self._model is not None:
            self._model = self._passes = None
            self._free_memory()

    def _free_memory(self) -> None:
        gc.collect()
        memory.empty_caches()
