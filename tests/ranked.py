"""`mill` as one of several ranks that are not alike, with little patience for silence.

RANK1_TOY_N=3 is TOY_N=3 on rank 1 alone, LATE seconds pass before a rank starts, and with APART every rank has an output
folder of its own, as on machines that share no file system.
"""

from __future__ import annotations

import os
import sys
import time

from mill.execute import ranks

ranks.BEAT_S, ranks.SILENCE_S = 0.3, 8.0
rank = os.environ["RANK"]
own = {name.removeprefix(f"RANK{rank}_"): value for name, value in os.environ.items() if name.startswith(f"RANK{rank}_")}
os.environ.update(own)
time.sleep(float(os.environ.get("LATE", 0)))
if "APART" in os.environ:
    sys.argv[sys.argv.index("--output_dir") + 1] += f"-{rank}"

from mill.cli.main import main  # noqa: E402

main()
