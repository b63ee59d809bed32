"""Generation of one loaded model: by continuous batching where its layers allow it; other prompts in plain batches.

Greedy or sampled, with stop strings; no answer depends on the batch composition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mill.api.batching import Completed, Unit, empty_caches, free_memory, is_out_of_memory, run_batches
from mill.api.model import StreamContext, options_text
from mill.api.request import GENERATE, Request, tags_of
from mill.api.response import Response
from mill.models.device import MOST_PREFILL_TOKENS, generation_tokens, make_current, scoring_tokens, slot_tokens
from mill.models.hf.media_prefixes import Embedded, MediaPrefixes
from mill.models.hf.startup import Ahead
from mill.models.media.inputs import MediaInputs, MediaRow, decoded_ahead, media_groups
from mill.models.prefix import paths
from mill.models.prefix.continuous import ActiveSequence, ContinuousDecoder
from mill.models.prefix.fast_path import FastPath, Waiting
from mill.models.prefix.sampling import NOT_NUMBERS, sampling_steps
from mill.models.prefix.scoring import OUT_OF_MEMORY, NotShared, forward_rows, shortest_window, too_long
from mill.models.tokens.reasoning import (
    StopDetector,
    TokenLogprobs,
    decoded_response,
    opens_reasoning,
    split_stops,
    token_logprobs,
)
from mill.models.tokens.rows import Row, Span
from mill.models.tokens.tokenizer import Prompt, Tokens
from mill.support.clocks import DECODING, phase

if TYPE_CHECKING:
    import torch

MOST_SEQUENCES = 512  # decoded at once
Check = Callable[[ActiveSequence], None]


class Decoder:
    """`media` is made when the first request with media comes."""

    def __init__(
        self, fast: FastPath, tokens: Tokens, eos_ids: list[int], ahead: Ahead, media: Callable[[], MediaPrefixes]
    ) -> None:
        self.fast, self.model, self._tokens, self._ahead, self._media = fast, fast.model, tokens, ahead, media
        self.eos_ids = eos_ids

    def texts(self, requests: Sequence[Request], context: StreamContext, batch_size: int | None) -> Iterator[Completed]:
        prompts, errors = self._ahead.prompts(self._tokens, requests)
        yield from errors
        waiting = Waiting(self.fast, paths.DECODING, prompts, batch_size)
        with self.fast.falling_back():
            for prompt, outcome in self._continuous(prompts, context, batch_size, self._check):
                yield from waiting.answered(prompt, outcome)
        groups: dict[str, list[Unit]] = {}
        for prompt in waiting.left():
            unit = Unit([prompt.request], len(prompt.ids) + prompt.max_new_tokens, prompt)
            groups.setdefault(options_text(prompt.request), []).append(unit)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            with phase(DECODING):
                answers = generate(self.model, self._tokens, [unit.data for unit in batch], self.eos_ids)
            context.tokens.prompts += sum(len(unit.data.ids) - 1 for unit in batch)
            return [[answer] for answer in answers]

        limits = self.fast.limits(batch_size, generation_tokens(self.model))
        for group in groups.values():
            yield from run_batches(group, hook, limits=limits, healthy=context.canary is not None)

    def media(self, requests: Sequence[Request], context: StreamContext, batch_size: int | None) -> Iterator[Completed]:
        media = self._media()
        rows = [MediaRow(request, media.inputs.rendered(request), requests=[request]) for request in requests]
        waiting = Waiting(self.fast, paths.DECODING, rows, batch_size)
        for group in media.groups(rows):
            embedded: dict[Prompt, Embedded] = {}
            for one in group:
                if isinstance(one, tuple):
                    yield from waiting.answered(*one)
                elif one.exceeds_positions:
                    yield from waiting.answered(one.row, NotShared("positions of its media exceed those of its text"))
                else:
                    embedded[one.prompt()] = one

            def check(sequence: ActiveSequence, embedded: Mapping[Prompt, Embedded] = embedded) -> None:
                row = embedded[sequence.prompt].row
                self._verify(sequence, lambda: media.continued(row, sequence.generated))

            with self.fast.falling_back():
                for prompt, outcome in self._continuous(list(embedded), context, batch_size, check):
                    yield from waiting.answered(embedded[prompt].row, outcome)

        def answer(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            with phase(DECODING):
                answers = self._plain_media(media.inputs, rows, decoded)
            context.tokens.prompts += sum((response.prompt_tokens or 1) - 1 for response in answers)
            return [[response] for response in answers]

        limits = self.fast.limits(batch_size, generation_tokens(self.model))
        for units in media_groups(waiting.left()):
            with decoded_ahead(media.inputs, units, GENERATE, answer) as hook:
                yield from run_batches(units, hook, limits=limits, healthy=context.canary is not None)

    def _continuous(
        self, prompts: Sequence[Prompt], context: StreamContext, batch_size: int | None, check: Check
    ) -> Iterator[tuple[Prompt, list[Response] | NotShared]]:
        """Every prompt with its answer, or why it must be decoded in plain batches; none where the fast path is off. With
        half as many sequences at once whenever memory runs out."""
        if self.fast.disabled:
            return
        make_current(self.model.device)
        window = shortest_window(self.model.config.get_text_config())
        fitting = []
        for prompt in prompts:
            if window is not None and len(prompt.ids) + prompt.max_new_tokens >= window:
                yield prompt, too_long(window)
            else:
                fitting.append(prompt)
        self.fast.longest = max((len(prompt.ids) for prompt in fitting), default=0)
        for group in self._groups(fitting):
            left, most = dict.fromkeys(group), batch_size or MOST_SEQUENCES
            while left:
                if not most:
                    yield from ((prompt, NotShared(OUT_OF_MEMORY)) for prompt in left)
                    break
                decoder = self.continuous(context, check)
                try:
                    for prompt, answer in decoder.run(list(left), most):
                        del left[prompt]
                        # What is not a number in one slot may reach others: the plain path says whose it is.
                        yield prompt, NotShared(NOT_NUMBERS) if answer.error == NOT_NUMBERS else [answer]
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    error.__traceback__ = None  # which references the failed pass's tensors
                    most = min(most, len(left)) // 2
                del decoder  # nothing refers back to it, so its memory is free without a garbage collection
                free_memory() if left else empty_caches()

    def _groups(self, prompts: list[Prompt]) -> list[list[Prompt]]:
        """On a CPU sequences of very different lengths would reserve the slot of the longest for all."""
        groups: dict[int, list[Prompt]] = {}
        for prompt in prompts:
            length = 0 if self.model.device.type == "cuda" else prompt.max_new_tokens.bit_length()
            groups.setdefault(length, []).append(prompt)
        return list(groups.values())

    def continuous(self, context: StreamContext, check: Check | None = None) -> ContinuousDecoder:
        pass_tokens = min(scoring_tokens(self.model, logits_per_token=0.0), MOST_PREFILL_TOKENS)
        return ContinuousDecoder(
            self.model,
            self._tokens.tokenizer,
            self.eos_ids,
            tokens=slot_tokens(self.model, pass_tokens),
            pass_tokens=pass_tokens,
            count=context.tokens,
            check=check or self._check,
        )

    def _check(self, sequence: ActiveSequence) -> None:
        ids, generated = sequence.prompt.ids, sequence.generated
        row = Row([*ids, *generated[:-1]], [Span(len(ids) - 1, generated)], [])
        self._verify(sequence, lambda: forward_rows(self.model, [row])[0][0])

    def _verify(self, sequence: ActiveSequence, logits: Callable[[], torch.Tensor]) -> None:
        """Teacher-forced, each token of a text must be the most likely one, or nearly so. `logits` are those of its tokens
        by the plain path."""
        prompt, generated = sequence.prompt, sequence.generated
        length = len(prompt.ids)
        due = self.fast.is_due(paths.DECODING, length) or self.fast.samples(paths.DECODING, prompt.request.key)
        if not due or sequence.sampler.broken:
            return

        def plain() -> list[float]:
            return sequence.sampler.replayed().gaps(logits(), prompt.ids, generated)

        self.fast.verify(paths.DECODING, length, [0.0] * len(generated), plain)

    def _plain_media(self, inputs: MediaInputs, rows: Sequence[MediaRow], decoded: Sequence[list[Any]]) -> list[Response]:
        """Answers to rows of one shape that share decoding options."""
        batch = inputs.batch(rows, decoded, side="left", model=self.model)
        lengths = batch["attention_mask"].sum(dim=1).tolist()
        max_new = int(rows[0].request.options["max_gen_toks"])
        prompts = [
            Prompt(row.request, ids[-length:], 0, max_new, opens_reasoning(row.request, row.text))
            for row, ids, length in zip(rows, batch["input_ids"].tolist(), lengths, strict=True)
        ]
        needed = max(lengths) + max_new
        if needed > self._tokens.window:
            if len(rows) > 1:
                raise ContextTooSmall(needed)  # each is retried alone, so that only the long ones fail
            return [Response(error=inputs.too_long(needed))]
        return decode(self.model, inputs.processor.tokenizer, batch, prompts, self.eos_ids)


class ContextTooSmall(RuntimeError):
    """A batch in which a request does not fit the context."""


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
    recorder = StepRecorder(len(prompts), options.get("logprobs"))
    steps = [recorder, *sampling_steps(options, prompts)]
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
    recorder.record(out[:, -1])
    results = zip(prompts, answers, recorder.logprobs, recorder.broken(), strict=True)
    return [
        Response(error=NOT_NUMBERS)
        if broken
        else decoded_response(tokenizer, prompt, ids, end_ids, stops, None if recorder.count is None else logprobs)
        for prompt, ids, logprobs, broken in results
    ]


class StepRecorder:
    """A logits processor that changes nothing. It finds rows with NaN or infinite scores, which are no answers, and records
    the log-probabilities before penalties and sampling, with the `count` highest of each position, if that is set."""

    def __init__(self, rows: int, count: int | None) -> None:
        self.count = count
        self.logprobs: list[list[TokenLogprobs]] = [[] for _ in range(rows)]
        self._broken: torch.Tensor | None = None
        self._distributions: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.record(input_ids[:, -1])
        broken = ~scores.amax(dim=-1).isfinite()  # NaN is the largest, if there is one
        self._broken = broken if self._broken is None else self._broken | broken
        if self.count is not None:
            self._distributions = scores.float().log_softmax(dim=-1)
        return scores

    def record(self, tokens: torch.Tensor) -> None:
        """The tokens that were chosen by the last scores, which are known one step later."""
        if self._distributions is not None and self.count is not None:
            for row, distribution, token in zip(self.logprobs, self._distributions, tokens.tolist(), strict=True):
                row.append(token_logprobs(distribution, token, self.count))

    def broken(self) -> list[bool]:
        return [False] * len(self.logprobs) if self._broken is None else self._broken.tolist()


class StopStrings:
    """Ends a row as soon as its answer contains a stop string."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], prompts: Sequence[Prompt], prompt_length: int) -> None:
        self.prompt_length = prompt_length
        self.detectors = [
            StopDetector(tokenizer, stops, tags_of(prompt.request), opened=prompt.opened) for prompt in prompts
        ]
        self.lengths: list[int | None] = [None] * len(prompts)
        """How many tokens each row had when it was ended; padding follows while others continue."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        import torch

        for row, generated in enumerate(input_ids[:, self.prompt_length :].tolist()):
            if self.lengths[row] is None and self.detectors[row].found(generated):
                self.lengths[row] = len(generated)
        return torch.tensor([length is not None for length in self.lengths], device=input_ids.device)
