"""The drawings of `benchmarks/draw_scaling.py`."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from benchmarks.draw_scaling import colours, draw

SVG = "{http://www.w3.org/2000/svg}"


def make_run(questions: int, shots: int, seconds: float, **fields: Any) -> dict[str, Any]:
    tokens = {"computed_tokens": 100 * questions, "requested_tokens": 100 * questions * (4 + 4 * shots)}
    memory = {"peak_bytes": 3 * 2**29, "gpu_peak_bytes": 0}
    return {"questions": questions, "shots": shots, "seconds": seconds, "forward": seconds / 2, **tokens, **memory, **fields}


def make_results(**fields: Any) -> dict[str, Any]:
    runs = [make_run(14000, 5, 200, **fields), make_run(1000, 5, 20), make_run(1000, 0, 10), make_run(1000, 25, 90)]
    about = {"machine": "2 cores, aarch64", "model": "m", "dtype": "float32"}
    return {**about, "at_shots": 5, "at_questions": 1000, "runs": runs}


def lines(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    return [line.attrib["points"] for line in found]


def texts(svg: str, kind: str) -> list[str | None]:
    return [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text") if text.attrib["class"] == kind]


def test_lines_are_drawn_from_zero_in_the_order_of_questions() -> None:
    # 388 pixels are 1.05 x 14,000 questions, and 182 are 1.18 x 200 seconds above the axis at 200.
    forward, whole, tokens = lines(draw(make_results(), "questions", "t", "questions"))
    assert whole == "80.4,184.6 423.5,45.8"
    assert forward == "80.4,192.3 423.5,122.9"
    assert tokens == "80.4,189.0 423.5,45.8"


def test_shots_have_the_tokens_of_all_requests_beside_the_computed_ones() -> None:
    svg = draw(make_results(), "shots", "t", "shots")
    assert [len(line.split()) for line in lines(svg)] == [3, 3, 3, 3]
    assert texts(svg, "name") == ["1.50 GiB"] * 3 + ["0.1", "0.1", "2.4", "10.4"]


def test_memory_of_a_gpu_is_labelled() -> None:
    svg = draw(make_results(gpu_peak_bytes=30 * 2**30), "questions", "t", "questions")
    assert texts(svg, "name")[:2] == ["1.50 GiB", "1.5 + 30 GiB"]


def test_both_colour_schemes_have_every_colour() -> None:
    svg = draw(make_results(), "questions", "t", "questions")
    light, dark = svg.split("@media (prefers-color-scheme: dark)")
    for palette, part in zip(colours(), (light, dark), strict=True):
        assert {palette[name] for name in ("card", "ink", "soft", "c0", "c1", "c2")} <= set(re.findall(r"#\w{6}", part))
