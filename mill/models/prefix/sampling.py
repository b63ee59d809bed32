"""Choosing the next token, greedy or sampled with a random generator for each sequence, and detecting the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.request import tags_of
from mill.api.response import Response
from mill.models.tokens.reasoning import StopDetector, TokenLogprobs, decoded_response, split_stops, token_logprobs
from mill.models.tokens.tokenizer import Prompt

if TYPE_CHECKING:
    import torch


NOT_NUMBERS = "the scores of the next token are not numbers (NaN or infinite)"


class Sampler:
    """The decoding options of one sequence: sampling, random generator, stop strings."""

    def __init__(self, tokenizer: Any, prompt: Prompt, eos_ids: list[int]) -> None:
        self.tokenizer, self.prompt = tokenizer, prompt
        options = prompt.request.options
        self.stops, stop_ids = split_stops(tokenizer, options["until"])
        self.end_ids = [*eos_ids, *stop_ids]
        self.count: int | None = options.get("logprobs")
        self.steps = sampling_steps(options, [prompt])
        self.logprobs: list[TokenLogprobs] = []
        self.broken = False
        self.stop_detector = StopDetector(tokenizer, self.stops, tags_of(prompt.request), opened=prompt.opened)

    def sample(self, logits: torch.Tensor, seen: Sequence[int]) -> int:
        """The next token by its logits, after the tokens seen so far."""
        import torch

        scores = logits[None].float()
        if self.steps:
            ids = torch.tensor([list(seen)], device=logits.device)
            for step in self.steps:
                scores = step(ids, scores)
        token = int(scores.argmax())
        self.record_logprobs(logits, token)
        return token

    def record_logprobs(self, logits: torch.Tensor, token: int) -> None:
        """Store the log-probabilities of this position, before penalties and sampling, if they were requested."""
        if self.count is not None:
            self.logprobs.append(token_logprobs(logits.float().log_softmax(dim=-1), token, self.count))

    def replayed(self) -> Sampler:
        """A sampler of the same prompt that draws the same numbers again."""
        return Sampler(self.tokenizer, self.prompt, self.end_ids)

    def gaps(self, logits: torch.Tensor, before: Sequence[int], generated: Sequence[int]) -> list[float]:
        """How far each token of a text is from the one that these logits, of (tokens, vocabulary), would have chosen."""
        import torch

        chosen = torch.tensor(generated, device=logits.device)
        if not self.steps:
            found: list[float] = (logits.amax(dim=-1).float() - logits.gather(1, chosen[:, None])[:, 0].float()).tolist()
            return found
        gaps = []
        for index, token in enumerate(generated):
            ids = torch.tensor([[*before, *generated[:index]]], device=logits.device)
            scores, cut = logits[index][None].float(), 0.0
            for step in self.steps:
                earlier, scores = scores, step(ids, scores)
                if not scores[0, token].isfinite() and earlier[0, token].isfinite():  # just below the top k or p
                    least = scores[scores.isfinite()].min()
                    cut, scores[0, token] = float(least - earlier[0, token]), least
            gaps.append(max(cut, float(scores.max() - scores[0, token])))
        return gaps

    @property
    def plain(self) -> bool:
        return not self.steps and self.count is None

    def ends(self, generated: Sequence[int]) -> bool:
        """Whether the last token completes the answer, or there can be none."""
        return self.broken or generated[-1] in self.end_ids or self.stop_detector.found(generated)

    def response(self, generated: list[int]) -> Response:
        if self.broken:
            return Response(error=NOT_NUMBERS)
        logprobs = self.logprobs if self.count is not None else None
        return decoded_response(self.tokenizer, self.prompt, generated, self.end_ids, self.stops, logprobs)


def sample_all(samplers: Sequence[Sampler], logits: torch.Tensor, seen: Sequence[Sequence[int]]) -> list[int]:
    """One token for each sequence; the argmax of all greedy ones is taken at once."""
    largest, best = (column.tolist() for column in logits.max(dim=-1))  # NaN is the largest, if there is one
    for sampler, value in zip(samplers, largest, strict=True):
        sampler.broken = not math.isfinite(value)
    return [
        token if sampler.plain or sampler.broken else sampler.sample(row, before)
        for sampler, row, token, before in zip(samplers, logits, best, seen, strict=True)
    ]


def sampling_steps(options: Any, prompts: Sequence[Prompt]) -> list[Any]:
    """The repetition penalty, then sampling as noise added to the logits of a greedy search.

    The argmax of (logit + Gumbel noise) is distributed like a draw from the softmax. With a generator for each sequence the
    draw depends on the request's seed, not on the batch composition.
    """
    from transformers import (
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    steps: list[Any] = []
    if options.get("repetition_penalty", 1.0) != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(float(options["repetition_penalty"])))
    temperature = options["temperature"]
    if not temperature:
        return steps
    steps.append(TemperatureLogitsWarper(float(temperature)))
    if options.get("top_k"):
        steps.append(TopKLogitsWarper(int(options["top_k"])))
    if options.get("top_p") and options["top_p"] < 1:
        steps.append(TopPLogitsWarper(float(options["top_p"])))
    return [*steps, GumbelNoise([prompt.request.seed for prompt in prompts])]


class GumbelNoise:
    """A logits processor that turns greedy decoding into sampling, with one random generator for each row."""

    def __init__(self, seeds: Sequence[int]) -> None:
        import torch

        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        noise = [torch.empty(scores.shape[1]).exponential_(generator=generator) for generator in self.generators]
        return scores - torch.stack(noise).log().to(scores.device)
