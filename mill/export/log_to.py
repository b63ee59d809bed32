"""`--log_to`: at the end of a run it is exported to trackers, as by `mill export`.

Each export is a process: packages of trackers print, hang and exit as they like, and a run has to end all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import mill
from mill.api.errors import MillError, SpecError
from mill.store.folder import MANIFEST, RunFolder
from mill.support.processes import rank
from mill.support.secrets import redact_text
from mill.support.terminal import echo_data, logger, one_line, warn

if TYPE_CHECKING:
    from mill.export.target import Target

LONGEST_S = 60.0  # that an export may take before it is ended


def check_trackers(targets: Sequence[str]) -> None:
    """Refuse, before a run, names that are no trackers and trackers that are not installed."""
    if not targets:  # most runs: what follows imports all exporters
        return
    from mill.export.target import names_taking, parse_target

    for target in map(parse_target, targets):
        if not target.exporter.is_tracker:
            trackers = names_taking("project")
            raise SpecError(f"{target.name} is a file format, written by `mill export`; trackers are {trackers}")
        target.exporter.check_installed(f"--log_to {target.name}")


@contextlib.contextmanager
def logged_to(folder: RunFolder, targets: Sequence[str]) -> Iterator[None]:
    """Export the run that is executed inside when it ends, also with an error; only rank 0 does."""
    try:
        yield
    finally:
        if targets and rank() == 0 and (folder.path / MANIFEST).exists():
            from mill.export.target import parse_target

            for target in map(parse_target, targets):
                _export(folder, target)


def _export(folder: RunFolder, target: Target) -> None:
    paths = [str(Path(mill.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,  # an address may have a password, which other users could read on a command line
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interruption of the run is no interruption of its export
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    given = json.dumps([str(folder.path.absolute()), str(folder.root.absolute()), f"{target.name}:{target.address}"])
    try:
        out, err = process.communicate(given, timeout=LONGEST_S)
        last = one_line((out if process.returncode == 0 else err).strip().rpartition("\n")[2])
        if process.returncode == 0:
            logger.info("logged to %s: %s", target.name, last)
            return
    except subprocess.TimeoutExpired:
        last = f"it did not answer within {LONGEST_S:.0f} seconds"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its group: wandb starts a process
        process.wait()
    again = f"`mill export {shlex.quote(str(folder.path))} --to {target.name}` stores the run later"
    reason = last.removeprefix(f"{target.name}: ") or "its process ended"
    warn(redact_text(f"{target.name}: the run is not logged: {reason}; {again}"))


def main() -> None:
    from mill.export.run import ExportedRun
    from mill.export.target import parse_target
    from mill.export.tracker import track

    folder, root, target = json.load(sys.stdin)
    try:
        echo_data(f"{track(ExportedRun.read(RunFolder(Path(folder), Path(root))), parse_target(target))}\n")
    except MillError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
