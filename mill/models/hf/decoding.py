"""Generation: greedy or sampled, with stop strings, every row's answer independent of its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.response import Response, Token
from mill.models.hf.tokens import Prompt, Tokens
from mill.models.stops import cut_at_stops

if TYPE_CHECKING:
    import torch


def take_eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer. The model's other generation defaults (penalties, temperature) are put away:
    what a task asks for is what is decoded."""
    from transformers import GenerationConfig

    given = getattr(model, "generation_config", None)
    eos = getattr(given, "eos_token_id", None)
    ids = [] if eos is None else ([eos] if isinstance(eos, int) else list(eos))
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    model.generation_config = GenerationConfig()
    return ids


def generate(model: Any, tokens: Tokens, prompts: Sequence[Prompt], eos_ids: list[int]) -> list[Response]:
    """Answers to prompts that share decoding options, padded on the left and decoded together."""
    import torch

    width = max(len(prompt.ids) for prompt in prompts)
    ids = torch.full((len(prompts), width), eos_ids[0] if eos_ids else 0)
    mask = torch.zeros((len(prompts), width), dtype=torch.long)
    for place, prompt in enumerate(prompts):
        ids[place, width - len(prompt.ids) :] = torch.tensor(prompt.ids)
        mask[place, width - len(prompt.ids) :] = 1
    inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
    return decode(model, tokens.tokenizer, inputs, prompts, eos_ids)


def decode(model: Any, tokenizer: Any, inputs: Any, prompts: Sequence[Prompt], eos_ids: list[int]) -> list[Response]:
    """Answers to inputs on the model's device, padded on the left; `prompts` tell of each row what it asks."""
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    options = prompts[0].request.options
    stops, stop_ids = split_stops(tokenizer, options["until"])
    end_ids = [*eos_ids, *stop_ids]
    width = inputs["input_ids"].shape[1]
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=prompts[0].max_new_tokens,
        eos_token_id=end_ids or None,
        pad_token_id=end_ids[0] if end_ids else 0,
    )
    recorder = Recorder(options["logprobs"]) if "logprobs" in options else None
    steps = [*([recorder] if recorder else []), *sampling_steps(options, prompts)]
    with torch.inference_mode():
        out = model.generate(
            **inputs,
            generation_config=config,
            logits_processor=LogitsProcessorList(steps),
            stopping_criteria=StoppingCriteriaList([StopStrings(tokenizer, stops, width)] if stops else []),
            synced_gpus=False,  # ranks that compute together are kept in step around every pass
        )
    answers = out[:, width:].tolist()
    told = recorder.finish(out[:, -1]) if recorder else [None] * len(prompts)
    return [
        answer_of(tokenizer, prompt, ids, end_ids, stops, places)
        for prompt, ids, places in zip(prompts, answers, told, strict=True)
    ]


def split_stops(tokenizer: Any, until: Sequence[str]) -> tuple[list[str], list[int]]:
    """Stop strings that are special tokens are compared as ids, since they vanish from decoded text."""
    specials = set(tokenizer.all_special_tokens) | set(getattr(tokenizer, "added_tokens_encoder", {}))
    ids = [tokenizer.convert_tokens_to_ids(stop) for stop in until if stop in specials]
    return [stop for stop in until if stop and stop not in specials], ids


Place = tuple[float, tuple[tuple[int, float], ...]]
"""The log-probability of a chosen token, and the likeliest tokens at its place."""


def answer_of(
    tokenizer: Any, prompt: Prompt, ids: list[int], end_ids: list[int], stops: Sequence[str], places: list[Place] | None
) -> Response:
    ends = [place for place, token in enumerate(ids) if token in end_ids]
    kept = ids[: ends[0]] if ends else ids
    text = tokenizer.decode(kept, skip_special_tokens=True)
    text, stopped = cut_at_stops(text, stops)
    return Response(
        text=text,
        finish_reason="stop" if ends or stopped else "length",
        tokens=None if places is None else as_tokens(tokenizer, kept, places),
        prompt_tokens=prompt.length,
        output_tokens=len(kept) + bool(ends),
        truncated_tokens=prompt.truncated,
    )


def as_tokens(tokenizer: Any, ids: Sequence[int], places: Sequence[Place]) -> tuple[Token, ...]:
    """Ids with what was told of their places; there may be more places than ids, such as that of the end."""
    texts = tokenizer.batch_decode([[token] for token in ids])
    told = zip(ids, texts, places, strict=False)
    return tuple(Token(token, text, logprob, top) for token, text, (logprob, top) in told)


def place_of(logprobs: torch.Tensor, token: int, count: int) -> Place:
    """What a row of log-probabilities tells of the chosen token and its rivals."""
    best = logprobs.topk(min(count, len(logprobs)))
    return float(logprobs[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


class Recorder:
    """A logits processor that changes nothing and keeps the log-probabilities before penalties and sampling.

    A token is known one step after its distribution, so `finish` takes the last one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._places: list[list[Place]] = []
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._last is not None:
            self._note(self._last, input_ids[:, -1])
        self._last = scores.float().log_softmax(dim=-1)
        return scores

    def finish(self, last: torch.Tensor) -> list[list[Place]]:
        """For each row the places of its tokens."""
        if self._last is not None:
            self._note(self._last, last)
        return [list(row) for row in zip(*self._places, strict=True)]

    def _note(self, logprobs: torch.Tensor, tokens: torch.Tensor) -> None:
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        best = logprobs.topk(min(self.count, logprobs.shape[1]))
        tops = [
            tuple(zip(ids, values, strict=True)) for ids, values in zip(*(part.tolist() for part in best[::-1]), strict=True)
        ]
        self._places.append(list(zip(chosen, tops, strict=True)))


class StopStrings:
    """Ends a row as soon as its newest text holds a stop string; only the tail of the answer is decoded."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], prompt_width: int) -> None:
        self.tokenizer, self.stops, self.prompt_width = tokenizer, stops, prompt_width
        # A token may be less than a character (bytes of one), so the tail is counted in bytes.
        self.tail = max(len(stop.encode()) for stop in stops) + 4
        self.done: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        import torch

        if self.done is None:
            self.done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        tail = input_ids[:, max(self.prompt_width, input_ids.shape[1] - self.tail) :].tolist()
        open_rows = [place for place, done in enumerate(self.done.tolist()) if not done]
        texts = self.tokenizer.batch_decode([tail[place] for place in open_rows])
        for place, text in zip(open_rows, texts, strict=True):
            if any(stop in text for stop in self.stops):
                self.done[place] = True
        return self.done


def sampling_steps(options: Any, prompts: Sequence[Prompt]) -> list[Any]:
    """The penalty for repetition, then sampling as noise added to the logits of a greedy search.

    The largest of (logit + Gumbel noise) is distributed like a draw from the softmax, and with a generator for each row
    the draw depends on the request's own seed, not on which requests happen to share the batch.
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
    """A logits processor that turns a greedy choice into a sampled one, with one random stream for each row."""

    def __init__(self, seeds: Sequence[int]) -> None:
        import torch

        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        noise = [torch.empty(scores.shape[1]).exponential_(generator=generator) for generator in self.generators]
        return scores - torch.stack(noise).log().to(scores.device)
