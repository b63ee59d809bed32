"""Charts as SVG. Colours are CSS classes, so that the style sheet defines a light and a dark theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mill.report.html.tag import Html, tag
from mill.report.tables import LARGEST_DRAWN

WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 54, 18, 18, 40
COLOURS = 6  # further series repeat colours
ROW, GAP, LARGEST_CELL = 26, 10, 16
CHAR, LINE, ASCENT = 7.4, 14, 10  # pixels of a name, at the font size on phones; those above its baseline
DOT = 4  # its radius
COUNTS = 56  # pixels of the counts below a reliability diagram


@dataclass(frozen=True)
class Point:
    """A point with the interval `low` to `high` of y, a tooltip, and a name drawn beside it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    tooltip: str = ""
    name: str = ""

    @property
    def bottom(self) -> float:
        return self.y if self.low is None else self.low

    @property
    def top(self) -> float:
        return self.y if self.high is None else self.high


@dataclass(frozen=True)
class Series:
    """A line of points; `colour` is a number, so that a variant has the same colour in all charts."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    band: bool = False
    """Whether the intervals are an area around the line, not a bar at each point."""
    dashed: bool = False
    """A line without dots."""


@dataclass
class Axis:
    """Maps values to pixels. With `log` values are powers of ten; `names` label the integers from 0."""

    label: str
    first: float
    last: float
    names: Sequence[str] = ()
    log: bool = False
    percent: bool = False
    span: tuple[float, float] = (0.0, 1.0)
    ticks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first, self.last = (min(max(end, -LARGEST_DRAWN), LARGEST_DRAWN) for end in (self.first, self.last))
        if self.last <= self.first:
            self.last = self.first + max(1.0, abs(self.first))
        if self.names:
            self.ticks = list(map(float, range(len(self.names))))
        elif self.log:
            powers = range(math.ceil(self.first - 1e-9), math.floor(self.last + 1e-9) + 1)
            self.ticks = list(map(float, powers[:: max(1, len(powers) // 6)]))
        else:
            self.ticks = nice_ticks(self.first, self.last)

    def at(self, value: float) -> float:
        share = (min(max(value, self.first), self.last) - self.first) / (self.last - self.first)
        return self.span[0] + share * (self.span[1] - self.span[0])

    def text(self, tick: float) -> str:
        if self.names:
            return short(self.names[round(tick)], 12)
        if self.log:
            return f"1e{tick:g}"
        return f"{100 * tick:g} %" if self.percent else f"{tick:g}"


def nice_ticks(first: float, last: float, most: int = 6) -> list[float]:
    """Round numbers within a range."""
    rough = (last - first) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next((power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough), power * 10)
    start = math.ceil(first / step - 1e-9) * step
    return [round(start + step * index, 12) for index in range(int((last - start) / step + 1e-9) + 1)]


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> Html:
    """Lines with dots, and error bars or a band; several series have a legend."""
    parts = line_parts(x, y, series)
    return _drawing(title, parts, [(line.name, line.colour) for line in series] if len(series) > 1 else [])


def line_parts(x: Axis, y: Axis, series: Sequence[Series]) -> list[Html]:
    """The elements of a line chart, WIDTH by HEIGHT."""
    x.span, y.span = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)
    parts = _grid(x, y)
    for line in series:
        colour = _colour(line.colour)
        points = [point for point in line.points if math.isfinite(point.x) and math.isfinite(point.y)]
        if len(points) > 1:
            if line.band:
                ends = [(point.x, point.top) for point in points] + [(point.x, point.bottom) for point in reversed(points)]
                parts.append(tag("polygon", class_=f"band {colour}", points=_path(x, y, ends)))
            path = _path(x, y, [(point.x, point.y) for point in points])
            parts.append(tag("polyline", class_=f"line {'dashed ' if line.dashed else ''}{colour}", points=path))
        for point in () if line.dashed else points:
            px, py = x.at(point.x), y.at(point.y)
            if point.low is not None and point.high is not None and not (line.band and len(points) > 1):
                parts.append(_error_bar(colour, (px, y.at(point.low)), (px, y.at(point.high))))
            parts.append(_dot(colour, px, py, point.tooltip))
        parts += _names(x, y, [point for point in points if point.name])
    return parts


def _path(x: Axis, y: Axis, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x.at(px):.1f},{y.at(py):.1f}" for px, py in points)


def _names(x: Axis, y: Axis, points: Sequence[Point]) -> list[Html]:
    """Names above their points, or below, higher or beside where another name, dot or interval is in the way; else left
    out."""
    parts: list[Html] = []
    taken: list[tuple[float, float, float]] = []
    for point in points:
        name = short(point.name, 16)
        half = CHAR * len(name) / 2
        px = min(max(x.at(point.x), LEFT + half), WIDTH - half)
        over, under = min(y.at(point.y), y.at(point.top)) - 7, max(y.at(point.y), y.at(point.bottom)) + LINE + 2
        heights = [over, *([under] if under < HEIGHT - BOTTOM - 3 else []), over - LINE, over - 2 * LINE]
        beside = [(x.at(point.x) + side * (half + 8), y.at(point.y) + 4) for side in (1, -1)]
        inside = [(px_, py) for px_, py in beside if LEFT + half <= px_ <= WIDTH - half]
        bars = [_bar(x, y, other) for other in points if other is not point]
        for at, py in [*((px, height) for height in heights), *inside]:
            free = all(abs(at - x_) >= half + half_ or abs(py - y_) >= LINE for x_, y_, half_ in taken)
            if free and all(abs(at - x_) > half + 2 or py + 3 < top or py - ASCENT > bottom for x_, top, bottom in bars):
                taken.append((at, py, half))
                parts.append(_text("name", at, py, name, "middle"))
                break
    return parts


def _bar(x: Axis, y: Axis, point: Point) -> tuple[float, float, float]:
    """Where a point is drawn: x, and its upper and lower end, by its dot or its interval."""
    at = y.at(point.y)
    return x.at(point.x), min(at - DOT, y.at(point.top)), max(at + DOT, y.at(point.bottom))


def dot_chart(title: str, x: Axis, rows: Sequence[tuple[str, Point, int]]) -> Html:
    """A row for each (name, point, colour): a dot at the point's y, with its interval."""
    height = TOP + ROW * len(rows) + BOTTOM - 10
    names = [short(name) for name, _, _ in rows]
    left = _name_width(names)
    x.span = (left, WIDTH - RIGHT)
    parts = []
    for tick in x.ticks:
        px = x.at(tick)
        parts.append(tag("line", class_=_rule(x, tick), x1=px, x2=px, y1=TOP - 6, y2=height - BOTTOM + 14))
        parts.append(_text("tick", px, height - 12, x.text(tick), "middle"))
    for index, (_, point, colour) in enumerate(rows):
        py = TOP + ROW * (index + 0.5)
        parts.append(_text("name", left - 10, py + 4, names[index], "end"))
        if point.low is not None and point.high is not None:
            parts.append(_error_bar(_colour(colour), (x.at(point.low), py), (x.at(point.high), py)))
        parts.append(_dot(_colour(colour), x.at(point.y), py, point.tooltip))
    return _drawing(title, parts, [], height)


def scatter_chart(title: str, x: Axis, y: Axis, points: Sequence[tuple[Point, int]]) -> Html:
    """A dot with its interval for each (point, colour); names where there is room for them."""
    x.span, y.span = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)
    parts = _grid(x, y)
    for point, colour in points:
        px, py = x.at(point.x), y.at(point.y)
        if point.low is not None and point.high is not None:
            parts.append(_error_bar(_colour(colour), (px, y.at(point.low)), (px, y.at(point.high))))
        parts.append(_dot(_colour(colour), px, py, point.tooltip))
    return _drawing(title, [*parts, *_names(x, y, [point for point, _ in points])], [])


def reliability_chart(title: str, label: str, bins: Sequence[tuple[float, float, Point, int]]) -> Html:
    """Each bin is (first, last, point, count): a bar as high as the share that is right, with its interval at the mean
    probability, and below it a bar for the count. The diagonal is perfect calibration."""
    x, y = Axis(label, 0.0, 1.0, span=(LEFT, WIDTH - RIGHT)), Axis("", 0.0, 1.0, percent=True, span=(HEIGHT - BOTTOM, TOP))
    parts = _grid(x, y)
    parts.append(tag("line", class_="diagonal", x1=x.at(0), y1=y.at(0), x2=x.at(1), y2=y.at(1)))
    most, base = max((count for *_, count in bins), default=1), HEIGHT + COUNTS
    for first, last, point, count in bins:
        left, width = x.at(first) + 0.5, x.at(last) - x.at(first) - 1
        bar = {"x": left, "width": width}
        height = y.at(0) - y.at(point.y)
        parts.append(tag("rect", tag("title", point.tooltip), class_="bin c0", y=y.at(point.y), height=height, **bar))
        size = max(1.0, (COUNTS - LINE) * count / most)
        parts.append(tag("rect", tag("title", f"{count} answers"), class_="amount", y=base - size, height=size, **bar))
        px = x.at(point.x)
        parts.append(_error_bar("c0", (px, y.at(point.bottom)), (px, y.at(point.top))))
        parts.append(_dot("c0", px, y.at(point.y), point.tooltip))
    parts.append(_text("tick", LEFT - 6, base, "answers", "end"))
    parts.append(_text("tick", LEFT - 6, base - COUNTS + LINE + 8, f"{most:,}", "end"))
    return _drawing(title, parts, [], base + 4)


def heat_map(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, str]]]], kinds: Sequence[str]) -> Html:
    """A strip of squares for each row; a square is (kind, tooltip). `kinds` are in the legend."""
    width, y = WIDTH * 2, 6.0
    names = [short(label, 36) for label, _ in rows]
    left, longest = _name_width(names), max(len(cells) for _, cells in rows)
    size = min(LARGEST_CELL, max(7, (width - left) / max(1, longest)))
    in_line = max(1, int((width - left) / size + 1e-9))
    parts = []
    for name, (_, cells) in zip(names, rows, strict=True):
        parts.append(_text("name", left - 10, y + size / 2 + 4, name, "end"))
        for index, (kind, tooltip) in enumerate(cells):
            at = {"x": left + index % in_line * size, "y": y + index // in_line * size}
            parts.append(tag("rect", tag("title", tooltip), class_=f"cell s-{kind}", width=size - 1, height=size - 1, **at))
        y += math.ceil(len(cells) / in_line) * size + GAP
    keys = [tag("span", tag("i", class_=f"swatch s-{kind}"), kind, class_="key") for kind in kinds]
    return _framed(title, keys, parts, y, width)


def matrix(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Point | None]]], good: float) -> Html:
    """A table of rates; a cell is darker the further its rate is from `good`."""
    head = tag("tr", tag("th"), [tag("th", column) for column in columns])
    body = [tag("tr", tag("th", name), [_rate_cell(point, good) for point in points]) for name, points in rows]
    table = tag("table", tag("thead", head), tag("tbody", body), class_="matrix")
    return tag("figure", tag("figcaption", title), tag("div", table, class_="scroll"), class_="chart")


def _rate_cell(point: Point | None, good: float) -> Html:
    if point is None or not math.isfinite(point.y):
        return tag("td", "-")
    shade = min(5, math.ceil(5 * abs(point.y - good)))
    return tag("td", f"{100 * point.y:.0f} %", title=point.tooltip, class_=f"h{shade}")


def _grid(x: Axis, y: Axis) -> list[Html]:
    parts = []
    for tick in y.ticks:
        parts.append(tag("line", class_=_rule(y, tick), x1=LEFT, x2=WIDTH - RIGHT, y1=y.at(tick), y2=y.at(tick)))
        parts.append(_text("tick", LEFT - 6, y.at(tick) + 4, y.text(tick), "end"))
    parts += [_text("tick", x.at(tick), HEIGHT - BOTTOM + 16, x.text(tick), "middle") for tick in x.ticks]
    return [*parts, _text("label", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x.label, "middle")]


def _rule(axis: Axis, tick: float) -> str:
    return "grid" if tick or axis.log else "grid zero"


def _dot(colour: str, x: float, y: float, tooltip: str) -> Html:
    return tag("circle", [tag("title", tooltip)] if tooltip else [], class_=f"dot {colour}", cx=x, cy=y, r=DOT)


def _error_bar(colour: str, start: tuple[float, float], end: tuple[float, float]) -> Html:
    return tag("line", class_=f"whisker {colour}", x1=start[0], y1=start[1], x2=end[0], y2=end[1])


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> Html:
    return tag("text", text, class_=kind, x=x, y=y, text_anchor=anchor)


def _drawing(title: str, parts: Sequence[Html], legend: Sequence[tuple[str, int]], height: float = HEIGHT) -> Html:
    keys = [tag("span", tag("i", class_=f"swatch {_colour(colour)}"), name, class_="key") for name, colour in legend]
    return _framed(title, keys, parts, height, WIDTH)


def _framed(title: str, keys: Sequence[Html], parts: Sequence[Html], height: float, width: float) -> Html:
    above = [tag("div", keys, class_="legend")] if keys else []
    drawing = tag("svg", parts, viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", aria_label=title)
    kind = "chart wide" if width > WIDTH else "chart"
    return tag("figure", tag("figcaption", title), above, drawing, class_=kind)


def _colour(number: int) -> str:
    return f"c{number % COLOURS}"


def _name_width(names: Sequence[str]) -> float:
    return 14 + CHAR * max(map(len, names), default=0)


def short(text: str, most: int = 24) -> str:
    """Shortened before the middle: names of models differ at the end."""
    head = most // 3
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"
