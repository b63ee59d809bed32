"""For --task_paths: the processes of trackers are forked from one that has imported them."""

import os
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from mill.export import log_to
from tests import forking

forking.folder = Path(os.environ["FORKED_IN"])
popen = partial(forking.popen, server="trackers")
log_to.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": popen})  # type: ignore[assignment, attr-defined]
log_to.LONGEST_S = 120.0
