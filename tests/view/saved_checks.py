"""Checks as their commands save them, of every kind, also with hostile texts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

from mill.api.response import Token
from mill.checks.answers import Answer
from mill.checks.compare import compared as compare_pairs
from mill.checks.compare import row_of
from mill.checks.determinism import repeated
from mill.checks.forced import ForcedGaps
from mill.checks.pairing import AnswerPair, pair
from mill.checks.result import Check, Variant
from mill.checks.subjects import Pass
from mill.metrics.divergence import Gap
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import rate

GIB = 2**30


def tokens(text: str) -> tuple[Token, ...]:
    """Words with the space before them, each 2.5 nats above the second token."""
    return tuple(Token(None, piece, -0.1, ((piece, -0.1), ("second", -2.6))) for piece in re.findall(r"\s*\S+|\s+$", text))


def compared(label: str, first: list[Answer], second: list[Answer], gaps: ForcedGaps | None) -> Variant:
    return compare_pairs(label, pair(first, second), gaps)


def answered(name: str, category: str, text: str, **more: Any) -> Answer:
    prompt = more.pop("prompt", f"Question {name}?")
    return Answer("maths", name, category, prompt, more.pop("gold", None), text, tokens=tokens(text), metric="acc", **more)


def solved(name: str, text: str, gold: str) -> Answer:
    final = text.rpartition(" ")[2]
    return answered(name, "arithmetic", text, gold=gold, extracted=final, comparable=True, value=float(final == gold))


def extracted(name: str, text: str) -> Answer:
    return answered(name, "logic", text, extracted=text.rpartition(" ")[2], comparable=True)


ESSAY = "A river runs past the mill, and the wheel turns as long as there is water in it."
TICKS = "Explain\n```py\nprint('````')\n```\nand `this`."
BASE = [
    solved("sum", "The sum is 4 and so the answer: 4", "4"),
    solved("difference", "The answer: 9", "8"),
    extracted("knights", "After some thought: yes"),
    answered("essay", "logic", ESSAY),
    answered("broken", "words", "All is well", prompt=TICKS),
    answered("same", "words", "Nothing changes here"),
]
Q8 = [*BASE[:3], answered("essay", "logic", ESSAY.replace("water", "weight")), *BASE[4:]]
Q4 = [
    solved("sum", "The sum is 5 and so the answer: 5", "4"),
    solved("difference", "The answer: 8", "8"),
    extracted("knights", "After some thought: no"),
    answered("essay", "logic", "Qqq zzz xxx kkk jjj vvv"),
    answered("broken", "words", "", prompt=TICKS, error="HTTP 500: ```out of memory``` <b>"),
    BASE[5],
]


def gaps(typical: float, answers: Sequence[Answer] = BASE) -> ForcedGaps:
    draw = random.Random(typical)
    of_texts = {}
    for one in answers:
        values = [draw.lognormvariate(typical, 1.5) for _ in one.tokens or ()]
        of_texts[f"{one.task}/{one.id}"] = [Gap(value, -0.5, -0.6, value < 0.02, True) for value in values]
    return ForcedGaps(of_texts)


def sized(label: str, answers: list[Answer], typical: float, size: float | None) -> Variant:
    variant = compared(label, BASE, answers, gaps(typical))
    variant.size = None if size is None else int(size * GIB)
    return variant


def compare_check() -> Check:
    return Check("compare", ["maths"], [sized("Q8_0", Q8, -8, 8.0), sized("Q4_K_M", Q4, -4, 4.5)], "F16")


def sweep_check() -> Check:
    steps = (("Q8_0", BASE, -9, 8.0), ("Q6_K", Q8, -7, 6.2), ("Q4_K_M", Q4, -5, 4.5), ("Q2_K", Q4, -2, 2.6))
    return Check("sweep", ["maths"], [sized(*step) for step in steps], "F16")


def unchanged_check() -> Check:
    return Check("compare", ["maths"], [sized("twin", BASE, -12, None)], "F16")


def crowded_check() -> Check:
    labels = [f"Qwen2.5-7B-Instruct-{name}" for name in ("FP8", "AWQ", "GPTQ-Int4", "GPTQ-Int8", "GGUF-Q4_K_M", "MLX-4bit")]
    return Check("compare", ["maths"], [sized(label, Q4, -5, None) for label in labels], "Qwen2.5-7B-Instruct")


def close_check() -> Check:
    """The weights of a 7B model's usual quantizations: some sizes are nearly the same, and so are the divergences."""
    steps = (("Q4_K_S", 4.15), ("Q4_K_M", 4.36), ("Q5_K_S", 4.95), ("Q5_K_M", 5.07), ("Q6_K", 5.82), ("Q8_0", 7.54))
    return Check("sweep", ["maths"], [sized(label, Q8, -7, size) for label, size in steps], "F16")


def failed_check() -> Check:
    failed = [answered(one.id, one.category, "", error=f"HTTP 503 at {one.id}") for one in BASE]
    return Check("compare", ["maths"], [compared("down", BASE, failed, None)], "up")


def stress_check() -> Check:
    variants = []
    for level in (1, 8, 64):
        changed = [AnswerPair(a, b) for a, b in zip(BASE, Q4, strict=True) if level == 64 and a != b]
        metrics: dict[str, Estimate] = {"failure_rate": rate(level // 64, 6), "match_rate": rate(6 - len(changed), 6)}
        metrics["tokens_per_s"] = around(90.0 * level**0.6, None, 6)
        for name, share in (("p50", 1.0), ("p95", 1.8), ("p99", 2.4)):
            metrics[f"latency_{name}"] = around(0.8 * share * level**0.4, None, 6)
            metrics[f"first_token_{name}"] = around(0.05 * share * level**0.5, None, 6)
        errors = [{"id": "broken", "error": "HTTP 500"}] if changed else []
        counts = {"samples": 6, "failed": len(errors), "concurrency": level}
        rows = [row_of(pair, None) for pair in changed]
        variants.append(
            Variant(f"concurrency {level}", metrics=metrics, counts=counts, series={"errors": errors}, rows=rows)
        )
    return Check("stress", ["maths"], variants, "concurrency 1")


def determinism_check() -> Check:
    passes = [
        Pass(f"pass {number}", 1 + number % 2, list(answers), "", []) for number, answers in enumerate((BASE, BASE, Q8, Q4))
    ]
    alone = [made for made in passes if made.concurrency == 1]
    return Check("determinism", ["maths"], [repeated("all runs", passes), repeated("alone", alone)])


HACKS = (
    "<script>window.hacked=1</script>",
    "</pre></details><img src=x onerror=window.hacked=1>",
    "\"><svg onload=window.hacked=1>'",
    "</title></style></script><iframe src=javascript:window.hacked=1>",
    "javascript:window.hacked=1",
    "&lt;b&gt; &amp;",
)
HOSTILE = " ".join(HACKS)
CONTROL = "\x00\x07\x1b[31m\r\x0b\u202e\udfff\ud800\U0001f600"
LONG = "W" * 300


def hostile_check(control: str = CONTROL) -> Check:
    bad = HOSTILE + control

    def answer(index: int, text: str, error: str | None = None) -> Answer:
        about: dict[str, Any] = {"gold": {bad: [bad]}, "extracted": text, "comparable": True, "error": error}
        about |= {"value": float(not index), "tokens": tokens(text)}
        return Answer(bad, f"{index} {bad}", f"{index} {bad}", f"\n{index} {bad}", text=text, **about)

    first = [answer(index, f"{bad} {index} {LONG}") for index in range(3)]
    second = [answer(0, f"{bad} other"), answer(1, "", error=bad), answer(2, LONG)]
    variants = []
    for label in (bad, f"{LONG} {bad}"):
        variant = compared(label, first, second, gaps(-4, first))
        variant.warnings.append(bad)
        variant.series["errors"] = [{"id": bad, "error": bad}]
        variants.append(variant)
    return Check("compare", [bad], variants, bad, warnings=[bad])


def chosen(name: str, scores: tuple[float, ...], right: int) -> Answer:
    """A question with three choices, whose answer is the one with the largest log-probability."""
    best = "abc"[scores.index(max(scores))]
    about: dict[str, Any] = {"extracted": best, "comparable": True, "value": float(best == "abc"[right])}
    return Answer(
        "quiz", name, "quiz", "Which?", "abc"[right], best, "choice", scores=scores, choices=("a", "b", "c"), **about
    )


def page_data(page: bytes) -> dict[str, Any]:
    """The data inside of an offline page."""
    (text,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page.decode(), re.DOTALL)
    return dict(json.loads(text))
