"""Rolling windows: a document longer than the context, as pairs of context and continuation that score each token once.

The definition of lm-evaluation-harness: disjoint windows, each conditioned on the last token before it; the last window is
extended to the left, so that it has a full context. The first token is predicted from a prefix token (BOS or EOS).
"""

from __future__ import annotations

from mill.models.tokens.pairs import TokenPair


def rolling_windows(ids: list[int], window: int) -> list[TokenPair]:
    """Windows over `ids`, whose first token is context and is not scored. `window` is the longest input of the model."""
    windows = []
    for first in range(1, len(ids), window):
        end = min(first + window, len(ids))
        start = max(0, end - 1 - window)
        windows.append(TokenPair(ids[start:end], first - start, 0))
    return windows
