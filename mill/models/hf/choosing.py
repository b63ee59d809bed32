"""Which token comes next: greedy, or sampled from a stream of its own for every row; and when an answer is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.response import Response
from mill.models.hf import decoding
from mill.models.hf.tokens import Prompt

if TYPE_CHECKING:
    import torch


class Chooser:
    """The rules of one row: its options, its random stream, its stops."""

    def __init__(self, tokenizer: Any, prompt: Prompt, eos_ids: list[int]) -> None:
        self.tokenizer, self.prompt = tokenizer, prompt
        options = prompt.request.options
        self.stops, stop_ids = decoding.split_stops(tokenizer, options["until"])
        self.end_ids = [*eos_ids, *stop_ids]
        self.count: int | None = options.get("logprobs")
        self.steps = decoding.sampling_steps(options, [prompt])
        self.places: list[decoding.Place] = []
        # A token may be less than a character (bytes of one), so the tail that is decoded is counted in bytes.
        self.tail = max((len(stop.encode()) for stop in self.stops), default=0) + 4

    def choose(self, logits: torch.Tensor, seen: Sequence[int]) -> int:
        """The next token from a row of logits, after the tokens seen so far."""
        import torch

        scores = logits[None].float()
        if self.steps:
            ids = torch.tensor([list(seen)], device=logits.device)
            for step in self.steps:
                scores = step(ids, scores)
        token = int(scores.argmax())
        self.note(logits, token)
        return token

    def note(self, logits: torch.Tensor, token: int) -> None:
        """Keep the log-probabilities of a place, before penalties and sampling, where they were asked for."""
        if self.count is not None:
            self.places.append(decoding.place_of(logits.float().log_softmax(dim=-1), token, self.count))

    @property
    def plain(self) -> bool:
        return not self.steps and self.count is None

    def ends(self, written: Sequence[int]) -> bool:
        """Whether the newest token completes the answer."""
        if written[-1] in self.end_ids:
            return True
        if not self.stops:
            return False
        text = self.tokenizer.decode(written[-self.tail :])
        return any(stop in text for stop in self.stops)

    def response(self, written: list[int]) -> Response:
        places = self.places if self.count is not None else None
        return decoding.answer_of(self.tokenizer, self.prompt, written, self.end_ids, self.stops, places)


def choose_all(choosers: Sequence[Chooser], logits: torch.Tensor, seen: Sequence[Sequence[int]]) -> list[int]:
    """One token for each row; those that are plainly greedy are taken together."""
    best: list[int] = logits.argmax(dim=-1).tolist()
    return [
        token if chooser.plain else chooser.choose(row, before)
        for chooser, row, token, before in zip(choosers, logits, best, seen, strict=True)
    ]
