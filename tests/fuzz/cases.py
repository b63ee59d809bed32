"""How many cases the fuzzers make, and which.

`make test` makes a tenth of them, always the same: they fail only where code changed. `make fuzz` makes all, and other ones
every day: MILL_FUZZ is their seed. A case that fails becomes a test with a name.
"""

from __future__ import annotations

import os
import random

from hypothesis import settings

SEED = os.environ.get("MILL_FUZZ", "")
# No test of hypothesis depends on the speed of the machine or, in `make test`, on luck.
settings.register_profile("mill", deadline=None, derandomize=not SEED)
settings.load_profile("mill")


def count(cases: int) -> int:
    return cases if SEED else max(1, cases // 10)


def dice(name: str) -> random.Random:
    return random.Random(SEED + name)


def examples(cases: int, **more: object) -> settings:
    return settings(max_examples=count(cases), **more)  # type: ignore[arg-type]
