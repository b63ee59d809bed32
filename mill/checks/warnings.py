"""What must be said beside a check's metrics, so that nobody reads more into them than there is."""

from __future__ import annotations

from collections.abc import Mapping


def answer_warnings(counts: Mapping[str, int], *, chat: bool = False) -> list[str]:
    """What a reader of texts and flips must know: answers that are empty, cut off or withheld."""
    found, n = [], counts.get("samples", 0)
    if counts.get("empty"):
        both = f", {counts['both_empty']} of them on both sides, which is no agreement" if counts.get("both_empty") else ""
        hint = "" if chat else "; an instruct model may need --chat"
        found.append(f"{counts['empty']} of {n} samples have an empty answer{both}{hint}")
    if counts.get("cut_short"):
        flips = (
            f", {counts['flips_cut_short']} of {counts['flips']} flips among them" if counts.get("flips_cut_short") else ""
        )
        found.append(
            f"{counts['cut_short']} of {n} samples have an answer that ended at the token limit{flips}; see --max_tokens"
        )
    if counts.get("unextracted"):
        found.append(f"from {counts['unextracted']} of {n} samples neither text gives an answer, which is no agreement")
    if counts.get("filtered"):
        found.append(f"{counts['filtered']} of {n} samples have an answer that the server filtered")
    return found
