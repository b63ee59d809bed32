"""Teacher forcing: the baseline's answers as texts that every engine scores, so that distributions are compared at
places where both saw the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mill.api.errors import RunError
from mill.api.message import Context
from mill.api.model import MillModel
from mill.api.request import ALL, GENERATE, LOGLIKELIHOOD
from mill.api.response import Response, Token
from mill.checks.subjects import CompletedRun
from mill.execute.sample_state import SampleState
from mill.metrics.divergence import Gap, Known, bounded_gap, exact_gaps
from mill.runs.folder import RunFolder
from mill.runs.record import distribution_file
from mill.tasks.forced import ForcedText

NAME = "forced"
FORCED_TOKENS = 32  # of each answer, unless more are asked for
MAX_TOP_LOGPROBS = 128  # of an engine that could name more, where another names fewer
CHARS_A_TOKEN = 4  # where an engine does not tell its tokens


@dataclass
class ForcedGaps:
    """The gaps of each text that both engines scored, by task/sample, and how many texts have none."""

    texts: dict[str, list[Gap]] = field(default_factory=dict)
    asked: int = 0
    """How many texts both engines should have scored."""
    other_tokens: int = 0
    failed: int = 0
    error: str = ""
    """Why the first of the failed could not be scored."""

    @property
    def positions(self) -> int:
        return sum(map(len, self.texts.values()))

    @property
    def exact(self) -> bool:
        return all(gap.exact for gaps in self.texts.values() for gap in gaps)


def top_logprobs_of(models: Sequence[MillModel]) -> list[int | str] | None:
    """How many tokens each model is asked for at every position: the whole vocabulary where the baseline, which is the
    first, and another model give it, else as many as it names; 0 for a model that names none. None where there is nothing
    to compare."""
    named = [model.capabilities.top_logprobs for model in models]
    if named[0] == 0 or all(count == 0 for count in named[1:]):
        return None
    whole = named[0] is None and None in named[1:]
    return [(ALL if whole else MAX_TOP_LOGPROBS) if count is None else min(count, MAX_TOP_LOGPROBS) for count in named]


def forced_texts(baseline: CompletedRun, most_tokens: int, *, dialogs: bool) -> list[ForcedText]:
    """The baseline's answers: the first tokens of what it generated, or the choice it made.

    Where it generated nothing, as a model does that waits for a chat template, the end of the prompt takes its place.
    Without `dialogs`, as one of the engines scores none, a dialog of text becomes plain text.
    """
    texts = []
    for plan in baseline.run.plans:
        if plan.task.kind in (GENERATE, LOGLIKELIHOOD):
            for job in plan.jobs:
                context, text = job.requests[0].context, _continuation(job, most_tokens)
                plain = not isinstance(context, str) and not dialogs and not job.requests[0].media
                if plain:
                    context = "\n\n".join(message.text for message in context) + "\n\n"  # type: ignore[union-attr]
                if text is not None and not text.strip():
                    context, text = _halves(context, most_tokens)
                if text:
                    texts.append(ForcedText(f"{plan.task.name}/{job.sample.id}", context, text, plain))
    return texts


def _halves(context: Context, most_tokens: int) -> tuple[Context, str]:
    """The first half of a prompt, and the beginning of the second; a dialog has no halves."""
    if not isinstance(context, str):
        return context, ""
    middle = max(0, context.rfind(" ", 0, len(context) // 2 + 1))
    return context[:middle], context[middle:][: most_tokens * CHARS_A_TOKEN]


def _continuation(job: SampleState, most_tokens: int) -> str | None:
    """None where a request failed."""
    responses = [request.resps[0] for request in job.requests if request.resps]
    if len(responses) < len(job.requests) or any(response.failed for response in responses):
        return None
    if job.task.kind == GENERATE:
        return _cut(responses[0], most_tokens)
    scores = [float("-inf") if response.score is None else response.score for response in responses]
    return job.requests[scores.index(max(scores))].continuation


def _cut(response: Response, most_tokens: int) -> str:
    """The first tokens of an answer; a cut in the middle of a character goes back before it."""
    text = response.text or ""
    if response.tokens is None:
        return text[: most_tokens * CHARS_A_TOKEN]
    start = "".join(token.text for token in response.tokens[:most_tokens]).rstrip("\ufffd")
    return start if text.startswith(start) else text[: len(start)]


def read_gaps(baseline: CompletedRun, candidate: CompletedRun) -> ForcedGaps:
    """Position by position, where the tokens are the same on both sides."""
    first, second = _responses(baseline), _responses(candidate)
    found = ForcedGaps(asked=len(first))
    for name, a in first.items():
        b = second.get(name)
        if b is None or not a.tokens or not b.tokens:
            found.failed += 1
            found.error = found.error or a.error or (b.error if b else None) or "an engine named no tokens"
        elif [token.name for token in a.tokens] != [token.name for token in b.tokens]:
            found.other_tokens += 1
        else:
            found.texts[name] = _gaps(_Side(a, baseline.run.folder), _Side(b, candidate.run.folder))
    return found


def _responses(answered: CompletedRun) -> dict[str, Response]:
    scored = answered.outcome.scored[NAME]
    return {
        one.record.sample.id: one.record.responses[0][0] if one.record.responses[0] else Response(error="not answered")
        for one in scored
    }


class _Side:
    """One engine's scores of one text, with its distributions where it gave them."""

    def __init__(self, response: Response, folder: RunFolder) -> None:
        self.tokens: tuple[Token, ...] = response.tokens or ()
        self.whole = _load(folder, response.distribution) if response.distribution else None

    def known(self, other: _Side) -> list[Known]:
        """The log-probabilities of some tokens at each position: those it named or, of a whole vocabulary, its own likeliest
        and those that the other engine named."""
        if self.whole is None:
            return [dict(token.top) for token in self.tokens]
        found: list[Known] = []
        for row, token in zip(self.whole, other.tokens, strict=True):
            best = row.argsort()[-MAX_TOP_LOGPROBS:]
            named = {int(one) for one in best} | {one for one, _ in token.top if isinstance(one, int) and one < len(row)}
            found.append({one: float(row[one]) for one in named})
        return found


def _gaps(a: _Side, b: _Side) -> list[Gap]:
    if a.whole is None or b.whole is None:
        pairs = zip(a.known(b), b.known(a), a.tokens, b.tokens, strict=True)
        return [bounded_gap(first, second, one.name, one.logprob, other.logprob) for first, second, one, other in pairs]
    width = min(a.whole.shape[1], b.whole.shape[1])  # an embedding may be padded with tokens that no text has
    return exact_gaps(a.whole[:, :width], b.whole[:, :width], [token.id or 0 for token in a.tokens])


def _load(folder: RunFolder, name: str) -> Any:
    import numpy as np

    file = distribution_file(folder.path, name)
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read the distributions of {file}: {error}") from error
