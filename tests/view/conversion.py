"""Converts a log of another tool and reads the run back with mill's own readers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mill.store.folder import RunFolder
from mill.store.samples import RunSample, read_samples
from mill.store.schema import Results
from mill.view.scan import scan


@dataclass(frozen=True)
class Converted:
    folder: RunFolder
    manifest: dict[str, Any]
    results: Results

    def rows(self, task: str) -> dict[str, dict[str, Any]]:
        lines = self.folder.samples_file(task).read_text(encoding="utf-8").splitlines()
        return {row["id"]: row for row in map(json.loads, lines)}

    def samples(self, task: str) -> dict[str, RunSample]:
        return {record.sample.id: record for record in read_samples(self.folder.samples_file(task))}


def converted(file: Path, target: Path) -> Converted:
    (log,) = scan(file).logs
    log.convert(target)
    return read_converted(target)


def read_converted(target: Path) -> Converted:
    folder = RunFolder(target)
    return Converted(folder, folder.manifest(), folder.results())
