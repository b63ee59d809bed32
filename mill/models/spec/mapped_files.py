"""Files that a loaded model reads where they are: writing to one of them changes the model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


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
