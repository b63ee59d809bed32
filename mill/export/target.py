"""Where results are exported to: the names that `--to` and `--log_to` take."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mill.api.errors import MillError, RunError, SpecError, UnknownName
from mill.export.run import ExportedRun
from mill.models.spec.arguments import check_address
from mill.support.files import write_atomically
from mill.support.secrets import looks_like_url, redact_address, redact_text
from mill.support.terminal import describe
from mill.view.scan import EXPORT_MARKER

MLFLOW, WANDB, TRACKIO = "mlflow", "wandb", "trackio"
TRACKERS = (MLFLOW, WANDB, TRACKIO)
FILES = ("hub", "lm-eval", "inspect", "every-eval-ever", "parquet")


class ExportError(MillError):
    """A tracker or a package that failed while it stored a run."""

    exit_code = 1


def failure(target: Target, error: BaseException) -> ExportError:
    """One line about an exception of a package, without keys."""
    return ExportError(redact_text(f"{target.name}: {describe(error)}"))


@dataclass(frozen=True)
class Target:
    """A tracker with the address or project after the colon, or a file format."""

    name: str
    address: str = ""

    @property
    def is_tracker(self) -> bool:
        return self.name in TRACKERS


def parse_target(text: str) -> Target:
    name, _, address = text.strip().partition(":")
    if name not in (*TRACKERS, *FILES):
        raise UnknownName("target", name, (*TRACKERS, *FILES), hint=f"targets are {', '.join((*TRACKERS, *FILES))}")
    if address and name not in TRACKERS:
        raise SpecError(f"{redact_address(text)}: {name} is a file format; --out names its folder")
    if name in TRACKERS:
        _check_tracker(name, address)
    return Target(name, address)


def _check_tracker(name: str, address: str) -> None:
    """Refuse an address that a tracker would repeat in its messages, with the password, or take for a project's name."""
    if name == MLFLOW and looks_like_url(address):
        return check_address(address, name)
    login = re.match(r".*:.*@" if name != MLFLOW else r"(?!file:)[^/@:]*:(?!//).*@", address, re.DOTALL)
    if login:
        wanted = "http://host:port or the URI of a database" if name == MLFLOW else "the name of a project, not an address"
        raise SpecError(f"{name}={redact_address(address)}: give {wanted}")


def parse_trackers(texts: Sequence[str]) -> list[Target]:
    """Targets that a run can be logged to while it is running."""
    targets = [parse_target(text) for text in texts]
    for target in targets:
        if not target.is_tracker:
            raise SpecError(f"{target.name} is a file format, written by `mill export`; trackers are {', '.join(TRACKERS)}")
    return targets


EXPORTS = "exports"  # the default folder, in that of the runs
_WRITERS = {
    "hub": ("mill.export.hub", "write_hub"),
    "lm-eval": ("mill.export.lm_eval", "write_lm_eval"),
    "inspect": ("mill.export.inspect_log", "write_inspect"),
    "every-eval-ever": ("mill.export.every_eval_ever", "write_every_eval_ever"),
    "parquet": ("mill.export.parquet", "write_parquet"),
}


def write_target(runs: Sequence[ExportedRun], target: Target, folder: Path, *, samples: bool) -> list[Path]:
    """The files that were written. A marker says to `mill view` that these are runs of mill, not further ones."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, and a folder is needed")
    module, function = _WRITERS[target.name]
    try:
        written: list[Path] = getattr(importlib.import_module(module), function)(runs, folder, samples=samples)
    except MillError:
        raise
    except Exception as error:  # packages that write a format may refuse anything
        raise failure(target, error) from error
    write_atomically(folder / EXPORT_MARKER, "Written by `mill export`.\n", root=folder)
    return written
