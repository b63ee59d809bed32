"""Which execution path computed which requests, and why: for the manifest, so that a fallback is never silent."""

from __future__ import annotations

import re
from collections import Counter

from mill.models.prefix.verification import Verification

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
