"""Importing transformers without what it imports for options that mill does not use."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from mill.compat.model_sources import quick_model_sources

NEEDED = ("transformers.generation.utils", "transformers.modeling_utils", "transformers.processing_utils")
AUDIO = ("torchaudio", "librosa", "soxr")  # for reading files, in transformers.audio_utils
# sklearn is for one option of assisted decoding, scipy for losses of object detection.
UNUSED = ("sklearn", "scipy", *AUDIO)
MISSING = "_object_missing_backend"  # of a lazy module: packages that each class or module lacks, such as "torch>=2.6"
_VERSION = re.compile(r"[<>=!~ ]")
_all_distributions = importlib.metadata.packages_distributions
_importing = threading.RLock()


def import_transformers() -> None:
    """Import what loading a model needs, in three fifths of the time. Where it is imported already, no package is hidden:
    another thread may import one of them."""
    with _importing:
        if all(name in sys.modules for name in NEEDED):
            return
        with quick_imports():
            for name in NEEDED:
                importlib.import_module(name)


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Inside this context importing parts of transformers takes less time. One thread at a time: where several import
    modules that import each other, Python may give one of them a module that is not complete."""
    with _importing, _hidden_packages(), _quick_versions(), quick_model_sources():
        yield


@functools.cache
def _may_hide() -> bool:
    """Not where the program imported transformers by itself: it may use those packages, in other threads too."""
    return "transformers" not in sys.modules


@contextlib.contextmanager
def _hidden_packages() -> Iterator[None]:
    """Inside this context packages that mill does not use seem not to be installed, unless they are imported already."""
    hidden = [name for name in UNUSED if name not in sys.modules] if _may_hide() else []
    sys.modules |= dict.fromkeys(hidden)  # type: ignore[arg-type]
    _forget_available(hidden)
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
        _forget_available(hidden)
        _uncover_classes({name for name in hidden if importlib.util.find_spec(name)})
        audio = sys.modules.get("transformers.audio_utils")
        for name in hidden:
            if audio is not None and name in AUDIO and not hasattr(audio, name) and importlib.util.find_spec(name):
                setattr(audio, name, LazyPackage(name))


def _forget_available(packages: Collection[str]) -> None:
    """Transformers remembers which packages are installed."""
    utils = sys.modules.get("transformers.utils.import_utils")
    for name in packages:
        clear = getattr(getattr(utils, f"is_{name}_available", None), "cache_clear", None)
        if clear is not None:
            clear()


def _uncover_classes(packages: Collection[str]) -> None:
    """It also remembers which classes need a package that is not installed, and replaces them by empty ones: from
    now on not for these packages."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "transformers":
            missing: dict[str, list[str]] = getattr(module, "__dict__", {}).get(MISSING, {})
            for of, backends in list(missing.items()):
                missing[of] = [one for one in backends if _VERSION.split(one)[0] not in packages]
                if not missing[of]:
                    del missing[of]


class LazyPackage(ModuleType):
    """A package that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def _quick_versions() -> Iterator[None]:
    """Inside this context the distributions of packages are found when they are needed: transformers reads the metadata of
    all installed ones when it is imported."""
    original = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = Distributions
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = original


class Distributions(Mapping[str, list[str]]):
    """The distributions of each package. One of the package's name is looked up; others, such as Pillow of PIL, need the
    metadata of all. So do those of FlashAttention, several of which have one package."""

    def __getitem__(self, package: str) -> list[str]:
        if not package.startswith("flash_attn"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                return [importlib.metadata.distribution(package).metadata["Name"]]
        return self._all[package]

    @functools.cached_property
    def _all(self) -> Mapping[str, list[str]]:
        return _all_distributions()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
