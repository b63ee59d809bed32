"""Validation from several threads: the first uses of a type must not meet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# 40 types that nothing has used before, each converted by four threads at once that switch as often as Python can.
PROGRAM = """
import sys, threading
from dataclasses import dataclass, field, make_dataclass
from mill.support.validate import convert

sys.setswitchinterval(1e-6)
for number in range(40):
    inner = make_dataclass(f"Inner{number}", [(f"x{at}", float, field(default=0.0)) for at in range(30)])
    outer = make_dataclass(f"Outer{number}", [(f"y{at}", list[inner], field(default_factory=list)) for at in range(30)])
    together, found = threading.Barrier(4), []

    def use():
        together.wait()
        found.append(convert({"y3": [{"x7": 2.5}]}, outer, "the data").y3[0].x7)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2.5] * 4, found
"""


def test_threads_use_a_type_for_the_first_time_at_once() -> None:
    """Without the lock of `convert` the process ends by SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
