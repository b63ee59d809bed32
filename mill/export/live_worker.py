"""The process that logs one run to one tracker: events are lines of standard input, its answers lines of standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mill.api.errors import MillError
from mill.api.storage import json_text
from mill.export.run import ExportedRun
from mill.export.target import Target, failure
from mill.export.track import open_tracker, write_files
from mill.export.tracker import RUNNING, TrackedRun, tracked
from mill.runs.folder import RunFolder


def main() -> int:
    answers = os.dup(1)
    os.dup2(2, 1)  # packages of trackers print to standard output

    def answer(content: dict[str, str]) -> None:
        os.write(answers, json_text(content).encode("utf-8", "backslashreplace") + b"\n")

    events = (json.loads(line) for line in sys.stdin)
    first = next(events, None)
    if first is None:
        return 1
    target = Target(first["target"], first["address"])
    try:
        answer({"where": log_run(target, RunFolder(Path(first["folder"]), Path(first["root"])), events, answer)})
    except MillError as error:
        answer({"error": str(error)})
        return 1
    except Exception as error:  # packages of trackers raise anything
        answer({"error": str(failure(target, error))})
        return 1
    return 0


def log_run(target: Target, folder: RunFolder, events: Iterable[dict[str, Any]], answer: Any) -> str:
    """Log a run from its start to its end. The end of the events is the end of the run, however it came."""
    tracker = open_tracker(target)
    tracker.start(_running(ExportedRun.read(folder)))
    answer({"state": "started"})
    for event in events:
        if event.get("finish"):
            break
        tracker.log(event["metrics"], event["step"])
    run = ExportedRun.read(folder)
    with TemporaryDirectory() as files:
        write_files(run, Path(files), samples=True, report=True)
        return tracker.finish(tracked(run), Path(files))


def _running(run: ExportedRun) -> TrackedRun:
    entry = tracked(run)
    return replace(entry, status=RUNNING, tags={**entry.tags, "mill.status": RUNNING})


if __name__ == "__main__":
    sys.exit(main())
