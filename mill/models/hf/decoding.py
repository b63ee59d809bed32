"""Generation: greedy or sampled, with stop strings, every row's answer independent of its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.response import Response
from mill.models.prefix.sampling import sampling_steps
from mill.models.tokens.generated import TokenLogprobs, decoded_response
from mill.models.tokens.stops import split_stops
from mill.models.tokens.tokenizer import Prompt, Tokens

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
    recorder = LogprobRecorder(options["logprobs"]) if "logprobs" in options else None
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
        decoded_response(tokenizer, prompt, ids, end_ids, stops, places)
        for prompt, ids, places in zip(prompts, answers, told, strict=True)
    ]


class LogprobRecorder:
    """A logits processor that changes nothing and keeps the log-probabilities before penalties and sampling.

    A token is known one step after its distribution, so `finish` takes the last one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._places: list[list[TokenLogprobs]] = []
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._last is not None:
            self._note(self._last, input_ids[:, -1])
        self._last = scores.float().log_softmax(dim=-1)
        return scores

    def finish(self, last: torch.Tensor) -> list[list[TokenLogprobs]]:
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
