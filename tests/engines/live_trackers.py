"""For --task_paths: the processes of trackers are forked from one that has imported them, and measured often."""

import os
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from mill.export import live
from tests import forking

forking.folder = Path(os.environ["FORKED_IN"])
popen = partial(forking.popen, server="trackers")
live.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})  # type: ignore[assignment, attr-defined]
live.INTERVAL_S, live.START_S = 0.1, 120.0
