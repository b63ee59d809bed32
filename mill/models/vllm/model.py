"""One model on vLLM in this process, with token ids in and log-probabilities out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from mill.api.batching import BatchLimits, Completed, Unit, checked, free_memory, run_batches
from mill.api.errors import ModelError
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
)
from mill.models.token_model import TokenModel
from mill.models.tokens.chat_template import template_text
from mill.models.tokens.reasoning import opens_reasoning, stopped_too_early
from mill.models.tokens.rows import Row, row_units
from mill.models.tokens.tokenizer import Prompt, Tokens, prompt_units
from mill.models.vllm.answers import (
    SAMPLED_LOGPROBS,
    as_score,
    as_text,
    media_by_kind,
    one_token,
    sampling,
    top_logprobs_of,
    with_top_logprobs,
)
from mill.models.vllm.parsers import Parsers
from mill.support.terminal import describe

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
        reasoning_parser: str | None = None,
        tool_call_parser: str | None = None,
        **engine: Any,
    ) -> None:
        self.files = ModelFiles(locate(path, revision), trust_remote_code=trust_remote_code, modalities=modalities)
        self.batch_size, self.use_chat_template, self.add_bos_token = batch_size, use_chat_template, add_bos_token
        self.accelerators, self.video_frames = tensor_parallel_size, video_frames
        self.engine = {
            "dtype": dtype,
            "gpu_memory_utilization": gpu_memory_utilization,
            "tensor_parallel_size": tensor_parallel_size,
            "max_model_len": max_model_len,
            **engine,
        }
        self.parsers = Parsers(reasoning_parser, tool_call_parser)
        self._llm: Any = None
        self._reasons = False
        """Whether an answer began with reasoning: stop strings are then applied here, to the answer alone."""

    @property
    def model_name(self) -> str:
        return self.files.source.name

    def identity(self) -> dict[str, Any]:
        engine = {name: value for name, value in self.engine.items() if name != "gpu_memory_utilization"}
        return {
            "backend": "vllm",
            "weights": self.files.fingerprint(),
            "engine": engine,
            "use_chat_template": self.use_chat_template,
            "add_bos_token": self.add_bos_token,
            **self.parsers.names,
        }

    @cached_property
    def capabilities(self) -> ModelCapabilities:  # type: ignore[override]
        window = self.engine["max_model_len"]
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

            self.parsers.check(self.tokenizer)
            arguments = {**self.files.source.arguments(), **self.engine, "trust_remote_code": self.files.trust_remote_code}
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

    def check(self, request: Request) -> list[str]:
        self.parsers.check_request(request)
        return super().check(request)

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
        params = [self._sampling(prompt.request, stops=not (self._reasons or prompt.opened)) for prompt in prompts]
        outputs = self._call([prompt.ids for prompt in prompts], params)
        responses = [self._response(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
        early = [index for index, prompt in enumerate(prompts) if self._stopped_too_early(prompt.request, responses[index])]
        if early:
            self._reasons = True
            again = [[response] for response in responses]
            for index, response in zip(early, self._generate([batch[index] for index in early]), strict=True):
                again[index] = response
            return again
        return [[response] for response in responses]

    def _response(self, prompt: Prompt, output: Any) -> Response:
        return as_text(prompt.request, output, self.tokenizer, self.parsers, prompt.truncated, opened=prompt.opened)

    def _sampling(self, request: Request, *, stops: bool) -> Any:
        if not self.parsers:
            return sampling(request, stops=stops)
        skip = self.parsers.skips_special_tokens(request, self.tokenizer)
        return sampling(request, stops=stops and not self.parsers.reasoning, skip_special_tokens=skip)

    def _stopped_too_early(self, request: Request, response: Response) -> bool:
        return not self._reasons and stopped_too_early(request, response)

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
        outputs = self._call_media(rows, decoded, [self._sampling(row.request, stops=True) for row in rows])
        return [
            [as_text(row.request, output, self.tokenizer, self.parsers, opened=opens_reasoning(row.request, row.text))]
            for row, output in zip(rows, outputs, strict=True)
        ]

    def _score_media_rows(self, rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
        """A row is a whole text that ends with the scored tokens."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        responses = []
        for row, output in zip(rows, self._call_media(rows, decoded, params), strict=True):
            span = row.spans[0]
            positions = output.prompt_logprobs[-len(span) :]
            entries = [position[token] for token, position in zip(span, positions, strict=True)]
            response = Response(
                score=sum(entry.logprob for entry in entries),
                is_greedy=all(entry.rank == 1 for entry in entries),
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
        next_tokens = dict(zip(short, self._next_tokens(short), strict=True)) if short else {}
        scores = [[next_tokens.get(row, {}).get(span.tokens[0]) for span in row.spans] for row in rows]
        missing = [(r, s) for r, row_scores in enumerate(scores) for s, score in enumerate(row_scores) if score is None]
        counts = [top_logprobs_of(rows[r].requests[s]) for r, s in missing]
        scored = self._prompt_logprobs([rows[r].ids + rows[r].spans[s].tokens[-1:] for r, s in missing], counts)
        tokens: dict[tuple[int, int], tuple[Token, ...]] = {}
        for (r, s), positions, count in zip(missing, scored, counts, strict=True):
            span = rows[r].spans[s]
            continuation = positions[span.start + 1 : span.start + 1 + len(span.tokens)]
            entries = [position[token] for position, token in zip(continuation, span.tokens, strict=True)]
            scores[r][s] = (sum(entry.logprob for entry in entries), all(entry.rank == 1 for entry in entries))
            if count:
                tokens[r, s] = with_top_logprobs(span.tokens, continuation)
        return [
            [as_score(row, row.spans[s], row_scores[s], tokens.get((r, s))) for s in range(len(row.spans))]
            for r, (row, row_scores) in enumerate(zip(rows, scores, strict=True))
        ]

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
            new = positions[span.start + 1 :]
            totals[index] += sum(position[token].logprob for position, token in zip(new, span.tokens, strict=True))
            counts[index] += len(new)
        return [[Response(score=total, prompt_tokens=count)] for total, count in zip(totals, counts, strict=True)]
