"""Generation in plain batches: greedy or sampled, with stop strings; no answer depends on the batch composition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.reasoning import tags_of
from mill.api.response import Response
from mill.models.prefix.sampling import NOT_NUMBERS, sampling_steps
from mill.models.tokens.generated import TokenLogprobs, decoded_response
from mill.models.tokens.reasoning import StopDetector
from mill.models.tokens.stops import split_stops
from mill.models.tokens.tokenizer import Prompt, Tokens

if TYPE_CHECKING:
    import torch


def take_eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer. The model's other generation defaults (penalties, temperature) are removed: only the
    request's options count."""
    from transformers import GenerationConfig

    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = [] if eos is None else ([eos] if isinstance(eos, int) else list(eos))
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    model.generation_config = GenerationConfig()
    return ids


def generate(model: Any, tokens: Tokens, prompts: Sequence[Prompt], eos_ids: list[int]) -> list[Response]:
    """Answers to prompts that share decoding options, padded on the left and decoded together."""
    import torch

    longest = max(len(prompt.ids) for prompt in prompts)
    ids = torch.full((len(prompts), longest), eos_ids[0] if eos_ids else 0)
    mask = torch.zeros((len(prompts), longest), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt.ids) :] = torch.tensor(prompt.ids)
        mask[row, longest - len(prompt.ids) :] = 1
    inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
    return decode(model, tokens.tokenizer, inputs, prompts, eos_ids)


def decode(model: Any, tokenizer: Any, inputs: Any, prompts: Sequence[Prompt], eos_ids: list[int]) -> list[Response]:
    """Answers to inputs on the model's device, padded on the left; `prompts` has the request of each row."""
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    options = prompts[0].request.options
    stops, stop_ids = split_stops(tokenizer, options["until"])
    end_ids = [*eos_ids, *stop_ids]
    prompt_length = inputs["input_ids"].shape[1]
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=prompts[0].max_new_tokens,
        eos_token_id=end_ids or None,
        pad_token_id=end_ids[0] if end_ids else 0,
    )
    recorder = LogprobRecorder(options["logprobs"]) if "logprobs" in options else None
    checked = NumberCheck(len(prompts))
    steps = [checked, *([recorder] if recorder else []), *sampling_steps(options, prompts)]
    stopping = StopStrings(tokenizer, stops, prompts, prompt_length)
    with torch.inference_mode():
        out = model.generate(
            **inputs,
            generation_config=config,
            logits_processor=LogitsProcessorList(steps),
            stopping_criteria=StoppingCriteriaList([stopping] if stops else []),
            synced_gpus=False,  # ranks in lock-step are synchronized before every pass
        )
    answers = [ids[: stopping.lengths[row]] for row, ids in enumerate(out[:, prompt_length:].tolist())]
    logprobs = recorder.finish(out[:, -1]) if recorder else [None] * len(prompts)
    broken = checked.broken()
    return [
        Response(error=NOT_NUMBERS) if failed else decoded_response(tokenizer, prompt, ids, end_ids, stops, of_answer)
        for prompt, ids, of_answer, failed in zip(prompts, answers, logprobs, broken, strict=True)
    ]


class NumberCheck:
    """A logits processor that changes nothing and finds the rows with NaN or infinite scores: those are no answers."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._found: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        found = ~scores.amax(dim=-1).isfinite()  # NaN is the largest, if there is one
        self._found = found if self._found is None else self._found | found
        return scores

    def broken(self) -> list[bool]:
        found: list[bool] = [False] * self._rows if self._found is None else self._found.tolist()
        return found


class LogprobRecorder:
    """A logits processor that changes nothing and records the log-probabilities before penalties and sampling.

    A token is known one step after its distribution, so `finish` takes the last token.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._steps: list[list[TokenLogprobs]] = []
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._last is not None:
            self._record(self._last, input_ids[:, -1])
        self._last = scores.float().log_softmax(dim=-1)
        return scores

    def finish(self, last: torch.Tensor) -> list[list[TokenLogprobs]]:
        """For each row the log-probabilities of its tokens."""
        if self._last is not None:
            self._record(self._last, last)
        return [list(row) for row in zip(*self._steps, strict=True)]

    def _record(self, logprobs: torch.Tensor, tokens: torch.Tensor) -> None:
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        best = logprobs.topk(min(self.count, logprobs.shape[1]))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        tops = [tuple(zip(ids, values, strict=True)) for ids, values in rows]
        self._steps.append(list(zip(chosen, tops, strict=True)))


class StopStrings:
    """Ends a row as soon as its answer contains a stop string."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], prompts: Sequence[Prompt], prompt_length: int) -> None:
        self.prompt_length = prompt_length
        self.detectors = [
            StopDetector(tokenizer, stops, tags_of(prompt.request), opened=prompt.opened) for prompt in prompts
        ]
        self.done: torch.Tensor | None = None
        self.lengths: list[int | None] = [None] * len(prompts)
        """How many tokens each row had when it was ended; padding follows while others continue."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        import torch

        if self.done is None:
            self.done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        generated = input_ids[:, self.prompt_length :].tolist()
        for row, done in enumerate(self.done.tolist()):
            if not done and self.detectors[row].found(generated[row]):
                self.done[row], self.lengths[row] = True, len(generated[row])
        return self.done
