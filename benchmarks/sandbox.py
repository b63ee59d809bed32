"""How many small programs a second run: in bare Python, and in a sandbox for each.

    python benchmarks/sandbox.py [--programs 200] [--sandbox bubblewrap]

Bare Python starts an interpreter for each program, as many at a time as there are cores. Prints the load of the machine
before each measurement: what else runs here slows all of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from mill.api.consent import Consent, consenting
from mill.sandbox.programs import chosen_sandbox, run_programs

PROGRAM = "def add(a, b):\n    return a + b\n\n\nassert add(2, 3) == 5\n"
NUMPY = "import numpy as np\nassert np.allclose([1.0], [1.0])\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--sandbox", default="bubblewrap")
    options = parser.parse_args()
    with consenting(Consent(sandbox=options.sandbox)):
        measure(options.programs)


def measure(count: int) -> None:
    if chosen_sandbox().problem:
        raise SystemExit(chosen_sandbox().problem)

    def pool(program: str, preload: tuple[str, ...] = ()) -> Callable[[], int]:
        return lambda: sum(one.passed for one in run_programs([program] * count, timeout=30, preload=preload))

    measured = {
        "bare Python": lambda: side_by_side(bare, count),
        "in the sandbox": pool(PROGRAM),
        "the same, with numpy": pool(NUMPY, ("numpy",)),
    }
    print(f"{count} programs, {os.cpu_count()} cores, {chosen_sandbox().label}")
    for name, run in measured.items():
        load, started = os.getloadavg()[0], time.perf_counter()
        passed = run()
        rate = count / (time.perf_counter() - started)
        print(f"{name:20} {rate:7.1f} programs a second, {passed} passed (load before: {load:.1f})", flush=True)


def side_by_side(run: Callable[[], bool], count: int) -> int:
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return sum(one.result() for one in [threads.submit(run) for _ in range(count)])


def bare() -> bool:
    return subprocess.run([sys.executable, "-I", "-c", PROGRAM], check=False).returncode == 0


if __name__ == "__main__":
    main()
