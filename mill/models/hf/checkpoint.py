"""A checkpoint of transformers: its settings, its weights on their device, and a tokenizer that needs no transformers."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mill.api.errors import ModelError, UnknownName
from mill.api.request import GENERATE, MULTI_ROUND
from mill.compat import clear_gguf_cache
from mill.models.device import choose_device, cpu_has_bfloat16
from mill.models.files import ModelFiles, Source, load
from mill.models.tokens.tokenizer import Tokens
from mill.support.terminal import warn
from mill.support.validate import read_file

if TYPE_CHECKING:
    import torch


DTYPES = ("bfloat16", "float16", "float32")
PARTS = ("text_config", "llm_config", "language_config")
DECODED = (GENERATE, MULTI_ROUND)  # kinds of requests whose answers are generated
LOADED_IN_A_THREAD = ("cuda",)  # devices where it needs little of the interpreter
AUTO = ("models.auto.modeling_auto", "models.auto.tokenization_auto")
IMPORTED = ("generation.utils", "modeling_utils", "processing_utils", *AUTO)


class _Default(str):
    """A default, as distinct from the same value given by the user."""


DEFAULT_DTYPE = _Default("bfloat16")  # float32 on a CPU that would have to emulate it
FLOAT32_FALLBACK = (
    "this CPU has no bfloat16 arithmetic, so dtype=float32 is taken; dtype=bfloat16 would be emulated, which is slow"
)


class Checkpoint(ModelFiles):
    """The files of a model, and how its weights are loaded. With `sharded`, they are sharded over ranks afterwards."""

    def __init__(
        self,
        source: Source,
        *,
        dtype: str,
        device_map: str,
        attn_implementation: str | None,
        trust_remote_code: bool,
        modalities: Sequence[str],
        sharded: bool,
    ) -> None:
        super().__init__(source, trust_remote_code=trust_remote_code, modalities=modalities)
        if dtype not in DTYPES:
            raise UnknownName("dtype of hf", dtype, DTYPES, hint=f"it takes auto, {', '.join(DTYPES)}")
        self._requested_dtype, self.device_map, self.attn_implementation = dtype, device_map, attn_implementation
        self._sharded = sharded

    @cached_property
    def dtype(self) -> str:
        """The requested dtype. By default bfloat16, or float32 on a CPU without bfloat16 arithmetic."""
        if self._requested_dtype is not DEFAULT_DTYPE or cpu_has_bfloat16() or choose_device(self.device_map) != "cpu":
            return str(self._requested_dtype)
        warn(FLOAT32_FALLBACK)
        return "float32"

    def warnings(self) -> list[str]:
        fell_back = self._requested_dtype is DEFAULT_DTYPE and self.__dict__.get("dtype") == "float32"
        return [FLOAT32_FALLBACK] if fell_back else []

    @cached_property
    def device(self) -> str | None:
        """The device of the weights; None if they are on several."""
        return choose_device("cpu" if self._sharded else self.device_map, self._weight_bytes)

    def _weight_bytes(self) -> int | None:
        """At most, in memory; a hub model may not be downloaded yet."""
        if self.source.size is None:
            return parameter_bytes(self.config, multimodal=self.multimodal, dtype=self.dtype)
        return self.source.size * (4 if self.source.gguf else 1) * (2 if self.dtype == "float32" else 1)

    @property
    def loads_in_thread(self) -> bool:
        on_such_device = (self.device or "").partition(":")[0] in LOADED_IN_A_THREAD
        return on_such_device and not (self.source.gguf or self._sharded or self.multimodal)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The content of config.json, without the code of the model where the file is there."""
        if self.source.local and not self.source.gguf:
            return read_file(Path(self.source.path) / "config.json", dict[str, Any], ModelError)
        return dict(self.config.to_dict())

    @cached_property
    def architecture(self) -> str:
        """The types in its config; the name of a GGUF file, which is slow to read."""
        if self.source.gguf:
            return self.source.name
        settings = self.settings
        parts = [part for part in (settings, *map(settings.get, PARTS)) if part]
        return " ".join(str(part.get("model_type", "")) for part in parts)

    def load(self) -> Any:
        """The network in evaluation mode on its device, or by `device_map` on several."""
        import torch

        device = self.device
        if self.dtype == "bfloat16" and device == "cpu" and not cpu_has_bfloat16():
            warn("this CPU emulates bfloat16 arithmetic, which is slow: dtype=float32 is several times faster")
        arguments: dict[str, Any] = {"dtype": getattr(torch, self.dtype), "trust_remote_code": self.trust_remote_code}
        if self.attn_implementation:
            arguments["attn_implementation"] = self.attn_implementation
        if device is None:
            arguments["device_map"] = self.device_map
        try:
            arguments |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # which _check_tensors refuses
            model, info = load(_auto_class(self.config, self.multimodal), self.source, "weights", **arguments)
        finally:
            clear_gguf_cache()
        _check_tensors(self.source, info)
        if device is not None:
            model = to_cuda(model, device) if device.startswith("cuda") else model.to(device)
        if not self._sharded:
            _copy_from_files(model)
        return model.eval()


def _copy_from_files(model: Any) -> None:
    """Weights on a CPU are mapped from their files, and would change with a file that is overwritten."""
    for weight in chain(model.parameters(), model.buffers()):
        if weight.device.type == "cpu":
            weight.data = weight.data.clone()


def import_transformers() -> None:
    """Import what loading needs, before threads do: two that import modules which import each other may get one that is
    not complete."""
    for name in IMPORTED:
        importlib.import_module(f"transformers.{name}")


def parameter_bytes(config: Any, *, multimodal: bool, dtype: str) -> int | None:
    """The size of the weights by their config alone; None where transformers cannot make the model from it."""
    import torch

    with contextlib.suppress(Exception), torch.device("meta"):
        model = _auto_class(config, multimodal).from_config(config, dtype=getattr(torch, dtype))
        found: int = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        return found
    return None


def take_eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer. The model's other generation defaults (penalties, temperature) are removed: only the
    request's options count."""
    from transformers import GenerationConfig

    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = [] if eos is None else ([eos] if isinstance(eos, int) else list(eos))
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    model.generation_config = GenerationConfig()
    return ids


def _check_tensors(source: Source, info: Mapping[str, Any]) -> None:
    """Tensors that no file has, or only in another shape, would be random numbers."""
    for name, found, expected in info.get("mismatched_keys") or ():
        shapes = f"{name} has the shape {tuple(found)} in its files and {tuple(expected)} by its config"
        raise ModelError(f"cannot load the weights of {source.name}: {shapes}")
    missing, unused = (sorted(info.get(f"{which}_keys") or ()) for which in ("missing", "unexpected"))
    if missing:
        more = f" and {len(missing) - 1} other tensors" if len(missing) > 1 else ""
        raise ModelError(f"cannot load the weights of {source.name}: none of its files has {missing[0]}{more}")
    if unused:
        warn(f"{source.name}: {len(unused)} tensors of its files are not used by the model, such as {unused[0]}")


def _auto_class(config: Any, multimodal: bool) -> Any:
    """The auto class of this architecture; for a multimodal model first those that take media."""
    import transformers

    with_media = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForSeq2SeqLM")
    names = (*with_media, "AutoModelForCausalLM") if multimodal else ("AutoModelForCausalLM", *with_media)
    classes = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    matching = (auto for auto in classes if type(config) in auto._model_mapping)
    return next(matching, transformers.AutoModelForCausalLM)  # which finds remote code by its auto_map


BLOCK = 1 << 27  # bytes of each of the two buffers: after each block this thread may wait for others
SMALLEST = 1 << 20  # bytes of a tensor that is worth it
FEWEST_THREADS = 4  # with fewer the ordinary copy is faster


def to_cuda(model: Any, device: str) -> Any:
    """The model on the device."""
    import torch

    if torch.get_num_threads() >= FEWEST_THREADS:
        try:
            with torch.cuda.device(device), torch.no_grad():
                _copy_large([parameter for parameter in model.parameters() if _is_large(parameter)], device)
        except RuntimeError:  # no page-locked memory, or none of the device, which the ordinary copy reports
            torch.cuda.synchronize(device)
    return model.to(device)


def _is_large(parameter: torch.Tensor) -> bool:
    """Quantized weights have tensor types of their own, which know how they are moved."""
    import torch

    plain = type(parameter) is torch.nn.Parameter and type(parameter.data) is torch.Tensor and parameter.is_contiguous()
    return plain and parameter.device.type == "cpu" and parameter.nbytes >= SMALLEST


def _copy_large(parameters: list[torch.nn.Parameter], device: str) -> None:
    import torch

    buffers = [torch.empty(BLOCK, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in buffers]
    blocks = 0
    for parameter in parameters:
        moved = torch.empty_like(parameter.data, device=device)
        source, target = (one.view(-1).view(torch.uint8) for one in (parameter.data, moved))
        for part, goal in zip(source.split(BLOCK), target.split(BLOCK), strict=True):
            which = blocks % len(buffers)
            copied[which].synchronize()  # of the block before, which the buffer had
            block = buffers[which][: len(part)]
            block.copy_(part)
            goal.copy_(block, non_blocking=True)
            copied[which].record()
            blocks += 1
        parameter.data = moved
    torch.cuda.synchronize(device)


_UNCHANGED = {"TokenizersBackend", "PreTrainedTokenizerFast"}
_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"),
    *("extra_special_tokens", "additional_special_tokens", "added_tokens_decoder"),
)
_HARMLESS = {
    *("tokenizer_class", "backend", "is_local", "local_files_only", "model_max_length", "name_or_path", "chat_template"),
    *("padding_side", "truncation_side", "model_input_names", "clean_up_tokenization_spaces"),
    *("special_tokens_map_file", "response_schema", *_TOKENS),
}
"""Settings that change no ids, or whose tokens are looked up in the file."""


class FileTokenizer:
    """The part of a transformers tokenizer that encodes texts."""

    chat_template = None

    def __init__(self, tokenizer: Any, *, bos: str | None, eos: str | None) -> None:
        self.backend_tokenizer, self.get_vocab = tokenizer, tokenizer.get_vocab
        self.added_tokens_decoder = tokenizer.get_added_tokens_decoder()
        self.bos_token_id, self.eos_token_id = (None if one is None else tokenizer.token_to_id(one) for one in (bos, eos))

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, Any]:
        encoded = self.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return {"input_ids": [text.ids for text in encoded]}


def read_tokens(folder: Path, *, most: int, add_bos: bool | None) -> Tokens | None:
    """The tokens of a model in a folder, with a window of at most `most`."""
    try:
        settings = read_file(folder / "tokenizer_config.json", dict[str, Any], ModelError)
        config = read_file(folder / "config.json", dict[str, Any], ModelError)
        return _read(folder, settings, config, most, add_bos)
    except Exception:  # damaged files, and versions that this library does not read: transformers reports the reason
        return None


def _read(folder: Path, settings: dict[str, Any], config: dict[str, Any], most: int, add_bos: bool | None) -> Tokens | None:
    from tokenizers import Tokenizer

    text_config = config.get("text_config") or config
    positions = text_config.get("max_position_embeddings")
    others = {name for name, value in settings.items() if value is not None} - _HARMLESS
    if settings.get("tokenizer_class") not in _UNCHANGED or others or (folder / "added_tokens.json").exists():
        return None
    if not isinstance(positions, int) or "auto_map" in config or "vision_config" in config:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = folder / "special_tokens_map.json"
    mapped = read_file(special, dict[str, Any], ModelError) if special.exists() else {}
    named = [token for source in (settings, mapped) for name in _TOKENS for token in _contents(source.get(name))]
    if any(tokenizer.token_to_id(token) is None for token in named):
        return None  # which transformers would add
    bos, eos = (next(iter(_contents(settings.get(name))), None) for name in ("bos_token", "eos_token"))
    return Tokens(
        FileTokenizer(tokenizer, bos=bos, eos=eos),
        window=min(most, positions),
        add_bos=add_bos,
        model_type=str(text_config.get("model_type", "")),
    )


def _contents(tokens: Any) -> list[str]:
    """The texts of tokens: a text, an object with a `content`, or several of them in a list or by name."""
    if isinstance(tokens, str):
        return [tokens]
    if isinstance(tokens, dict):
        tokens = [tokens["content"]] if "content" in tokens else list(tokens.values())
    return [text for token in tokens or () for text in _contents(token)]
