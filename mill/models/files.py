"""The files of a model in the format of transformers: their location and fingerprint, and what is loaded from them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.errors import ModelError, UnknownName
from mill.api.message import AUDIO, IMAGE, MEDIA_KINDS, VIDEO
from mill.compat import cached_gguf_reads, reachable_hub
from mill.models.spec.fingerprint import announce_remote_code, file_digest, folder_digest, model_files, weights_size
from mill.support.clocks import LOADING, phase
from mill.support.terminal import describe
from mill.support.validate import read_file

TEXT_ONLY = ("text",)  # the default of an argument, which means: what the processor takes


@functools.cache
def why_missing(name: str, revision: str | None) -> str:
    """Why a model can be had neither from the cache nor from the hub; empty if it can. Other errors are left to
    transformers, which explains them."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        with reachable_hub():
            hf_hub_download(name, "config.json", revision=revision)
    except (RepositoryNotFoundError, HFValidationError):
        return "the hub has no public model of that name"
    except (LocalEntryNotFoundError, ConnectionError):
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


def load_config(source: Source, *, trust_remote_code: bool) -> Any:
    _refuse_missing(source, "config")
    from transformers import AutoConfig

    config = load(AutoConfig, source, "config", trust_remote_code=trust_remote_code)
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

    return load(AutoTokenizer, source, "tokenizer", trust_remote_code=trust_remote_code)


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


def _refuse_missing(source: Source, what: str) -> None:
    """Refuse a name that the hub does not have, before the imports that take seconds."""
    reason = "" if source.local else why_missing(source.path, source.revision)
    if reason:
        raise ModelError(f"cannot load the {what} of {source.name}: no such local folder, and {reason}")


def load(auto: Any, source: Source, what: str, **arguments: Any) -> Any:
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
    with quiet, cached_gguf_reads():
        yield


def _reason(error: Exception, source: Source) -> str:
    if not source.local and isinstance(error, OSError):
        missing = why_missing(source.path, source.revision)
        return f"no such local folder, and {missing}" if missing else describe(error)
    return describe(error)


class ModelFiles:
    """What is loaded from the files of a model beside its weights, each when it is needed."""

    def __init__(self, source: Source, *, trust_remote_code: bool, modalities: Sequence[str]) -> None:
        """`modalities` are those of the spec."""
        for modality in modalities:
            if modality not in ("text", *MEDIA_KINDS):
                raise UnknownName("modality", modality, MEDIA_KINDS, hint=f"known are text, {', '.join(MEDIA_KINDS)}")
        self.source, self.trust_remote_code, self.given_modalities = source, trust_remote_code, modalities

    @cached_property
    def config(self) -> Any:
        return load_config(self.source, trust_remote_code=self.trust_remote_code)

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.source, trust_remote_code=self.trust_remote_code)

    @cached_property
    def processor(self) -> Any:
        """Of a multimodal model: a tokenizer and the preprocessing of images, video and audio."""
        from transformers import AutoProcessor

        with phase(LOADING):
            return load(AutoProcessor, self.source, "processor", trust_remote_code=self.trust_remote_code)

    @cached_property
    def modalities(self) -> set[str]:
        """Those of the spec; without them what the processor takes."""
        given = self.given_modalities is not TEXT_ONLY or self.source.gguf
        if given or not has_towers(self.source, trust_remote_code=self.trust_remote_code):
            return set(self.given_modalities)
        parts = {IMAGE: "image_processor", VIDEO: "video_processor", AUDIO: "feature_extractor"}
        return {"text"} | {kind for kind, part in parts.items() if getattr(self.processor, part, None) is not None}

    @property
    def multimodal(self) -> bool:
        return self.modalities != {"text"}

    def fingerprint(self) -> str:
        return self.source.fingerprint(trust_remote_code=self.trust_remote_code)
