"""Which execution path computed which requests, and why: for the manifest, so that a fallback is never silent."""

from __future__ import annotations

from collections import Counter

from mill.models.prefix.verification import Verification

SCORING, ROLLING, DECODING = "scoring", "rolling", "decoding"
PACKED, PADDED = "packed", "padded"
CONTINUOUS, PLAIN = "continuous", "plain batches"


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


def planned(disabled: str) -> dict[str, str]:
    """The paths that will be tried, before weights load. `disabled` is why prefixes are not shared; empty if they may be."""
    if disabled:
        return {SCORING: f"{PADDED} ({disabled})", DECODING: f"{PLAIN} ({disabled})"}
    probed = "if the model supports it"
    return {SCORING: f"{PACKED}, shared prefixes once ({probed})", DECODING: f"{CONTINUOUS} ({probed})"}
