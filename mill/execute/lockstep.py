"""An executor for models whose ranks compute every batch together, such as sharded ones: all have as many requests.

A rank that has fewer is given copies of a request to fill up with. Their answers are counted and dropped.
"""

from __future__ import annotations

import ast
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mill.api.model import MillModel, options_text
from mill.api.progress import Progress
from mill.api.request import KINDS, Request
from mill.api.response import Response
from mill.execute.backend import LocalBackend
from mill.execute.executor import Executor, Recorder, Store
from mill.execute.ranks import Ranks


class LockStepExecutor(Executor):
    """`padding` has a request of every kind that any rank may be asked."""

    def __init__(
        self, model: MillModel, store: Store, ranks: Ranks, padding: Mapping[str, Request], *, quiet: bool = False
    ) -> None:
        super().__init__(LocalBackend(model), store, quiet=quiet)
        self.model, self.ranks, self.padding = model, ranks, padding

    def run(self, requests: Iterable[Request]) -> None:
        """Every rank goes through every kind, in the same order, whether it has such requests or not."""
        held = list(requests)
        for kind in (kind for kind in KINDS if kind in self.padding):
            self._run_kind(kind, [request for request in held if request.kind == kind])

    def any_active(self, active: bool) -> bool:
        return any(self.ranks.exchange(active))

    def _compute(self, kind: str, requests: list[Request], found: dict[str, Response]) -> None:
        fillers = self._fillers(kind, requests)
        if not requests and not fillers:
            return
        self.engine.load()
        with Progress(kind, len(requests), quiet=self.quiet) as progress:
            watcher = _WithoutFillers(Recorder(self.store, self.tally, progress, found), fillers)
            started = time.perf_counter()
            self.engine.answer(kind, [*requests, *fillers], watcher)
            self.model.settle()
            self.tally.answering_s += time.perf_counter() - started
        self.tally.padded += len(fillers)

    def _fillers(self, kind: str, requests: Iterable[Request]) -> list[Request]:
        """As many as the rank with the most has more, of each set of options: those are batches of their own."""
        mine = Counter(map(options_text, requests))
        counts = self.ranks.exchange(mine)
        most = {text: max(count.get(text, 0) for count in counts) for count in counts for text in count}
        return [
            replace(self.padding[kind], options=dict(ast.literal_eval(text)), resps=[])
            for text in sorted(most)
            for _ in range(most[text] - mine[text])
        ]


class _WithoutFillers:
    """An observer that lets the answers to fillers go."""

    def __init__(self, inner: Recorder, fillers: Iterable[Request]) -> None:
        self._inner, self._fillers = inner, {id(filler) for filler in fillers}

    def answered(self, request: Request, response: Response) -> None:
        if id(request) not in self._fillers:
            self._inner.answered(request, response)
