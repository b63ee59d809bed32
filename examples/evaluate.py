"""Evaluate a model from Python: scores and samples come back as pandas data frames.

    python evaluate.py [MODEL [TASK]]

Without arguments it evaluates the small image-text model that is part of mill; install the extras `clip` and `frames`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mill

SHAPES = Path(mill.__file__).parent / "models/configs/clip/shapes.py"


def main(model: str = str(SHAPES), task: str = "shapes") -> None:
    evaluation = mill.evaluate(model, task, limit=32, output_dir="results")
    print(evaluation.scores[["task", "metric", "value", "low", "high", "n"]].to_string(index=False))
    wrong = evaluation.samples[evaluation.samples["acc"] == 0]
    print(f"{len(wrong)} of {len(evaluation.samples)} samples are wrong")


if __name__ == "__main__":
    main(*sys.argv[1:])
