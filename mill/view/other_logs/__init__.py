from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OtherLog:
    tool: str
    path: Path
    files: tuple[Path, ...]


def identify_log(file: Path) -> OtherLog | None:
    return None


def convert_log(log: OtherLog, target: Path) -> None:
    pass
