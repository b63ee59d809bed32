"""What takes long before a model's first response: loading, and requests that are tokenized in a thread, while weights load
or while the requests before them are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from mill.api.batching import WINDOW, Completed
from mill.api.errors import ModelError
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.models.hf.checkpoint import DECODED, Checkpoint, import_transformers
from mill.models.prefix.fused_kernels import compile_kernels
from mill.models.prefix.scoring import Work
from mill.models.prefix.trie import make_trie
from mill.models.tokens.rows import Row, TokenPair, rows_with, shared_rows
from mill.models.tokens.tokenizer import Prompt, TemplateFailed, Tokens
from mill.support.clocks import LOADING, TOKENIZING, phase
from mill.support.processes import Background

FIRST_PART = 8192  # requests: a device that computes them is busy while the others are tokenized
HEAD = 256  # characters by which contexts that share examples are recognized


class Startup:
    """The work before the first response, side by side. On CUDA, with weights whose digest is not known yet:

        main       plan tasks | import packages | tokenize | make folder | wait | score, generate
        hashing    digest of the weights ....................|           |      |
        weights               |                 | copy to the device, probe ....|
        tokenizer             |                 | load |                        |
        requests              |                        | token ids, their trie .|
        kernels               | compile .......................|

    `begin` starts the digest. `expect` starts the others if the digest is not there yet: weights that are hashed for the
    first time have no recorded responses, as a rule. If it is, `prepare` starts them: then there is something to compute.

    On other devices loading takes the interpreter: weights load in the main thread, and requests are tokenized meanwhile.
    """

    def __init__(
        self, checkpoint: Checkpoint, tokens: Callable[[], Tokens], load: Callable[[], object], *, shares: bool
    ) -> None:
        """`load` loads the model with what computes on it; `shares` is whether rows may share prefixes."""
        self._checkpoint, self._tokens, self._load, self._shares = checkpoint, tokens, load, shares
        self._hashing: Background[str] | None = None
        self._weights: Background[object] | None = None
        self._tokenizer: Background[Tokens] | None = None
        self._compiling: Background[None] | None = None
        self._loaded = False

    @cached_property
    def ahead(self) -> Ahead:
        return Ahead(in_parts=self._checkpoint.loads_in_thread)

    def begin(self) -> None:
        """Start the digest of local weights."""
        if self._checkpoint.source.local:
            self._hashing = Background(self._checkpoint.fingerprint)

    def digest(self) -> str:
        return self._hashing.result() if self._hashing is not None else self._checkpoint.fingerprint()

    @property
    def loading(self) -> bool:
        return self._weights is not None and not self._weights.done

    def expect(self, requests: Sequence[Request]) -> None:
        if self._hashing is None or self._hashing.done:
            return
        requests = requests[:WINDOW]
        with phase(LOADING):
            self._import_packages(decodes=any(request.kind in DECODED for request in requests))
            if self._checkpoint.loads_in_thread:
                tokens, ahead = self._load_tokenizer(), self.ahead  # which the thread needs, too
                self._weights = Background(self._load)
                ahead.score_first(tokens.result(), [one for one in requests if is_plain(one)], shared=self._shares)

    def prepare(self, requests: Sequence[Request]) -> None:
        if self._loaded or not requests:
            return
        kind = requests[0].kind
        self._import_packages(decodes=kind in DECODED)
        if kind == GENERATE and self._checkpoint.loads_in_thread and not any(request.media for request in requests):
            self.ahead.generate(self._load_tokenizer(), requests)
        started = self.ahead.scored is not None and requests[0] in self.ahead.scored
        if all(map(is_plain, requests)) and not started:
            self.ahead.score_first(self._tokens(), requests, shared=self._shares)

    def load(self) -> None:
        """Load the weights, or wait until they are. Responses must be recorded under the identity of the files that were
        loaded."""
        self._wait()
        self._load()
        if self._hashing is not None and self._checkpoint.fingerprint() != self._hashing.result():
            name = self._checkpoint.source.name
            raise ModelError(f"the files of {name} changed while the model was loaded: run the command again")

    def weights(self) -> Any:
        """The network, loaded beside the tokenizer where the device leaves the interpreter alone."""
        with phase(LOADING):
            self._import_packages()
            tokens = self._load_tokenizer() if self._checkpoint.loads_in_thread else None
            network = self._checkpoint.load()
            for thread in (tokens, self._compiling):
                if thread is not None:
                    thread.result()
        self._loaded = True
        return network

    def end(self) -> None:
        """The weights are freed. They may have loaded for nothing, as all responses were recorded."""
        with contextlib.suppress(Exception):
            self._wait()
        self._loaded = False

    def _wait(self) -> None:
        """Until a thread that loads the model is done; raises what it raised."""
        weights, self._weights = self._weights, None
        if weights is not None:
            with phase(LOADING):
                weights.result()

    def _import_packages(self, *, decodes: bool = True) -> None:
        """What loading needs, before the config imports most of it in its own way. Kernels for half precision on CUDA are
        compiled in a thread, while packages are imported and weights are loaded."""
        settings, dtype, device = self._checkpoint.settings, self._checkpoint.dtype, self._checkpoint.device or ""
        if self._compiling is None and device.startswith("cuda") and dtype != "float32":
            self._compiling = Background(lambda: compile_kernels(settings, dtype, device, decodes=decodes))
        import_transformers()

    def _load_tokenizer(self) -> Background[Tokens]:
        """In a thread, while the weights are copied. Remote code is loaded before them."""
        if self._tokenizer is None:
            has_code = hasattr(self._checkpoint.config, "auto_map")
            self._tokenizer = Background(self._tokens)
            if has_code:
                self._tokenizer.result()
        return self._tokenizer


def is_plain(request: Request) -> bool:
    """Whether a request is scored by the tokens of its text alone."""
    return request.kind == LOGLIKELIHOOD and not request.media and not request.options.get("logprobs")


class Ahead:
    """What is tokenized in a thread now. With `in_parts`, scored requests are: the first of them while weights load, the
    others while a device that leaves the interpreter alone computes those."""

    def __init__(self, *, in_parts: bool) -> None:
        self.in_parts = in_parts
        self.scored: Tokenized | None = None
        self._asked: Sequence[Request] = ()
        self._prompts: Background[list[Prompt]] | None = None

    def score(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> None:
        """Begin with requests that are scored next."""
        self.scored = Tokenized(tokens, requests, shared=shared)

    def score_first(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> None:
        count = first_part(requests) if self.in_parts else len(requests)
        self.score(tokens, requests[:count], shared=shared)

    def generate(self, tokens: Background[Tokens], requests: Sequence[Request]) -> None:
        """Begin with prompts of generation, as soon as the tokenizer is loaded."""
        self._asked = list(requests)
        self._prompts = Background(lambda: tokens.result().prompts(self._asked))

    def parts(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> list[Sequence[Request]]:
        """Requests that are tokenized, and the others; all at once where they share no prefixes."""
        if not shared:
            return [requests] if requests else []
        if self.scored is None and self.in_parts and first_part(requests) < len(requests):
            self.score_first(tokens, requests, shared=True)
        ahead = self.scored if self.scored is not None else ()
        first = [request for request in requests if request in ahead]
        others = [request for request in requests if request not in ahead]
        return [part for part in (first, others) if part]

    def rows(self, tokens: Tokens, requests: Sequence[Request]) -> tuple[list[Row], Work | None, list[Completed]]:
        """The requests that can be scored, as rows, with their trie if a thread made it; and the errors of the others."""
        ahead, self.scored = self.scored, None
        if ahead is not None and all(request in ahead for request in requests):
            with phase(TOKENIZING), contextlib.suppress(TemplateFailed):  # which of them is found below
                fitting, pairs, errors = tokens.fitting(requests, ahead.pairs(requests))
                work = ahead.work(fitting)
                return list(work.rows) if work is not None else shared_rows(fitting, pairs), work, errors
        fitting, pairs, errors = tokens.scorable(requests)
        return shared_rows(fitting, pairs), None, errors

    def prompts(self, tokens: Tokens, requests: Sequence[Request]) -> tuple[list[Prompt], list[Completed]]:
        """The prompts of these requests, and the errors of those that cannot be rendered."""
        ahead, self._prompts = self._prompts, None
        if ahead is not None and {id(request) for request in requests} <= set(map(id, self._asked)):
            with contextlib.suppress(TemplateFailed):
                prompts = {id(prompt.request): prompt for prompt in ahead.result()}
                return [prompts[id(request)] for request in requests], []
        return tokens.answerable(requests)


def first_part(requests: Sequence[Request]) -> int:
    """How many requests to tokenize before the others: about FIRST_PART, or all where the others have the same prefixes,
    which would be computed twice."""
    if len(requests) < 2 * FIRST_PART:
        return len(requests)
    heads = [request.text[:HEAD] for request in requests]
    ends = range(FIRST_PART, len(requests))
    end = next((end for end in ends if heads[end] != heads[end - 1]), len(requests))
    return len(requests) if set(heads[:end]) & set(heads[end:]) else end


class Tokenized:
    """Requests, each found by its object, as its content takes long to compare; with `shared`, also as rows of a trie."""

    def __init__(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> None:
        self._requests = list(requests)
        self._indices = {id(request): index for index, request in enumerate(self._requests)}
        self._pairs = Background(lambda: tokens.pairs(self._requests))
        self._work = Background(self._make_work) if shared else None

    def __contains__(self, request: Request) -> bool:
        return id(request) in self._indices

    def pairs(self, requests: Sequence[Request]) -> list[TokenPair]:
        pairs = self._pairs.result()
        return [pairs[self._indices[id(request)]] for request in requests]

    def _make_work(self) -> Work:
        pairs = zip(self._requests, self._pairs.result(), strict=True)
        scored = [(request, pair) for request, pair in pairs if pair.fits and pair.continuation]  # the others are errors
        rows = shared_rows([request for request, _ in scored], [pair for _, pair in scored])
        return Work(rows, make_trie([row.ids for row in rows]))

    def work(self, requests: Sequence[Request]) -> Work | None:
        """The rows of these requests and their trie; None where there is none for just these."""
        work = self._work.result() if self._work is not None else None
        rows = rows_with(work.rows, requests) if work is not None else None
        if work is None or rows is None:
            return None
        return work if rows == work.rows else Work(rows, work.trie)  # without requests whose content others have, too
