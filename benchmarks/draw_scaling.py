"""Draws the results of `benchmarks/scaling.py` as SVG: what grows with questions, and what grows with examples.

    python benchmarks/draw_scaling.py out.json [--folder docs]

Writes scaling-questions.svg and scaling-shots.svg. They have their own background, and follow the viewer's light or dark
colour scheme. The labels at points are peak memory: that of the process, and with a `+` that of the GPU.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from mill.report.html.charts import HEIGHT, LEFT, WIDTH, Axis, Point, Series, line_parts
from mill.report.html.tag import Html, tag

HEAD = 84  # pixels above the panels: title, caption, names of axes and legend
LINE, KEY, CHAR = 16, 10, 6.6

Run = dict[str, Any]


def colours() -> tuple[dict[str, str], dict[str, str]]:
    """The light and the dark palette of mill's reports."""
    sheet = files("mill.report.html").joinpath("style.css").read_text(encoding="utf-8")
    found = re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", sheet)
    return {name: light for name, light, _ in found}, {name: dark for name, _, dark in found}


def rules(palette: dict[str, str]) -> str:
    """Without CSS variables, which few programs other than browsers know."""
    series = "".join(
        f".line.c{n}{{stroke:{palette[f'c{n}']}}}.dot.c{n},.key.c{n}{{fill:{palette[f'c{n}']}}}" for n in range(3)
    )
    return (
        f".card{{fill:{palette['card']};stroke:{palette['rule']}}}.grid{{stroke:{palette['rule']}}}.zero{{stroke:{palette['faint']}}}"
        f".title,.head{{fill:{palette['ink']}}}.tick,.label,.name,.legend,.caption{{fill:{palette['soft']}}}"
        f".dot,.name{{stroke:{palette['card']}}}{series}"
    )


def style() -> Html:
    light, dark = colours()
    fonts = (
        "text{font:11px sans-serif}.title{font-size:15px;font-weight:600}.head{font-size:12px;font-weight:600}"
        ".line{fill:none;stroke-width:2}.dot{stroke-width:1.5}.name{stroke-width:3;paint-order:stroke}"
    )
    return tag("style", f"{fonts}{rules(light)}@media (prefers-color-scheme: dark){{{rules(dark)}}}")


def panel(offset: float, head: str, x: Axis, y: Axis, series: Sequence[Series]) -> Html:
    """One chart, below the name of its vertical axis and a legend."""
    above: list[Html] = [tag("text", head, class_="head", x=LEFT, y=-LINE - 6)]
    at = float(LEFT)
    for line in series:
        above.append(tag("rect", class_=f"key c{line.colour}", x=at, y=-KEY, width=KEY, height=KEY, rx=2))
        above.append(tag("text", line.name, class_="legend", x=at + KEY + 5, y=-1))
        at += KEY + 20 + CHAR * len(line.name)
    return tag("g", above, line_parts(x, y, series), transform=f"translate({offset:.0f} {HEAD})")


def drawing(title: str, caption: str, panels: Sequence[Html]) -> str:
    width, height = len(panels) * WIDTH, HEAD + HEIGHT + 8
    parts = [
        style(),
        tag("rect", class_="card", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8),
        tag("text", title, class_="title", x=16, y=24),
        tag("text", caption, class_="caption", x=16, y=41),
        *panels,
    ]
    named = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria_label": title}
    return f"{tag('svg', parts, viewBox=f'0 0 {width} {height}', width=width, height=height, **named)}\n"


def memory(run: Run) -> str:
    """Process, or process + GPU."""
    if run.get("gpu_peak_bytes"):
        return f"{run['peak_bytes'] / 2**30:.1f} + {run['gpu_peak_bytes'] / 2**30:.0f} GiB"
    return f"{run['peak_bytes'] / 2**30:.2f} GiB"


def line(runs: Sequence[Run], along: str, field: str, name: str, colour: int, unit: float = 1.0, label: str = "") -> Series:
    """A field of each run; `label` is what is written at points: memory, value, or nothing. Values at 0 are left out, where
    lines meet."""
    points = []
    for run in runs:
        value = run[field] / unit
        text = {"memory": memory(run), "value": f"{value:.3g}" if run[along] else ""}.get(label, "")
        points.append(Point(run[along], value, tooltip=f"{run[along]:,} {along}: {value:,.4g}, {memory(run)}", name=text))
    return Series(name, points, colour)


def axes(label: str, series: Sequence[Series]) -> tuple[Axis, Axis]:
    """Both from 0, with room above for labels."""
    points = [point for one in series for point in one.points]
    return Axis(label, 0, 1.05 * max(point.x for point in points)), Axis("", 0, 1.18 * max(point.y for point in points))


def draw(found: dict[str, Any], along: str, title: str, x_label: str) -> str:
    """Seconds and tokens of the runs along one of their two numbers, the other one fixed."""
    fixed, value = ("shots", found["at_shots"]) if along == "questions" else ("questions", found["at_questions"])
    runs = sorted((run for run in found["runs"] if run[fixed] == value), key=lambda run: run[along])
    seconds = [
        line(runs, along, "forward", "forward passes", 1),
        line(runs, along, "seconds", "whole command", 0, label="memory"),  # last: its labels are above all lines
    ]
    tokens = [line(runs, along, "computed_tokens", "computed", 0, 1e6, "value")]
    if along == "shots":
        tokens.append(line(runs, along, "requested_tokens", "in all requests: computed without sharing", 2, 1e6, "value"))
    device = (runs[0].get("device") or {}).get("name", "")
    machine = found["machine"] if device in found["machine"] else f"{device}, {found['machine']}"
    constant = f"{value:,} {'few-shot examples' if fixed == 'shots' else 'questions'}"
    caption = f"MMLU, {constant} each time. {found['model']} in {found['dtype']}; {machine}"
    panels = [
        panel(0, "Seconds; at points: peak memory", *axes(x_label, seconds), seconds),
        panel(WIDTH, "Millions of tokens", *axes(x_label, tokens), tokens),
    ]
    return drawing(title, caption, panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("docs"))
    options = parser.parse_args()
    found = json.loads(options.results.read_text(encoding="utf-8"))
    drawn = {
        "scaling-questions": draw(found, "questions", "Cost and the number of questions", "questions"),
        "scaling-shots": draw(
            found, "shots", "Cost and the number of few-shot examples", "few-shot examples before each question"
        ),
    }
    for name, content in drawn.items():
        (options.folder / f"{name}.svg").write_text(content, encoding="utf-8")
        print(f"written: {options.folder / name}.svg")


if __name__ == "__main__":
    main()
