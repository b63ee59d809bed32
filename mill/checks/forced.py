"""Teacher forcing: every engine scores the baseline's answers, so that distributions are compared after the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mill.api.errors import RunError
from mill.api.model import MillModel
from mill.api.request import ALL, GENERATE, LOGLIKELIHOOD
from mill.api.response import Response, Token
from mill.checks.subjects import CompletedRun
from mill.execute.sample_state import SampleState
from mill.metrics.divergence import Gap, Known, bounded_gap, exact_gaps
from mill.store.folder import RunFolder
from mill.store.record import distribution_file
from mill.tasks.suite import ForcedText

NAME = "forced"
MAX_TOP_LOGPROBS = 128  # requested of an engine that has no limit, where another one has
CHARS_PER_TOKEN = 4  # assumed for an engine that returns no tokens


@dataclass
class ForcedGaps:
    """The gaps of each text that both engines scored, by task/sample, and counts of the texts without gaps."""

    texts: dict[str, list[Gap]] = field(default_factory=dict)
    expected: int = 0
    """How many texts both engines had to score."""
    different_tokens: int = 0
    failed: int = 0
    error: str = ""
    """The error of the first failed text."""

    @property
    def positions(self) -> int:
        return sum(map(len, self.texts.values()))

    @property
    def exact(self) -> bool:
        return all(gap.exact for gaps in self.texts.values() for gap in gaps)


def top_logprobs_of(models: Sequence[MillModel]) -> list[int | str] | None:
    """How many log-probabilities to request of each model at every position: the whole vocabulary if the baseline, which is
    the first, and another model provide it, else as many as each provides; 0 for a model without log-probabilities. None if
    nothing can be compared."""
    limits = [model.capabilities.top_logprobs for model in models]
    if limits[0] == 0 or all(count == 0 for count in limits[1:]):
        return None
    whole = limits[0] is None and None in limits[1:]
    return [(ALL if whole else MAX_TOP_LOGPROBS) if count is None else min(count, MAX_TOP_LOGPROBS) for count in limits]


def forced_texts(baseline: CompletedRun, most_tokens: int, *, dialogs: bool) -> list[ForcedText]:
    """The baseline's answers: the first tokens of its generated text, or its choice.

    Without `dialogs`, since one of the engines cannot score chat messages, a dialog is joined to plain text.
    """
    texts = []
    for plan in baseline.tasks:
        if plan.task.kind in (GENERATE, LOGLIKELIHOOD):
            for state in plan.states:
                context, text = state.requests[0].context, _continuation(state, most_tokens)
                plain = not isinstance(context, str) and not dialogs and not state.requests[0].media
                if plain:
                    context = "\n\n".join(message.text for message in context) + "\n\n"  # type: ignore[union-attr]
                if text and text.strip():
                    texts.append(ForcedText(f"{plan.task.name}/{state.sample.id}", context, text, plain))
    return texts


def _continuation(state: SampleState, most_tokens: int) -> str | None:
    """The text to score; None if there is none."""
    responses = state.responses(state.requests)
    if len(responses) < len(state.requests) or any(response.failed for response in responses):
        return None
    if state.task.kind == GENERATE and responses[0].reasoning is not None and responses[0].tokens is None:
        return None  # how the engine wrote the reasoning is not known
    if state.task.kind == GENERATE:
        return _first_tokens(responses[0], most_tokens)
    scores = [float("-inf") if response.score is None else response.score for response in responses]
    return state.requests[scores.index(max(scores))].continuation


def _first_tokens(response: Response, most_tokens: int) -> str:
    """The first tokens of an answer, without an incomplete character at the end."""
    text = response.text or ""
    if response.tokens is None:
        return text[: most_tokens * CHARS_PER_TOKEN]
    start = "".join(token.text for token in response.tokens[:most_tokens]).rstrip("\ufffd")
    if response.reasoning is not None:  # the text that follows the prompt starts with it
        return start
    return start if text.startswith(start) else text[: len(start)]


def read_gaps(baseline: CompletedRun, candidate: CompletedRun) -> ForcedGaps:
    """Position by position, where the tokens are the same on both sides."""
    first, second = _responses(baseline), _responses(candidate)
    gaps = ForcedGaps(expected=len(first))
    for name, a in first.items():
        b = second.get(name)
        if b is None or not a.tokens or not b.tokens:
            gaps.failed += 1
            gaps.error = gaps.error or a.error or (b.error if b else None) or "an engine returned no tokens"
        elif [token.name for token in a.tokens] != [token.name for token in b.tokens]:
            gaps.different_tokens += 1
        else:
            gaps.texts[name] = _gaps(_Side(a, baseline.plan.folder), _Side(b, candidate.plan.folder))
    return gaps


def _responses(completed: CompletedRun) -> dict[str, Response]:
    return {
        one.sample.id: one.responses[0][0] if one.responses[0] else Response(error="no response")
        for one in completed.outcome.scored[NAME]
    }


class _Side:
    """One engine's scores of one text, with whole distributions if it provides them."""

    def __init__(self, response: Response, folder: RunFolder) -> None:
        self.tokens: tuple[Token, ...] = response.tokens or ()
        self.whole = _load(folder, response.distribution) if response.distribution else None

    def known(self, other: _Side) -> list[Known]:
        """Log-probabilities of some tokens at each position: its top_logprobs or, from a whole distribution, its most likely
        tokens and those of the other engine."""
        if self.whole is None:
            return [dict(token.top) for token in self.tokens]
        positions: list[Known] = []
        for row, token in zip(self.whole, other.tokens, strict=True):
            best = {int(index) for index in row.argsort()[-MAX_TOP_LOGPROBS:]}
            ids = best | {index for index, _ in token.top if isinstance(index, int) and index < len(row)}
            positions.append({index: float(row[index]) for index in ids})
        return positions


def _gaps(a: _Side, b: _Side) -> list[Gap]:
    if a.whole is None or b.whole is None:
        pairs = zip(a.known(b), b.known(a), a.tokens, b.tokens, strict=True)
        return [bounded_gap(known_a, known_b, ta.name, ta.logprob, tb.logprob) for known_a, known_b, ta, tb in pairs]
    size = min(a.whole.shape[1], b.whole.shape[1])  # the embedding may be padded with tokens that no text has
    return exact_gaps(a.whole[:, :size], b.whole[:, :size], [token.id or 0 for token in a.tokens])


def _load(folder: RunFolder, name: str) -> Any:
    import numpy as np

    file = distribution_file(folder.path, name)
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read the distributions of {file}: {error}") from error
