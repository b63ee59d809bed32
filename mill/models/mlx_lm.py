"""The `mlx-lm` backend: Apple's MLX in process, one sequence at a time, shared prefixes computed once."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from mill.api.batching import BatchLimits, Completed, Unit, checked, run_batches
from mill.api.engine import local_engine
from mill.api.errors import ModelError
from mill.api.model import ModelCapabilities, StreamContext
from mill.api.request import ALL, GENERATE, LOGLIKELIHOOD, MULTI_ROUND, Request, tags_of
from mill.api.response import Response
from mill.compat import model_folder, rope_overrides
from mill.metrics.divergence import common_start
from mill.models.spec.fingerprint import announce_remote_code, folder_digest, weights_size
from mill.models.token_model import TokenModel
from mill.models.tokens.reasoning import StopDetector, TokenLogprobs, as_tokens, decoded_response
from mill.models.tokens.rows import TokenPair
from mill.models.tokens.tokenizer import Prompt, Tokens, prompt_units
from mill.support.terminal import describe

PREFILL = 512  # tokens computed at once


class MlxModel(TokenModel):
    """The model is downloaded and loaded at its first use."""

    renders_before_loading = False

    def __init__(
        self,
        path: str,
        revision: str | None = None,
        max_context_length: int = 4096,
        use_chat_template: bool = False,
        trust_remote_code: bool = False,
        add_bos_token: bool | None = None,
    ) -> None:
        self.path, self.revision, self.add_bos_token = path, revision, add_bos_token
        self.max_context_length, self.use_chat_template = max_context_length, use_chat_template
        self.trust_remote_code = trust_remote_code
        self.batch_size = 1
        self.capabilities = ModelCapabilities(
            max_context_length=max_context_length,
            supports_logprobs=True,
            supports_chat_template=True,
            supports_tools=True,
            top_logprobs=None,
        )
        self._loaded: tuple[Any, Any] | None = None
        self.use_engine(local_engine("mlx-lm", "mlx"))
        self._cached: tuple[Any, list[int]] | None = None  # the KV cache of the last prompt and its ids

    @property
    def model_name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2] if self.path.startswith(("/", ".", "~")) else self.path

    def identity(self) -> dict[str, Any]:
        return {
            "backend": "mlx-lm",
            "weights": folder_digest(self._folder),
            "max_context_length": self.max_context_length,
            "use_chat_template": self.use_chat_template,
            "add_bos_token": self.add_bos_token,
        }

    @cached_property
    def _folder(self) -> Any:
        try:
            return model_folder(self.path, self.revision)
        except Exception as error:  # the hub's client raises many kinds
            raise ModelError(f"cannot find the model {self.path}: {describe(error)}") from error

    @property
    def network(self) -> Any:
        return self._load()[0]

    @cached_property
    def tokens(self) -> Tokens:
        wrapper = self._load()[1]
        return Tokens(
            wrapper._tokenizer,
            window=self.max_context_length,
            add_bos=self.add_bos_token,
            model_type=str(getattr(self.network.args, "model_type", "")),
            chat=self.use_chat_template,
        )

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from mlx_lm import load

            try:
                config = json.loads((self._folder / "config.json").read_text())
                overrides = rope_overrides(config if isinstance(config, dict) else {})
                if self.trust_remote_code:
                    announce_remote_code(str(self._folder))
                self._loaded = load(str(self._folder), model_config=overrides, trust_remote_code=self.trust_remote_code)
            except ModelError:
                raise
            except Exception as error:
                raise ModelError(f"mlx-lm cannot load {self.path}: {describe(error)}") from error
        return self._loaded

    def weight_bytes(self) -> int | None:
        return weights_size(self._folder)

    def load(self) -> None:
        _ = self.tokens

    def clean(self) -> None:
        self._loaded = self._cached = None
        self.__dict__.pop("tokens", None)
        gc.collect()

    # Generation.

    def stream_responses(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[Completed]:
        answer: Callable[[Unit], list[Response]]
        if kind in (GENERATE, MULTI_ROUND):
            prompts, errors = self.tokens.answerable(requests)
            units, answer = prompt_units(prompts), lambda unit: [self._generate_one(unit.data)]
        elif kind == LOGLIKELIHOOD:
            fitting, pairs, errors = self.tokens.scorable(requests)
            units, answer = context_units(fitting, pairs), lambda unit: self._score_group(unit.requests, unit.data)
        else:
            yield from super().stream_responses(kind, requests, context)
            return
        yield from errors
        hook = checked(kind, lambda batch: [answer(unit) for unit in batch])
        yield from run_batches(units, hook, limits=BatchLimits(requests=1), healthy=context.canary is not None)

    def _generate_one(self, prompt: Prompt) -> Response:
        import mlx.core as mx
        from mlx_lm.generate import generate_step
        from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache
        from mlx_lm.sample_utils import make_logits_processors, make_sampler

        options, wrapper = prompt.request.options, self._load()[1]
        if not prompt.request.deterministic:
            mx.random.seed(prompt.request.seed)
        penalty = make_logits_processors(repetition_penalty=options.get("repetition_penalty"))
        sampler = make_sampler(temp=options["temperature"], top_p=options.get("top_p", 0.0), top_k=options.get("top_k", 0))
        ends, ids, positions = list(wrapper.eos_token_ids), list[int](), []
        stops = StopDetector(wrapper._tokenizer, options["until"], tags_of(prompt.request), opened=prompt.opened)
        if penalty:  # it needs the whole prompt, not only the uncached rest
            self._cached = None
        cache, common = self._reuse_cache(prompt.ids)
        steps = {"sampler": sampler, "logits_processors": penalty, "prompt_cache": cache}
        rest = mx.array(prompt.ids[common:])
        for token, logprobs in generate_step(rest, self.network, max_tokens=prompt.max_new_tokens, **steps):
            ids.append(int(token))
            if "logprobs" in options:
                positions.append(_token_logprobs(logprobs, int(token), options["logprobs"]))
            if ids[-1] in ends or stops.found(ids):
                break
        if can_trim_prompt_cache(cache) and hasattr(cache[0], "offset"):  # only the prompt stays in the cache
            trim_prompt_cache(cache, cache[0].offset - len(prompt.ids))
            self._cached = cache, prompt.ids
        return decoded_response(wrapper._tokenizer, prompt, ids, ends, options["until"], positions or None)

    # Scoring.

    def _score_group(self, requests: Sequence[Request], group: Sequence[TokenPair]) -> list[Response]:
        """Pairs of one context: its KV cache is computed once and trimmed back after each continuation."""
        from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

        context = group[0].ids[: group[0].n_context]
        cache, first = self._prefill(context)
        responses = []
        for request, pair in zip(requests, group, strict=True):
            tokens, logits = pair.continuation, [first]
            if len(tokens) > 1:
                logits.append(self._forward(tokens[:-1], cache))
                if can_trim_prompt_cache(cache):
                    trim_prompt_cache(cache, len(tokens) - 1)
                else:
                    cache, first = self._prefill(context)
            score, greedy = _sum_logprobs(logits, tokens)
            response = Response(
                score=score,
                is_greedy=greedy,
                prompt_tokens=pair.n_context,
                output_tokens=len(tokens),
                truncated_tokens=pair.truncated,
            )
            count = request.options.get("logprobs")
            responses.append(self._with_logprobs(response, logits, tokens, count) if count else response)
        return responses

    def _with_logprobs(self, response: Response, logits: Sequence[Any], tokens: Sequence[int], count: int | str) -> Response:
        """With the tokens and their top_logprobs, or with the whole distribution before each."""
        import mlx.core as mx
        import numpy as np

        joined = mx.concatenate(list(logits), axis=0).astype(mx.float32)
        logprobs = joined - mx.logsumexp(joined, axis=1, keepdims=True)
        top = 1 if count == ALL else int(count)
        positions = [_token_logprobs(logprobs[index], token, top) for index, token in enumerate(tokens)]
        distribution = np.array(logprobs) if count == ALL else None
        return replace(response, tokens=as_tokens(self.tokens.tokenizer, tokens, positions), distribution=distribution)

    def _loglikelihood_rolling_single(self, request: Request) -> Response:
        total, count = 0.0, 0
        for row in self.tokens.windows(request):
            (span,) = row.spans
            cache, first = self._prefill(row.ids[: span.start + 1])
            self._cached = None  # the rest of the window is added to this cache
            logits = [first]
            if len(span.tokens) > 1:
                logits.append(self._forward(row.ids[span.start + 1 :], cache))
            total += _sum_logprobs(logits, span.tokens)[0]
            count += len(span.tokens)
        return Response(score=total, prompt_tokens=count)

    def _prefill(self, ids: list[int]) -> tuple[Any, Any]:
        """The KV cache of a prompt and the logits after its last token; a prefix shared with the last prompt is reused."""
        cache, common = self._reuse_cache(ids)
        for start in range(common, len(ids), PREFILL):
            logits = self._forward(ids[start : start + PREFILL], cache)
        self._cached = cache, list(ids)
        return cache, logits[-1:]

    def _reuse_cache(self, ids: list[int]) -> tuple[Any, int]:
        """The last prompt's KV cache, trimmed to the prefix shared with this one, and that prefix's length; else a new one.

        While in use it is not stored, so that an exception leaves no half-filled cache behind.
        """
        from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

        cache, known = self._cached or (None, [])
        self._cached = None
        if cache is None or not can_trim_prompt_cache(cache):
            return make_prompt_cache(self.network), 0
        common = common_start(known, ids[:-1])
        trim_prompt_cache(cache, len(known) - common)
        return cache, common

    def _forward(self, ids: list[int], cache: Any) -> Any:
        import mlx.core as mx

        logits = self.network(mx.array([ids]), cache=cache)[0]
        mx.eval(logits)
        return logits


def context_units(requests: Sequence[Request], pairs: Sequence[TokenPair]) -> list[Unit]:
    """One unit for each context, contexts with a shared prefix one after another."""
    groups: dict[tuple[int, ...], list[tuple[Request, TokenPair]]] = {}
    for request, pair in zip(requests, pairs, strict=True):
        groups.setdefault(tuple(pair.ids[: pair.n_context]), []).append((request, pair))
    ordered = sorted(groups.items())
    return [Unit([r for r, _ in group], 1, [p for _, p in group]) for _, group in ordered]  # one cost: the order stays


def _token_logprobs(logprobs: Any, token: int, count: int) -> TokenLogprobs:
    """The log-probability of one token, and its top_logprobs."""
    import mlx.core as mx

    best = mx.argpartition(-logprobs, count)[:count].tolist()
    top = sorted(((other, float(logprobs[other])) for other in best), key=lambda pair: -pair[1])
    return float(logprobs[token]), tuple(top)


def _sum_logprobs(logits: Sequence[Any], tokens: Sequence[int]) -> tuple[float, bool]:
    import mlx.core as mx

    joined = mx.concatenate(list(logits), axis=0).astype(mx.float32)
    targets = mx.array(list(tokens))
    chosen = mx.take_along_axis(joined, targets[:, None], axis=1)[:, 0] - mx.logsumexp(joined, axis=1)
    greedy = mx.all(mx.argmax(joined, axis=1) == targets)
    return float(mx.sum(chosen)), bool(greedy)
