"""The `vllm` backend: one model on vLLM in this process, with token ids in and log-probabilities out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from mill.api.batching import BatchLimits, Completed, Unit, checked, free_memory, run_batches
from mill.api.engine import local_engine
from mill.api.errors import ModelError, SpecError
from mill.api.message import VIDEO
from mill.api.model import ModelCapabilities, StreamContext, cannot_serve
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request
from mill.api.response import Response, Token
from mill.models.files import TEXT_ONLY, ModelFiles, locate
from mill.models.media.inputs import (
    DEFAULT_VIDEO_FRAMES,
    AnswerRows,
    MediaInputs,
    MediaRow,
    decoded_ahead,
    media_unit,
    split_media,
    video_metadata,
)
from mill.models.token_model import TokenModel
from mill.models.tokens.reasoning import (
    decoded_text,
    marks_of,
    opens_reasoning,
    read_text,
    special_marks,
    stopped_too_early,
    with_reasoning_tokens,
)
from mill.models.tokens.rows import Row, row_units, span_response
from mill.models.tokens.scores import requested_top_logprobs
from mill.models.tokens.tokenizer import Prompt, Tokens, prompt_units, template_text
from mill.support.secrets import is_secret
from mill.support.terminal import describe


def _environment() -> dict[str, str]:
    """The variables that change how vLLM computes."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("VLLM_") and not is_secret(name)}


SAMPLED_LOGPROBS = 20  # vLLM's default maximum for a token
MAX_BATCH = 512  # requests a call: enough for continuous batching, few enough to record responses early


class VLLMModel(TokenModel):
    """The engine starts at the first request. All other arguments are passed to vLLM's `LLM`."""

    renders_before_loading = False

    def __init__(
        self,
        path: str,
        dtype: str = "auto",
        gpu_memory_utilization: float = 0.9,
        tensor_parallel_size: int = 1,
        max_model_len: int | None = None,
        batch_size: int | None = None,
        revision: str | None = None,
        trust_remote_code: bool = True,
        use_chat_template: bool = False,
        add_bos_token: bool | None = None,
        modalities: list[str] | tuple[str, ...] = TEXT_ONLY,
        video_frames: int = DEFAULT_VIDEO_FRAMES,
        **engine: Any,
    ) -> None:
        for name in ("reasoning_parser", "tool_call_parser"):
            if name in engine:
                option = f"--{name.replace('_', '-')}"
                raise SpecError(
                    f"vllm takes no {name}: run `vllm serve {path} {option} ...` and evaluate the server's address"
                )
        self.files = ModelFiles(locate(path, revision), trust_remote_code=trust_remote_code, modalities=modalities)
        self.batch_size, self.use_chat_template, self.add_bos_token = batch_size, use_chat_template, add_bos_token
        self.accelerators, self.video_frames = tensor_parallel_size, video_frames
        self.engine_arguments = {
            "dtype": dtype,
            "gpu_memory_utilization": gpu_memory_utilization,
            "tensor_parallel_size": tensor_parallel_size,
            "max_model_len": max_model_len,
            **engine,
        }
        self._llm: Any = None
        self.use_engine(local_engine("vllm", "torch", environment=_environment()))
        self._reasons = False
        """Whether an answer began with reasoning: stop strings are then applied here, to the answer alone."""

    @property
    def model_name(self) -> str:
        return self.files.source.name

    def identity(self) -> dict[str, Any]:
        engine = {name: value for name, value in self.engine_arguments.items() if name != "gpu_memory_utilization"}
        return {
            "backend": "vllm",
            "weights": self.files.fingerprint(),
            "engine": engine,
            "use_chat_template": self.use_chat_template,
            "add_bos_token": self.add_bos_token,
            **({} if self.video_frames == DEFAULT_VIDEO_FRAMES else {"video_frames": self.video_frames}),
        }

    @cached_property
    def capabilities(self) -> ModelCapabilities:  # type: ignore[override]
        window = self.engine_arguments["max_model_len"]
        return ModelCapabilities(
            self.files.modalities,
            window,
            supports_logprobs=True,
            supports_chat_template=True,
            supports_tools=True,
            top_logprobs=SAMPLED_LOGPROBS,
        )

    @property
    def llm(self) -> Any:
        """The running engine."""
        if self._llm is None:
            from vllm import LLM

            arguments = {
                **self.files.source.arguments(),
                **self.engine_arguments,
                "trust_remote_code": self.files.trust_remote_code,
            }
            try:
                self._llm = LLM(model=arguments.pop("pretrained_model_name_or_path"), disable_log_stats=True, **arguments)
            except Exception as error:  # vLLM raises many kinds, and logs the reason above
                raise ModelError(f"vLLM did not start on {self.model_name}: {describe(error)}") from error
        return self._llm

    @property
    def tokenizer(self) -> Any:
        return self.files.tokenizer

    @cached_property
    def tokens(self) -> Tokens:
        config = self.llm.llm_engine.model_config
        return Tokens(
            self.tokenizer,
            window=config.max_model_len - 2,  # a scored prompt also needs its last token and one generated token
            add_bos=self.add_bos_token,
            model_type=str(getattr(config.hf_text_config, "model_type", "")),
            chat=self.use_chat_template,
            processor=self.files.processor if self.files.multimodal else None,
        )

    @cached_property
    def media(self) -> MediaInputs:
        return MediaInputs(self.files.processor, self.tokens, video_frames=self.video_frames)

    def set_concurrency(self, concurrency: int | None) -> None:
        self.batch_size = concurrency or self.arguments.get("batch_size")

    def weight_bytes(self) -> int | None:
        return self.files.source.size

    def load(self) -> None:
        _ = self.tokens

    @property
    def chat_template(self) -> str:
        """Known without the engine."""
        return template_text((self.files.processor if self.files.multimodal else self.tokenizer).chat_template)

    def clean(self) -> None:
        if self._llm is not None:
            shutdown = getattr(getattr(self._llm.llm_engine, "engine_core", None), "shutdown", None)
            if shutdown is not None:
                shutdown()
        self._llm = None
        free_memory()

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Completed]:
        limits, healthy = BatchLimits(requests=self.batch_size or MAX_BATCH), context.canary is not None
        if kind == ROLLING:
            units = [Unit([request], len(request.text), self.tokens.windows(request)) for request in requests]
            yield from run_batches(units, checked(ROLLING, self._score_documents), limits=limits, healthy=healthy)
            return
        if kind not in (LOGLIKELIHOOD, GENERATE, MULTI_ROUND):
            raise cannot_serve(self, kind)
        texts, shown, errors = split_media(requests, lambda: self.media)
        yield from errors
        if kind == LOGLIKELIHOOD:
            fitting, pairs, errors = self.tokens.scorable(texts)
            units, hook, answer = row_units(fitting, pairs), self._score, self._score_media_rows
            rows = self.media.rows(shown, share=False) if shown else []
        else:
            prompts, errors = self.tokens.answerable(texts)
            units, hook, answer = prompt_units(prompts), self._generate, self._generate_rows
            rows = [MediaRow(request, self.media.rendered(request)) for request in shown]
        yield from errors
        yield from run_batches(units, checked(kind, hook), limits=limits, healthy=healthy)
        yield from self._media_responses(kind, rows, answer, limits, context)

    def _media_responses(
        self, kind: str, rows: list[MediaRow], answer: AnswerRows, limits: BatchLimits, context: StreamContext
    ) -> Iterator[Completed]:
        """In one group, as nothing is padded: rows with the same media follow each other, for vLLM's caches of media and of
        prefixes. Units of equal cost keep their order."""
        cost = max((row.cost for row in rows), default=0)
        units = [media_unit(row, cost) for row in sorted(rows, key=lambda row: (row.digests, row.text))]
        if units:
            with decoded_ahead(self.media, units, kind, answer) as hook:
                yield from run_batches(units, hook, limits=limits, healthy=context.canary is not None)

    def _call(self, ids: Sequence[list[int]], params: Any) -> list[Any]:
        """One call of the engine; `params` is one set of sampling parameters or one for each prompt."""
        return list(self.llm.generate([{"prompt_token_ids": prompt} for prompt in ids], params, use_tqdm=False))

    def _generate(self, batch: list[Unit]) -> list[list[Response]]:
        prompts: list[Prompt] = [unit.data for unit in batch]
        params = [sampling(prompt.request, stops=not (self._reasons or prompt.opened)) for prompt in prompts]
        outputs = self._call([prompt.ids for prompt in prompts], params)
        responses = [
            [as_text(prompt.request, output, self.tokenizer, prompt.truncated, opened=prompt.opened)]
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        early = [index for index, (response,) in enumerate(responses) if stopped_too_early(prompts[index].request, response)]
        if early and not self._reasons:
            self._reasons = True
            for index, response in zip(early, self._generate([batch[index] for index in early]), strict=True):
                responses[index] = response
        return responses

    # Media: vLLM runs the processor itself, on the text with its placeholders.

    def _call_media(self, rows: Sequence[MediaRow], decoded: Sequence[list[Any]], params: Any) -> list[Any]:
        prompts = [
            {"prompt": self._without_bos(row.text), "multi_modal_data": media_by_kind(row, loaded)}
            for row, loaded in zip(rows, decoded, strict=True)
        ]
        return list(self.llm.generate(prompts, params, use_tqdm=False))

    def _without_bos(self, text: str) -> str:
        """Without the template's BOS, where vLLM's tokenization of the text adds one."""
        bos = self.tokenizer.bos_token
        adds_bos = bos and self.tokenizer("a")["input_ids"][:1] == [self.tokenizer.bos_token_id]
        return text.removeprefix(bos) if adds_bos else text

    def _generate_rows(self, rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
        outputs = self._call_media(rows, decoded, [sampling(row.request) for row in rows])
        return [
            [as_text(row.request, output, self.tokenizer, opened=opens_reasoning(row.request, row.text))]
            for row, output in zip(rows, outputs, strict=True)
        ]

    def _score_media_rows(self, rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
        """A row is a whole text that ends with the scored tokens."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        responses = []
        for row, output in zip(rows, self._call_media(rows, decoded, params), strict=True):
            span = row.spans[0]
            score, greedy = span_score(output.prompt_logprobs[-len(span) :], span)
            response = Response(
                score=score,
                is_greedy=greedy,
                prompt_tokens=len(output.prompt_token_ids) - len(span),
                output_tokens=len(span),
            )
            responses.append([response] * len(row.requests))
        return responses

    def _score(self, batch: list[Unit]) -> list[list[Response]]:
        """Continuations of one token are scored from the distribution after their prompt, which can use the engine's prefix
        cache; longer ones, and tokens outside its top_logprobs, from prompt log-probabilities."""
        rows: list[Row] = [unit.data for unit in batch]
        short = [row for row in rows if one_token(row)]
        answers: dict[tuple[Row, int], Response] = {}
        for row, top in zip(short, self._next_tokens(short) if short else [], strict=True):
            for index, span in enumerate(row.spans):
                if span.tokens[0] in top:
                    answers[row, index] = span_response(row, span, *top[span.tokens[0]])
        missing = [(row, index) for row in rows for index in range(len(row.spans)) if (row, index) not in answers]
        counts = [top_logprobs_of(row.requests[index]) for row, index in missing]
        scored = self._prompt_logprobs([row.ids + row.spans[index].tokens[-1:] for row, index in missing], counts)
        for (row, index), positions, count in zip(missing, scored, counts, strict=True):
            span = row.spans[index]
            continuation = positions[span.start + 1 : span.start + 1 + len(span.tokens)]
            score, greedy = span_score(continuation, span.tokens)
            tokens = with_top_logprobs(span.tokens, continuation) if count else None
            answers[row, index] = replace(span_response(row, span, score, greedy), tokens=tokens)
        return [[answers[row, index] for index in range(len(row.spans))] for row in rows]

    def _next_tokens(self, rows: Sequence[Row]) -> list[dict[int, tuple[float, bool]]]:
        """For each row the top next tokens: (log-probability, whether it is the argmax)."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=SAMPLED_LOGPROBS, detokenize=False)
        outputs = self._call([row.ids for row in rows], params)
        return [
            {token: (entry.logprob, entry.rank == 1) for token, entry in output.outputs[0].logprobs[0].items()}
            for output in outputs
        ]

    def _prompt_logprobs(self, prompts: Sequence[list[int]], top_logprobs: Sequence[int]) -> list[list[Any]]:
        """For each position of each prompt, its token and `top_logprobs` others by id; the first position has none."""
        from vllm import SamplingParams

        if not prompts:
            return []
        params = [
            SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=count, detokenize=count > 0)
            for count in top_logprobs
        ]
        return [output.prompt_logprobs for output in self._call(prompts, params)]

    def _score_documents(self, batch: list[Unit]) -> list[list[Response]]:
        windows: list[tuple[int, Row]] = [(index, row) for index, unit in enumerate(batch) for row in unit.data]
        scored = self._prompt_logprobs([row.ids + row.spans[0].tokens[-1:] for _, row in windows], [0] * len(windows))
        totals, counts = [0.0] * len(batch), [0] * len(batch)
        for (index, row), positions in zip(windows, scored, strict=True):
            span = row.spans[0]
            totals[index] += span_score(positions[span.start + 1 :], span.tokens)[0]
            counts[index] += len(span.tokens)
        return [[Response(score=total, prompt_tokens=count)] for total, count in zip(totals, counts, strict=True)]


def span_score(positions: Sequence[Any], tokens: Sequence[int]) -> tuple[float, bool]:
    """The sum of the log-probabilities of tokens, and whether each is the argmax of its position."""
    entries = [position[token] for position, token in zip(positions, tokens, strict=True)]
    return sum(entry.logprob for entry in entries), all(entry.rank == 1 for entry in entries)


def sampling(request: Request, *, stops: bool = True) -> Any:
    """Without `stops` the engine generates to the end of the answer, which mill cuts: they may be in the reasoning too."""
    from vllm import SamplingParams

    options = request.options
    sampled = {name: options[name] for name in ("top_p", "top_k", "repetition_penalty") if options.get(name)}
    if not request.deterministic:
        sampled["seed"] = request.seed % 2**31
    return SamplingParams(
        max_tokens=options["max_gen_toks"],
        temperature=options["temperature"],
        stop=[*options["until"]] or None if stops else None,
        logprobs=options.get("logprobs"),
        **sampled,
    )


def as_text(request: Request, output: Any, tokenizer: Any, truncated: int = 0, *, opened: bool) -> Response:
    completion, marks = output.outputs[0], marks_of(request)
    text = completion.text
    if special_marks(tokenizer, marks):  # which the engine leaves out
        text = decoded_text(tokenizer, completion.token_ids, marks)
    response = read_text(
        request,
        text,
        request.options["until"],
        opened=opened,
        finish=completion.finish_reason,
        tokens=with_top_logprobs(completion.token_ids, completion.logprobs) if completion.logprobs else None,
        prompt_tokens=len(output.prompt_token_ids),
        output_tokens=len(completion.token_ids),
        truncated_tokens=truncated,
    )
    return with_reasoning_tokens(tokenizer, request, response, completion.token_ids)


def media_by_kind(row: MediaRow, decoded: Sequence[Any]) -> dict[str, list[Any]]:
    """A row's media in vLLM's format: a video is an array of frames with their times."""
    import numpy as np

    by_kind: dict[str, list[Any]] = {}
    for media, content in zip(row.request.media, decoded, strict=True):
        if media.kind == VIDEO:
            times = {name: value for name, value in video_metadata(content).items() if value is not None}
            content = np.stack(content.frames), {**times, "do_sample_frames": False}
        by_kind.setdefault(media.kind, []).append(content)
    return by_kind


def one_token(row: Row) -> bool:
    """Whether the distribution after the row scores all of its requests."""
    if any(map(top_logprobs_of, row.requests)):
        return False
    return all(len(span.tokens) == 1 and span.start == len(row.ids) - 1 for span in row.spans)


def top_logprobs_of(request: Request) -> int:
    return requested_top_logprobs(request, SAMPLED_LOGPROBS, "vLLM")


def with_top_logprobs(ids: Sequence[int], positions: Sequence[Any]) -> tuple[Token, ...]:
    """Tokens with their top_logprobs, to which vLLM adds the token itself where it is not among them."""
    tokens = []
    for token, entries in zip(ids, positions, strict=True):
        best = sorted(((other, entry.logprob) for other, entry in entries.items()), key=lambda pair: -pair[1])
        tokens.append(Token(token, entries[token].decoded_token or "", entries[token].logprob, tuple(best)))
    return tuple(tokens)
