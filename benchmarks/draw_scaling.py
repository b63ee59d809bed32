"""Draws the results of `benchmarks/scaling.py` as SVG: what grows with questions, and what grows with examples.

    python benchmarks/draw_scaling.py out.json [--folder docs]

Writes scaling-questions.svg and scaling-shots.svg. The labels at points are peak memory: that of the process, and with a `+`
that of the GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mill.report.plots import COLOURS, figure_bytes, plot_style

Run = dict[str, Any]


def memory(run: Run) -> str:
    """Process, or process + GPU."""
    if run.get("gpu_peak_bytes"):
        return f"{run['peak_bytes'] / 2**30:.1f} + {run['gpu_peak_bytes'] / 2**30:.0f} GiB"
    return f"{run['peak_bytes'] / 2**30:.2f} GiB"


def line(axis: Any, runs: Sequence[Run], along: str, name: str, field: str, colour: int, label: str = "") -> None:
    """A field of each run; `label` is what is written at points: memory, value, or nothing."""
    values = [run[field] / (1e6 if field.endswith("tokens") else 1) for run in runs]
    axis.plot([run[along] for run in runs], values, marker="o", markersize=4, color=COLOURS[colour], label=name)
    for run, value in zip(runs, values, strict=True):
        text = {"memory": memory(run), "value": f"{value:.3g}"}.get(label, "")
        axis.annotate(text, (run[along], value), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=7)


def draw(found: dict[str, Any], along: str, title: str, x_label: str) -> bytes:
    """Seconds and tokens of the runs along one of their two numbers, the other one fixed."""
    fixed, value = ("shots", found["at_shots"]) if along == "questions" else ("questions", found["at_questions"])
    runs = sorted((run for run in found["runs"] if run[fixed] == value), key=lambda run: run[along])
    device = (runs[0].get("device") or {}).get("name", "")
    machine = found["machine"] if device in found["machine"] else f"{device}, {found['machine']}"
    constant = f"{value:,} {'few-shot examples' if fixed == 'shots' else 'questions'}"
    caption = f"MMLU, {constant} each time. {found['model']} in {found['dtype']}; {machine}"
    with plot_style() as pyplot:
        fig, (seconds, tokens) = pyplot.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained")
        line(seconds, runs, along, "forward passes", "forward", 1)
        line(seconds, runs, along, "whole command", "seconds", 0, "memory")
        line(tokens, runs, along, "computed", "computed_tokens", 0, "value")
        if along == "shots":
            line(tokens, runs, along, "in all requests: computed without sharing", "requested_tokens", 2, "value")
        for axis, name in ((seconds, "Seconds; at points: peak memory"), (tokens, "Millions of tokens")):
            axis.set_title(name, loc="left")
            axis.set_xlabel(x_label)
            axis.set_ylim(0, 1.18 * axis.get_ylim()[1])
            axis.set_xlim(left=0)
            axis.legend(frameon=False)
        fig.suptitle(f"{title}\n{caption}", fontsize=9, ha="left", x=0.02)
        return figure_bytes(fig, ["svg"])["svg"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("docs"))
    options = parser.parse_args()
    found = json.loads(options.results.read_text(encoding="utf-8"))
    shots = draw(found, "shots", "Cost and the number of few-shot examples", "few-shot examples before each question")
    drawn = {"questions": draw(found, "questions", "Cost and the number of questions", "questions"), "shots": shots}
    for name, content in drawn.items():
        (options.folder / f"scaling-{name}.svg").write_bytes(content)
        print(f"written: {options.folder / f'scaling-{name}.svg'}")


if __name__ == "__main__":
    main()
