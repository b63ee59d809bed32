"""Which execution path computed which requests, and why: for the manifest, so that a fallback is never silent.

Some rows of every run are computed again by the plain path, which tells whether the fast one was right. How much of a
difference rounding explains is measured on the model itself, never chosen.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any

from mill.api.batching import is_out_of_memory
from mill.api.errors import FastPathFailed

if TYPE_CHECKING:
    import torch

    Function = Callable[[torch.Tensor], torch.Tensor]

DRAWS = 4  # roundings that are tried on each row
MORE = 8  # times as many, before a difference is more than rounding
ROUNDED_ONCE = 1.05  # times the error of rounding, which varies with the values
MOST, MOST_MEDIAN = 4, 2  # times the noise that a single difference and the median of all may be


@contextmanager
def rounded_otherwise(model: Any) -> Iterator[None]:
    """Inside this context the output of each layer is rounded up or down at random, as another order of its sums might.

    Values of a batch are rounded independently of each other: copies of one row show how far rounding moves its results.
    """
    table = model.get_input_embeddings()
    with ExitStack() as stack:
        for module in model.modules():
            own = chain(module.parameters(recurse=False), module.buffers(recurse=False))
            if module is not table and next(own, None) is not None:
                stack.callback(module.register_forward_hook(_round_otherwise).remove)
        yield


def _round_otherwise(_: Any, __: Any, output: Any) -> Any:
    import torch

    if isinstance(output, tuple):
        return tuple(_round_otherwise(_, __, part) for part in output)
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return output
    factor = torch.rand(output.shape, device=output.device).sub_(0.5).mul_(torch.finfo(output.dtype).eps).add_(1)
    return factor.mul_(output).to(output.dtype)


def is_rounded_once(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result in half precision is that in float32, rounded: its error is no larger than that of rounding."""
    rounded = exact.to(found.dtype).float()
    same_shape = found.shape == exact.shape
    return same_shape and bool((found.float() - exact).norm() <= ROUNDED_ONCE * (rounded - exact).norm())


def is_same_function(one: Function, other: Function, x: torch.Tensor) -> bool:
    """Whether two functions are the same in the precision of `x`: they differ by no more than `other` does when its input is
    rounded otherwise."""
    import torch

    wanted = other(x)
    moved = other(x * (1 + torch.finfo(x.dtype).eps * torch.rand_like(x).sub(0.5).mul(2))) - wanted
    return bool((one(x) - wanted).norm() <= 2 * moved.norm())


def exceeds(differences: Sequence[float], noise: Sequence[float]) -> bool:
    """Whether differences are more than rounding explains. One that is not a number is."""
    if not all(map(math.isfinite, differences)):
        return True
    return max(differences) > MOST * max(noise) or median(differences) > MOST_MEDIAN * median(noise)


ONE_IN = 500  # rows are computed again, chosen by hash
AT_LEAST = 2  # the first rows
ENOUGH = 8  # rows for a median


class Verification:
    """Of one stage, such as scoring. Differences are in nats: of the scores of a row, or how far a token of a generated text
    is from the most likely one."""

    def __init__(self) -> None:
        self._due, self._longest = AT_LEAST, 0
        self._ratios: list[float] = []
        self._greatest, self._noise = 0.0, 0.0
        self._skipped = 0

    def restart(self) -> None:
        """The model was loaded: its first rows are computed again."""
        self._due, self._longest = AT_LEAST, 0

    def is_due(self, length: int, longest: int) -> bool:
        """Whether a row of `length` tokens is computed again at once: the first ones, and the longest of a stream where none
        was as long before."""
        return self._due > 0 or longest == length > self._longest

    def samples(self, key: str) -> bool:
        """Whether the row of this request is among those that are computed again by chance."""
        return int(key.partition("#")[0][:12], 16) % ONE_IN == 0

    def check(
        self,
        model: Any,
        length: int,
        found: Sequence[float],
        plain: Callable[[], Sequence[float]],
        noise: float = 0.0,
    ) -> None:
        """Compare with the plain path. What rounding explains is about `noise`; beyond twice that it is measured on the row.

        Raises FastPathFailed where the row differs by more than rounding explains, or most rows do.
        """
        try:
            wanted = plain()
            difference = _distance(found, wanted)
            if difference > MOST_MEDIAN * noise:
                with rounded_otherwise(model):
                    noise = max(noise, *(_distance(plain(), wanted) for _ in range(DRAWS)))
                    for _ in range(MORE * DRAWS):  # where a router is undecided only some roundings show it
                        if difference <= MOST * noise:
                            break
                        noise = max(noise, _distance(plain(), wanted))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._skipped += 1
            return
        self._due, self._longest = self._due - 1, max(self._longest, length)
        self._ratios.append(difference / noise if noise else math.inf if difference else 0.0)
        if difference >= self._greatest or math.isnan(difference):
            self._greatest, self._noise = difference, noise
        ratio = self._ratios[-1]
        unusual = median(self._ratios) > MOST_MEDIAN
        if unusual:  # a few rows may be by chance
            self._due = max(self._due, ENOUGH - len(self._ratios))
        if not ratio <= MOST or (unusual and len(self._ratios) >= ENOUGH):
            raise FastPathFailed(
                f"a row computed again by itself differs by {difference:.3g} nats, and rounding explains {noise:.2g}"
            )

    def __str__(self) -> str:
        """Empty where nothing was answered by a fast path."""
        if not self._ratios and not self._skipped:
            return ""
        rows = f"{len(self._ratios)} row{'s' * (len(self._ratios) != 1)}"
        text = f"verified: {rows}, largest difference {self._greatest:.2g} nats (noise {self._noise:.2g})"
        return text + (f", {self._skipped} not verified (out of memory)" if self._skipped else "")


def _distance(some: Sequence[float], others: Sequence[float]) -> float:
    """The largest difference; NaN where a value is not a number and the other one is."""
    pairs = [(one, other) for one, other in zip(some, others, strict=True) if not (math.isnan(one) and math.isnan(other))]
    differences = [0.0 if one == other else abs(one - other) for one, other in pairs]
    return math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)


SCORING, ROLLING, DECODING = "scoring", "rolling", "decoding"
PACKED, PADDED = "packed", "padded"
CONTINUOUS, PLAIN = "continuous", "plain batches"
ALONE = "row by row"
VERIFIED = "verified: "


_MIXED = re.compile(
    r"qwen3[._-]?(5|next)|granite-?(moehybrid|4)|kimi[_-]linear|nemotron[_-]?h\b|bamba|jamba|minimax(?![_-]?m[2-9])|olmo[_-]?hybrid|"
    r"zamba|recurrent[_-]?gemma|zaya|bailing[_-]hybrid|lfm2|bert",
    re.IGNORECASE,
)
MIXED_ROWS = "computed by a version that mixed rows of hybrid models in half precision; run again"


def mixed_rows(name: str, dtype: str) -> bool:
    """Whether earlier versions let rows of this model run into each other: its layers carry state from token to token, which
    they did not see in half precision. `name` is the type of its config, or the model's own name."""
    return dtype != "float32" and _MIXED.search(name) is not None


class PathLog:
    """Numbers of requests by stage (scoring, rolling, decoding) and path."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self.verified = {stage: Verification() for stage in (SCORING, DECODING)}
        self._failures: dict[str, None] = {}

    def add(self, stage: str, path: str, requests: int, reason: str = "") -> None:
        if requests:
            name = f"{path} ({reason})" if reason else path
            self._counts.setdefault(stage, Counter())[name] += requests

    def fail(self, reason: str) -> None:
        """What fast paths answered is computed again."""
        self._counts.clear()
        self.verified = {stage: Verification() for stage in self.verified}
        self._failures[f"the fast path was wrong: {reason}; all that it had answered was computed again without it"] = None

    @property
    def failures(self) -> list[str]:
        return list(self._failures)

    def summary(self) -> dict[str, str]:
        """For instance {"scoring": "packed: 25 requests; padded (out of memory): 2 requests; verified: 2 rows, ..."}."""
        return {
            stage: "; ".join(
                [
                    *(f"{path}: {count} request{'s' * (count != 1)}" for path, count in counts.items()),
                    *filter(None, [str(self.verified.get(stage, ""))]),
                ]
            )
            for stage, counts in self._counts.items()
        }


def planned(disabled: str, *, alone: bool = False) -> dict[str, str]:
    """The paths that will be tried, before weights load. `disabled` is why prefixes are not shared; empty if they may be.
    `alone`: rows that are not shared are computed one by one."""
    if disabled:
        scoring, decoding = (ALONE, ALONE) if alone else (PADDED, PLAIN)
        return {SCORING: f"{scoring} ({disabled})", DECODING: f"{decoding} ({disabled})"}
    probed = "if the model supports it"
    return {SCORING: f"{PACKED}, shared prefixes once ({probed})", DECODING: f"{CONTINUOUS} ({probed})"}
