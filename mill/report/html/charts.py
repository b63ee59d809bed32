"""Charts as SVG. Colours are classes, so that the page's style gives them a light and a dark look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mill.report.html.tag import Html, tag

WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 14, 40
COLOURS = 6  # series beyond that repeat colours
BAR, GAP, NAME_WIDTH = 12, 10, 150
CELL = 9


@dataclass(frozen=True)
class Point:
    """`low` and `high` are the interval around y; `told` is what a pointer over it reads."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    told: str = ""

    @property
    def top(self) -> float:
        return self.y if self.high is None else self.high


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[Point]


@dataclass
class Axis:
    """From values to pixels; `log` counts in powers of ten, `names` label whole numbers from 0 on."""

    label: str
    first: float
    last: float
    names: Sequence[str] = ()
    log: bool = False
    percent: bool = False
    span: tuple[float, float] = (0.0, 1.0)
    ticks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.last <= self.first:
            self.last = self.first + 1
        self.ticks = list(map(float, range(len(self.names)))) if self.names else nice_ticks(self.first, self.last)

    def at(self, value: float) -> float:
        share = (min(max(value, self.first), self.last) - self.first) / (self.last - self.first)
        return self.span[0] + share * (self.span[1] - self.span[0])

    def text(self, tick: float) -> str:
        if self.names:
            return _short(self.names[round(tick)], 12)
        if self.log:
            return f"1e{tick:g}" if tick == round(tick) else ""
        return f"{100 * tick:g} %" if self.percent else f"{tick:g}"


def nice_ticks(first: float, last: float, most: int = 6) -> list[float]:
    """Round numbers inside a range."""
    rough = (last - first) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next((power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough), power * 10)
    start = math.ceil(first / step - 1e-9) * step
    return [round(start + step * place, 12) for place in range(int((last - start) / step + 1e-9) + 1)]


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> Html:
    """Lines with dots and whiskers; several are named in a legend above."""
    x.span, y.span = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)
    parts = _grid(x, y)
    for number, one in enumerate(series):
        colour = _colour(number)
        points = [point for point in one.points if math.isfinite(point.x) and math.isfinite(point.y)]
        if len(points) > 1:
            path = " ".join(f"{x.at(point.x):.1f},{y.at(point.y):.1f}" for point in points)
            parts.append(tag("polyline", class_=f"line {colour}", points=path))
        for point in points:
            px = x.at(point.x)
            if point.low is not None and point.high is not None:
                parts.append(_whisker(colour, (px, y.at(point.low)), (px, y.at(point.high))))
            told = [tag("title", point.told)] if point.told else []
            parts.append(tag("circle", told, class_=f"dot {colour}", cx=px, cy=y.at(point.y), r=4))
    return _figure(title, parts, [one.name for one in series] if len(series) > 1 else [])


def bar_chart(title: str, names: Sequence[str], series: Sequence[tuple[str, Sequence[Point | None]]]) -> Html:
    """Horizontal bars from 0 to 100 %, a group for each name and a bar for each series; whiskers are intervals."""
    row = BAR * len(series) + GAP
    height = TOP + row * len(names) + BOTTOM - 8
    x = Axis("", 0, 1, percent=True, span=(NAME_WIDTH, WIDTH - RIGHT))
    parts = []
    for tick in x.ticks:
        parts.append(tag("line", class_="grid", x1=x.at(tick), x2=x.at(tick), y1=TOP, y2=height - BOTTOM + 14))
        parts.append(_text("tick", x.at(tick), height - 12, x.text(tick), "middle"))
    for place, name in enumerate(names):
        top = TOP + place * row
        parts.append(_text("name", NAME_WIDTH - 8, top + BAR * len(series) / 2 + 4, _short(name, 22), "end"))
        for number, (label, points) in enumerate(series):
            point = points[place]
            if point is not None:
                told = f"{name}, {label}: {point.told}"
                parts += _bar(x, top + number * BAR, point, _colour(number), told)
    return _figure(title, parts, [label for label, _ in series] if len(series) > 1 else [], height)


def _bar(x: Axis, y: float, point: Point, colour: str, told: str) -> list[Html]:
    width = max(1.0, x.at(point.y) - NAME_WIDTH)
    size = {"x": NAME_WIDTH, "y": y + 1, "width": width, "height": BAR - 3}
    parts = [tag("rect", tag("title", told), class_=f"bar {colour}", rx=2, **size)]
    if point.low is not None and point.high is not None:
        middle = y + BAR / 2 - 0.5
        parts.append(_whisker("ink", (x.at(point.low), middle), (x.at(point.high), middle)))
    return parts


def heat_map(title: str, columns: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> Html:
    """A strip of squares for each column; a square is (class, what a pointer reads)."""
    width, y = WIDTH * 2, float(TOP)
    in_line = max(1, (width - NAME_WIDTH - RIGHT) // CELL)
    parts = []
    for label, cells in columns:
        parts.append(_text("name", NAME_WIDTH - 8, y + CELL, _short(label, 22), "end"))
        for place, (kind, told) in enumerate(cells):
            at = {"x": NAME_WIDTH + place % in_line * CELL, "y": y + place // in_line * CELL}
            parts.append(tag("rect", tag("title", told), class_=f"cell {kind}", width=CELL - 1, height=CELL - 1, **at))
        y += math.ceil(len(cells) / in_line) * CELL + GAP
    return _figure(title, parts, [], y + 4, width)


def _grid(x: Axis, y: Axis) -> list[Html]:
    parts = []
    for tick in y.ticks:
        parts.append(tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y.at(tick), y2=y.at(tick)))
        parts.append(_text("tick", LEFT - 6, y.at(tick) + 4, y.text(tick), "end"))
    parts += [_text("tick", x.at(tick), HEIGHT - BOTTOM + 16, x.text(tick), "middle") for tick in x.ticks]
    return [*parts, _text("label", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x.label, "middle")]


def _whisker(colour: str, start: tuple[float, float], end: tuple[float, float]) -> Html:
    return tag("line", class_=f"whisker {colour}", x1=start[0], y1=start[1], x2=end[0], y2=end[1])


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> Html:
    return tag("text", text, class_=kind, x=x, y=y, text_anchor=anchor)


def _figure(title: str, parts: Sequence[Html], legend: Sequence[str], height: float = HEIGHT, width: float = WIDTH) -> Html:
    keys = [
        tag("span", tag("i", class_=f"swatch {_colour(place)}"), name, class_="key") for place, name in enumerate(legend)
    ]
    above = [tag("div", keys, class_="legend")] if keys else []
    drawing = tag("svg", parts, viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", aria_label=title)
    kind = "chart wide" if width > WIDTH else "chart"
    return tag("figure", tag("figcaption", title), above, drawing, class_=kind)


def _colour(number: int) -> str:
    return f"c{number % COLOURS}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
