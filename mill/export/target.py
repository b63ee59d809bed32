"""Where results are exported to: the names that `--to` and `--log_to` take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mill.api.batching import describe
from mill.api.errors import MillError, SpecError, UnknownName
from mill.api.secrets import redact_text, reveal

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
    name, _, address = reveal(text.strip()).partition(":")
    if name not in (*TRACKERS, *FILES):
        raise UnknownName("target", name, (*TRACKERS, *FILES), hint=f"targets are {', '.join((*TRACKERS, *FILES))}")
    if address and name not in TRACKERS:
        raise SpecError(f"{text}: {name} is a file format; --out names its folder")
    return Target(name, address)


def parse_trackers(texts: Sequence[str]) -> list[Target]:
    """Targets that a run can be logged to while it is running."""
    targets = [parse_target(text) for text in texts]
    for target in targets:
        if not target.is_tracker:
            raise SpecError(f"{target.name} is a file format, written by `mill export`; trackers are {', '.join(TRACKERS)}")
    return targets
