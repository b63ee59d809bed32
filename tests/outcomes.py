"""The files of runs, read as plain JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def recorded(out: Path) -> dict[str, dict[str, Any]]:
    """The complete lines of all record files: responses without their times, by key."""
    responses = {}
    for file in out.glob("*/*/record/*.jsonl"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            responses[entry["key"]] = {name: value for name, value in entry["response"].items() if name != "seconds"}
    return responses


def samples(out: Path) -> dict[str, list[dict[str, Any]]]:
    by_file = {}
    for file in out.glob("*/*/samples/*.jsonl"):
        rows = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
        for row in rows:
            row["seconds"] = 0
            row["model"] = row["model_id"] = ""  # runs of several toy models are compared
            row["responses"] = [[{**answer, "seconds": 0} for answer in repeat] for repeat in row["responses"]]
        by_file[file.name] = rows
    return by_file


def scores(out: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(only(out, "results.json").read_text())
    return results


def sessions(out: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(only(out, "manifest.json").read_text())["sessions"]
    return entries


def only(out: Path, name: str) -> Path:
    """The file of this name in the only run."""
    (file,) = out.glob(f"*/*/{name}")
    return file


def assert_same_end(out: Path, whole: Path) -> None:
    """Records, samples and scores are those of the uninterrupted run `whole`."""
    assert recorded(out) == recorded(whole)
    assert samples(out) == samples(whole)
    assert scores(out) == scores(whole)
