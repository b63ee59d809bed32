"""A model's files: their location, their fingerprint, and loading the tokenizer and the weights."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mill.api.errors import ModelError
from mill.compat import gguf
from mill.models.device import cpu_has_bfloat16
from mill.models.spec.fingerprint import file_digest, folder_digest, model_files, weights_size
from mill.models.spec.remote_code import announce_remote_code
from mill.support.terminal import describe, warn
from mill.support.validate import read_file

if TYPE_CHECKING:
    import torch


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


@functools.cache
def why_missing(name: str, revision: str | None) -> str:
    """Why a model can be had neither from the cache nor from the hub; empty if it can. Other errors are left to
    transformers, which explains them."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        hf_hub_download(name, "config.json", revision=revision)
    except (RepositoryNotFoundError, HFValidationError):
        return "the hub has no public model of that name"
    except LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE:
            return "it is not in the hub's cache, and HF_HUB_OFFLINE is set: unset it to download the model"
        return "the hub cannot be reached, and the model is not in its cache: check the network, or give a local folder"
    except Exception:  # a model without config.json, no access, a full disk
        return ""
    return ""


_HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
GENERATION_CONFIG = "generation_config.json"
MOST_LAYERS = 10_000
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
AUTO = ("models.auto.modeling_auto", "models.auto.tokenization_auto")
IMPORTED = ("generation.utils", "modeling_utils", "processing_utils", *AUTO)


@dataclass(frozen=True)
class Source:
    """A local folder, a GGUF file inside a folder, or a name on the hub."""

    path: str
    revision: str | None = None
    gguf: str | None = None
    local: bool = False

    @property
    def name(self) -> str:
        return Path(self.gguf).stem if self.gguf else (Path(self.path).name if self.local else self.path)

    def arguments(self) -> dict[str, Any]:
        """The arguments of from_pretrained for these files."""
        arguments: dict[str, Any] = {"pretrained_model_name_or_path": self.path}
        if self.gguf:
            arguments["gguf_file"] = self.gguf
        if self.revision:
            arguments["revision"] = self.revision
        return arguments

    @property
    def size(self) -> int | None:
        """The weights' bytes on disk; None for a hub model, which may not be downloaded yet."""
        if not self.local:
            return None
        return (Path(self.path) / self.gguf).stat().st_size if self.gguf else weights_size(Path(self.path))

    @property
    def weights(self) -> list[Path]:
        """The files of a local model from which its weights are read; those of a GGUF file are converted first."""
        files = model_files(Path(self.path)) if self.local and not self.gguf else []
        suffixes = {Path(pattern).suffix for pattern in WEIGHTS}
        return [file for file in files if file.suffix in suffixes]

    def fingerprint(self, *, trust_remote_code: bool) -> str:
        """The content of local files; the commit of a hub model, which its config has."""
        if self.gguf:
            return file_digest(Path(self.path) / self.gguf)
        if self.local:
            return folder_digest(Path(self.path))
        config = load_config(self, trust_remote_code=trust_remote_code)
        commit = getattr(config, "_commit_hash", None) or self.revision or "unknown"
        return f"{self.path}@{commit}"


def locate(path: str, revision: str | None) -> Source:
    """The source of a path or hub name; a local path that does not exist is refused."""
    expanded = _expanded(path)
    if path.endswith(".gguf"):
        if not expanded.is_file():
            raise ModelError(f"model file {path} does not exist")
        if not _is_gguf(expanded):
            raise ModelError(f"model file {path} is not a GGUF file, despite its name")
        return Source(str(expanded.parent), gguf=expanded.name, local=True)
    if expanded.is_dir():
        ggufs = sorted(file for file in expanded.glob("*.gguf") if file.is_file() and _is_gguf(file))
        if not (expanded / "config.json").is_file():
            if len(ggufs) == 1:
                return Source(str(expanded), gguf=ggufs[0].name, local=True)
            run = ": it is the folder of a run, which `mill compare --runs A B` takes" if _is_run(expanded) else ""
            raise ModelError(f"model folder {path} has no config.json{run}")
        if not any(any(expanded.glob(pattern)) for pattern in WEIGHTS):
            raise ModelError(f"model folder {path} has no weights: none of {', '.join(WEIGHTS)}")
        if (expanded / GENERATION_CONFIG).exists():  # which has stop tokens, and transformers ignores a damaged one
            read_file(expanded / GENERATION_CONFIG, dict[str, Any], ModelError)
        return Source(str(expanded.resolve()), local=True)
    if expanded.exists():
        raise ModelError(f"model path {path} is neither a folder nor a .gguf file")
    if path.startswith(("/", "./", "../", "~")) or path.count("/") > 1:
        raise ModelError(f"model folder {path} does not exist")
    if not _HUB_NAME.fullmatch(path):
        raise ModelError(f"model path {path!r} is no local folder and no valid hub name")
    return Source(path, revision=revision)


def _expanded(path: str) -> Path:
    """The path with ~ expanded; one that no file can have is refused."""
    try:
        expanded = Path(path).expanduser()
        expanded.exists()
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a NUL, an unknown user
        raise ModelError(f"model path {path!r} is not valid: {describe(error)}") from error
    if not path.strip():
        raise ModelError("the model path is empty: write hf[path=org/name]")
    return expanded


def _is_run(folder: Path) -> bool:
    return (folder / "manifest.json").is_file()


def _is_gguf(file: Path) -> bool:
    with file.open("rb") as handle:
        return handle.read(4) == b"GGUF"


def import_transformers() -> None:
    """Import what loading needs, before threads do: two that import modules which import each other may get one that is
    not complete."""
    for name in IMPORTED:
        importlib.import_module(f"transformers.{name}")


def load_config(source: Source, *, trust_remote_code: bool) -> Any:
    _refuse_missing(source, "config")
    from transformers import AutoConfig

    config = _load(AutoConfig, source, "config", trust_remote_code=trust_remote_code)
    _check_numbers(source, config)
    return config


def _check_numbers(source: Source, config: Any) -> None:
    """Those that transformers does not check, and that would end in an unclear error, or in layers made for hours."""
    text = config.get_text_config()
    layers, window = (getattr(text, name, None) for name in ("num_hidden_layers", "sliding_window"))
    if isinstance(layers, int) and not 0 <= layers <= MOST_LAYERS:
        raise ModelError(f"num_hidden_layers of {source.name} is {layers}, not a number from 0 to {MOST_LAYERS:,}")
    if not isinstance(window, int | None):
        raise ModelError(f"sliding_window of {source.name} is {window!r}, not a whole number")


def load_tokenizer(source: Source, *, trust_remote_code: bool) -> Any:
    _refuse_missing(source, "tokenizer")
    from transformers import AutoTokenizer

    return _load(AutoTokenizer, source, "tokenizer", trust_remote_code=trust_remote_code)


def load_processor(source: Source, *, trust_remote_code: bool) -> Any:
    """The processor of a multimodal model: a tokenizer and the preprocessing of images, video and audio."""
    from transformers import AutoProcessor

    return _load(AutoProcessor, source, "processor", trust_remote_code=trust_remote_code)


def has_towers(source: Source, *, trust_remote_code: bool) -> bool:
    """Whether a model has a vision or audio tower beside the language model. The config of a local folder is read as it is:
    importing transformers takes seconds, which a run whose responses are all known does not need."""
    names = [f"{part}_config" for part in ("vision", "audio", "thinker")]
    if source.local:
        config = read_file(Path(source.path) / "config.json", dict[str, Any], ModelError)
        if "auto_map" not in config:  # with remote code, which may be forbidden
            return any(config.get(name) is not None for name in names)
    loaded = load_config(source, trust_remote_code=trust_remote_code)
    return any(getattr(loaded, name, None) is not None for name in names)


def load_weights(
    source: Source,
    config: Any,
    *,
    multimodal: bool,
    dtype: str,
    device: str | None,
    device_map: str,
    attn_implementation: str | None,
    trust_remote_code: bool,
) -> Any:
    """The model in evaluation mode on its device, or by `device_map` on several."""
    import torch

    if dtype == "bfloat16" and device == "cpu" and not cpu_has_bfloat16():
        warn("this CPU has no bfloat16 arithmetic, so bfloat16 is emulated and slow: dtype=float32 is several times faster")
    arguments: dict[str, Any] = {"dtype": getattr(torch, dtype), "trust_remote_code": trust_remote_code}
    if attn_implementation:
        arguments["attn_implementation"] = attn_implementation
    if device is None:
        arguments["device_map"] = device_map
    try:
        arguments |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # which _check_tensors refuses
        model, info = _load(_auto_class(config, multimodal), source, "weights", **arguments)
    finally:
        gguf.clear_cache()
    _check_tensors(source, info)
    if device is not None:
        model = to_cuda(model, device) if device.startswith("cuda") else model.to(device)
    return model.eval()


def parameter_bytes(config: Any, *, multimodal: bool, dtype: str) -> int | None:
    """The size of the weights by their config alone; None where transformers cannot make the model from it."""
    import torch

    with contextlib.suppress(Exception), torch.device("meta"):
        model = _auto_class(config, multimodal).from_config(config, dtype=getattr(torch, dtype))
        found: int = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        return found
    return None


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


def _refuse_missing(source: Source, what: str) -> None:
    """Refuse a name that the hub does not have, before the imports that take seconds."""
    reason = "" if source.local else why_missing(source.path, source.revision)
    if reason:
        raise ModelError(f"cannot load the {what} of {source.name}: no such local folder, and {reason}")


def _load(auto: Any, source: Source, what: str, **arguments: Any) -> Any:
    """from_pretrained without transformers' log messages, and with failures in one line."""
    from transformers.utils import logging

    if source.gguf and importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{source.gguf} needs the package gguf: pip install gguf")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if arguments.get("trust_remote_code") and not source.gguf:
        announce_remote_code(source.path, source.revision)
    try:
        with _quick_gguf() if source.gguf else contextlib.nullcontext():
            return auto.from_pretrained(**source.arguments(), **arguments)
    except Exception as error:  # transformers, safetensors and remote code raise any type
        raise ModelError(f"cannot load the {what} of {source.name}: {_reason(error, source)}") from error


@contextlib.contextmanager
def _quick_gguf() -> Iterator[None]:
    """Reads are cached. The conversion draws a progress bar, which does not belong in a log file."""
    quiet = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    with quiet, gguf.cached_reads():
        yield


def _reason(error: Exception, source: Source) -> str:
    if not source.local and isinstance(error, OSError):
        missing = why_missing(source.path, source.revision)
        return f"no such local folder, and {missing}" if missing else describe(error)
    return describe(error)
