"""Where results are exported to: what `--to` and `--log_to` name. Every target describes itself (`Exporter`)."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mill.export
from mill.api.errors import MillError, MissingPackage, RunError, SpecError
from mill.api.registry import exporters
from mill.export.run import ExportedRun
from mill.support.files import write_atomically
from mill.support.secrets import redact_address, redact_text
from mill.support.terminal import describe, warn

EXPORTS = "exports"  # the default folder, in that of the runs


class ExportError(MillError):
    """A tracker or a package that failed while it stored a run."""

    exit_code = 1


@dataclass(frozen=True)
class Exporter:
    """A file format or a tracker. Other packages name theirs in the entry point group `mill.exporters`."""

    name: str
    about: str
    """What is stored, in a line."""
    write: Callable[..., list[Path]] | None = None
    """A file format: `write(runs, folder, samples=True)` returns the files that it wrote."""
    store: Callable[..., str] | None = None
    """A tracker: `store(run, files, address=, project=, offline=)` stores a `TrackedRun`, with the files of a folder, in one
    entry, and returns where that is. It may raise any exception of the tracker's package."""
    address: str = ""
    """What may follow the name and a colon: PROJECT or URI."""
    check_address: Callable[[str], None] | None = None
    """Raises for an address that cannot be one."""
    options: tuple[str, ...] = ()
    """Options of `mill export` that it takes, beside those of all formats or all trackers."""
    package: str = ""
    """What must be importable, and the extra of mill that installs it."""
    extra: str = ""

    @property
    def is_tracker(self) -> bool:
        return self.store is not None

    def takes(self, option: str) -> bool:
        return option in (*self.options, *(("project", "no_report") if self.is_tracker else ("out",)))

    def check_installed(self, what: str) -> None:
        if self.package and importlib.util.find_spec(self.package) is None:
            raise MissingPackage(what, self.package, self.extra)


@dataclass(frozen=True)
class Target:
    """An exporter, with the address or project after the colon."""

    exporter: Exporter
    address: str = ""

    @property
    def name(self) -> str:
        return self.exporter.name


def builtin_exporters() -> dict[str, Exporter]:
    """Every `Exporter` in a module of `mill.export`."""
    names = [f"mill.export.{module.name}" for module in pkgutil.iter_modules(mill.export.__path__)]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    return {value.name: value for value in values if isinstance(value, Exporter)}


def known_exporters() -> dict[str, Exporter]:
    """Those of mill and of other packages, by the names of their entry points; one that cannot be imported is left out with
    a warning."""
    found = {}
    for name in exporters:
        try:
            found[name] = replace(exporters.get(name), name=name)
        except MillError as error:
            warn(f"the target {name} cannot be used: {error}")
    return found


def names_taking(option: str) -> str:
    """The targets that take an option of `mill export`."""
    return ", ".join(name for name, exporter in known_exporters().items() if exporter.takes(option))


def parse_target(text: str) -> Target:
    name, _, address = text.strip().partition(":")
    if name == "every-eval-ever":
        raise SpecError(f"{name} was removed: export to lm-eval or inspect, and run `every_eval_ever convert` on the files")
    exporter: Exporter = replace(exporters.get(name, hint=f"targets are {', '.join(exporters)}"), name=name)
    if address and not exporter.is_tracker:
        raise SpecError(f"{redact_address(text)}: {name} is a file format; --out names its folder")
    if address and exporter.check_address is not None:
        exporter.check_address(address)
    return Target(exporter, address)


def failure(target: Target, error: BaseException) -> ExportError:
    """One line about an exception of a package, without keys."""
    return ExportError(redact_text(f"{target.name}: {describe(error)}"))


def write_target(runs: Sequence[ExportedRun], target: Target, folder: Path, *, samples: bool) -> list[Path]:
    """The files that were written. A marker says to `mill view` that these are runs of mill, not further ones."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, and a folder is needed")
    assert target.exporter.write is not None
    target.exporter.check_installed(f"the target {target.name}")
    try:
        written = target.exporter.write(runs, folder, samples=samples)
    except MillError:
        raise
    except Exception as error:  # packages that write a format may refuse anything
        raise failure(target, error) from error
    from mill.view.scan import EXPORT_MARKER

    write_atomically(folder / EXPORT_MARKER, "Written by `mill export`.\n", root=folder)
    return written
