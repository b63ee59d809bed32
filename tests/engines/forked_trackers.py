"""For --task_paths: the processes of trackers are forked from one that has imported them."""

import os
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from mill.export import tracker
from tests import forking

forking.folder = Path(os.environ["FORKED_IN"])
popen = partial(forking.popen, server="trackers")
tracker.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})  # type: ignore[assignment, attr-defined]
tracker.LONGEST_S = 120.0
