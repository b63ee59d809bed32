"""What takes long before a model's first response."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from mill.api.batching import WINDOW
from mill.api.errors import ModelError
from mill.api.request import GENERATE, Request
from mill.models.hf.ahead import Ahead, is_plain
from mill.models.hf.checkpoint import DECODED, Checkpoint, import_transformers
from mill.models.prefix.fused_kernels import Compiling, start_compiling
from mill.models.tokens.tokenizer import Tokens
from mill.support.clocks import LOADING, phase
from mill.support.processes import Background


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
        self._compiling: Compiling | None = None
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
            if tokens is not None:
                tokens.result()
            if self._compiling is not None:
                self._compiling.first.result()
        self._loaded = True
        return network

    def compiled(self) -> None:
        """Wait for all kernels: while steps are captured as graphs, no other thread may use the device."""
        if self._compiling is not None:
            self._compiling.all.result()

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
        """What loading needs, before the config imports most of it in its own way. Kernels are compiled in a thread, while
        packages are imported and weights are loaded."""
        checkpoint = self._checkpoint
        if self._compiling is None:
            self._compiling = start_compiling(checkpoint.settings, checkpoint.dtype, checkpoint.device, decodes=decodes)
        import_transformers()

    def _load_tokenizer(self) -> Background[Tokens]:
        """In a thread, while the weights are copied. Remote code is loaded before them."""
        if self._tokenizer is None:
            has_code = hasattr(self._checkpoint.config, "auto_map")
            self._tokenizer = Background(self._tokens)
            if has_code:
                self._tokenizer.result()
        return self._tokenizer
