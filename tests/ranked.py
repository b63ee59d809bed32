"""Runs `mill` as one of several ranks with different environments and short heartbeat timeouts.

RANK1_TOY_N=3 sets TOY_N=3 on rank 1 alone. A rank starts after LATE seconds. With APART every rank has a separate output
folder, as on machines without a shared file system.
"""

from __future__ import annotations

import os
import sys
import time

from mill.runs import ranks

ranks.BEAT_S, ranks.SILENCE_S = 0.3, 8.0
rank = os.environ["RANK"]
prefix = f"RANK{rank}_"
os.environ.update({name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)})
time.sleep(float(os.environ.get("LATE", 0)))
if "APART" in os.environ:
    sys.argv[sys.argv.index("--output_dir") + 1] += f"-{rank}"

from mill.cli.main import main  # noqa: E402

main()
