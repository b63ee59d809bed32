"""Coloured shapes, drawn here: an image task that needs no data, for trying zero-shot models.

`shapes` has every colour with every shape; `shapes_unseen` only the pairs that the demo model was never trained on, so
that its accuracy there is that of putting together what it knows.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mill.api.message import Blob
from mill.tasks.data import Dataset
from mill.tasks.images import ClassifiedSet, add_renderings

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (235, 210, 40),
    "purple": (150, 60, 190),
    "orange": (245, 140, 30),
    "cyan": (50, 200, 215),
    "pink": (245, 140, 185),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "bar", "diamond")
PAIRS = tuple((colour, shape) for colour in COLOURS for shape in SHAPES)
UNSEEN = tuple((colour, SHAPES[index]) for index, colour in enumerate(COLOURS))
SIDE = 32
EACH = 8  # images of a class


def draw(colour: str, shape: str, chance: random.Random) -> Any:
    """An image of one shape; position, size, shade and a grey background are random."""
    from PIL import Image, ImageDraw

    grey = chance.randint(0, 70)
    scale = 4  # drawn larger and reduced, for smooth edges
    image = Image.new("RGB", (SIDE * scale, SIDE * scale), (grey, grey, grey))
    radius = chance.uniform(8, 13) * scale
    x, y = (chance.uniform(radius, SIDE * scale - radius) for _ in range(2))
    shade = chance.uniform(0.75, 1.0)
    fill = tuple(round(part * shade) for part in COLOURS[colour])
    _STROKES[shape](ImageDraw.Draw(image), x, y, radius, fill)
    return image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def _polygon(x: float, y: float, radii: tuple[float, ...], turn: float) -> list[tuple[float, float]]:
    step = 2 * math.pi / len(radii)
    return [(x + r * math.sin(turn + n * step), y - r * math.cos(turn + n * step)) for n, r in enumerate(radii)]


def _cross(pen: Any, x: float, y: float, r: float, fill: Any) -> None:
    pen.rectangle((x - r, y - r / 3, x + r, y + r / 3), fill)
    pen.rectangle((x - r / 3, y - r, x + r / 3, y + r), fill)


_STROKES: dict[str, Callable[[Any, float, float, float, Any], None]] = {
    "circle": lambda pen, x, y, r, fill: pen.ellipse((x - r, y - r, x + r, y + r), fill),
    "square": lambda pen, x, y, r, fill: pen.rectangle((x - 0.8 * r, y - 0.8 * r, x + 0.8 * r, y + 0.8 * r), fill),
    "triangle": lambda pen, x, y, r, fill: pen.polygon(_polygon(x, y, (r,) * 3, 0), fill),
    "star": lambda pen, x, y, r, fill: pen.polygon(_polygon(x, y, (r, 0.45 * r) * 5, 0), fill),
    "cross": _cross,
    "ring": lambda pen, x, y, r, fill: pen.ellipse((x - r, y - r, x + r, y + r), outline=fill, width=round(r * 0.35)),
    "bar": lambda pen, x, y, r, fill: pen.rectangle((x - r, y - r / 4, x + r, y + r / 4), fill),
    "diamond": lambda pen, x, y, r, fill: pen.polygon(_polygon(x, y, (r, 0.6 * r) * 2, 0), fill),
}


def class_name(colour: str, shape: str) -> str:
    return f"{colour} {shape}"


@dataclass(frozen=True)
class DrawnSet(ClassifiedSet):
    """Rows whose images are drawn on demand."""

    pairs: tuple[tuple[str, str], ...] = PAIRS

    def rows(self) -> tuple[str, list[dict[str, Any]]]:
        return "test", [
            {"image": _drawn(colour, shape, number), "label": class_name(colour, shape)}
            for number in range(EACH)
            for colour, shape in self.pairs
        ]


def _drawn(colour: str, shape: str, number: int) -> Blob:
    name = f"{colour}-{shape}-{number}.png"

    def read() -> bytes:
        out = io.BytesIO()
        draw(colour, shape, random.Random(f"test/{name}")).save(out, "PNG")
        return out.getvalue()

    return Blob(name, read)


def _shapes(pairs: tuple[tuple[str, str], ...]) -> DrawnSet:
    return DrawnSet(
        dataset=Dataset("shapes"),
        splits=("test",),
        classes=tuple(class_name(*pair) for pair in PAIRS),
        question="Which shape does this picture show?",
        templates=("a picture of a {c}.", "a {c}."),
        pairs=pairs,
    )


add_renderings("shapes", _shapes(PAIRS))
add_renderings("shapes_unseen", _shapes(UNSEEN))
