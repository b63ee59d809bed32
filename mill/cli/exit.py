"""The end of a process that has imported torch: modules are not torn down, which takes a second and changes nothing."""

from __future__ import annotations

import atexit
import os
import sys
import threading


def end_process(code: int) -> None:
    """Do what the interpreter does at its end, up to the point where it frees memory. What fails here, such as output that
    cannot be flushed, is left to the interpreter."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except (Exception, KeyboardInterrupt):
        return
    os._exit(code)
