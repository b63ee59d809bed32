"""Logs a run to trackers while it runs. Each tracker is used in a process of its own: one that fails, hangs or is slow to
import neither fails nor slows the run, and is reported once."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import mill
from mill.api.errors import MissingPackage
from mill.api.printing import one_line
from mill.api.ranks import rank
from mill.api.secrets import redact_text
from mill.api.storage import json_text
from mill.api.warnings import logger, warn
from mill.execute.executor import Executor, Tally
from mill.export.target import Target, parse_trackers
from mill.runs.evaluate import OnStart
from mill.runs.folder import RunFolder

INTERVAL_S = 5.0  # between two measurements
START_S, FINISH_S = 30.0, 60.0  # that a tracker may take before its process is ended
_WORKER = "mill.export.live_worker"


@contextlib.contextmanager
def logged_to(folder: RunFolder, targets: Sequence[str]) -> Iterator[OnStart | None]:
    """Log the run that is executed inside, which calls what it gets when it starts; only rank 0 does."""
    if not targets or rank() != 0:
        yield None
        return
    live = LiveLog(parse_trackers(targets), folder)
    try:
        yield live.start
    finally:
        live.finish()


def check_trackers(targets: Sequence[str]) -> None:
    """Refuse, before a run, names that are no trackers and trackers that are not installed."""
    for target in parse_trackers(targets):
        if importlib.util.find_spec(target.name) is None:
            raise MissingPackage(f"--log_to {target.name}", target.name, target.name)


class LiveLog:
    """The processes of all trackers of a run, and a thread that sends them measurements."""

    def __init__(self, targets: Sequence[Target], folder: RunFolder) -> None:
        self._targets, self._folder = targets, folder
        self._processes: list[TrackerProcess] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, executor: Executor) -> None:
        """Called once the run has a manifest, before its first request."""
        for target in self._targets:
            try:
                self._processes.append(TrackerProcess(target, self._folder))
            except OSError as error:
                warn(f"{target.name}: the run is not logged: {error}")
        self._thread = threading.Thread(target=self._measure, args=(executor,), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Have the trackers store scores and files, for a limited time."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        for process in self._processes:
            process.send({"finish": True})
        for process in self._processes:
            process.end()

    def _measure(self, executor: Executor) -> None:
        """Runs in the thread, once more at the end. A tally is read as it is: one that is a response old does no harm."""
        ended, last = False, -1
        while not ended:
            ended = self._ended.wait(INTERVAL_S)
            tally = executor.tally
            if (step := tally.known + tally.computed) != last:
                last = step
                for process in self._processes:
                    process.send({"metrics": measurements(tally), "step": step})
            for process in self._processes:
                process.report_failure()


def measurements(tally: Tally) -> dict[str, float]:
    """Counts of a run in progress, under names that no score has."""
    shown = {name: float(value) for name, value in asdict(tally).items() if name not in ("padded", "requested")}
    return {f"progress/{name}": value for name, value in shown.items()}


class TrackerProcess:
    """One tracker in a process of its own. It is never waited for while the run is running."""

    def __init__(self, target: Target, folder: RunFolder) -> None:
        self._target, self._folder = target, folder
        self._reported = False
        above = str(Path(mill.__file__).parents[1])
        paths = [above, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # an interruption of the run is no interruption of its log
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._started = time.monotonic()
        self._output = _Lines(self._pipe(self._process.stdout))
        os.set_blocking(self._pipe(self._process.stdin).fileno(), False)
        where = {"folder": str(folder.path.absolute()), "root": str(folder.root.absolute())}
        self.send({"target": target.name, "address": target.address, **where})

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event as one line. It is dropped where the process does not read, or has ended."""
        with contextlib.suppress(OSError):
            self._pipe(self._process.stdin).write(json_text(event).encode() + b"\n")

    def report_failure(self) -> None:
        """Warn once where the process has ended before the run."""
        if self._process.poll() is not None:
            self._report(self._output.last().get("error") or "its process ended")

    def end(self) -> None:
        """Wait until the run is stored, for a limited time, and end the process."""
        limit = FINISH_S if self._output.last() else max(1.0, START_S - (time.monotonic() - self._started))
        try:
            with contextlib.suppress(OSError):
                self._pipe(self._process.stdin).close()
            self._process.wait(limit)
            last = self._output.last(wait=True)
            if "where" in last:
                logger.info("logged to %s: %s", self._target.name, one_line(str(last["where"])))
            else:
                self._report(last.get("error") or "its process ended")
        except subprocess.TimeoutExpired:
            self._report(f"it did not answer within {limit:.0f} seconds")
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)  # its group: wandb starts a process of its own
                self._process.wait()

    def _report(self, reason: Any) -> None:
        if not self._reported:
            self._reported = True
            text = one_line(str(reason)).removeprefix(f"{self._target.name}: ")
            again = f"`mill export {shlex.quote(str(self._folder.path))} --to {self._target.name}` stores the run later"
            warn(redact_text(f"{self._target.name}: the run is not logged: {text}; {again}"))

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


class _Lines:
    """The last line that a process wrote, read by a thread."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._last: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def last(self, *, wait: bool = False) -> dict[str, Any]:
        """Empty as long as there is none. `wait` is for a process that has ended."""
        if wait:
            self._thread.join(1.0)
        return self._last

    def _read(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in pipe:
                found = json.loads(line)
                self._last = found if isinstance(found, dict) else {}
