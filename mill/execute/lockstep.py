"""An executor for models whose ranks compute every batch together, such as sharded ones: all get the same request count.

A rank that has fewer gets copies of a request as padding. Their responses are counted and dropped.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import replace

from mill.api.batching import Completed
from mill.api.model import MillModel, options_text
from mill.api.request import KINDS, Request
from mill.api.response import Response
from mill.execute.backend import LocalBackend
from mill.execute.executor import Executor, Store
from mill.execute.ranks import Ranks


class LockStepExecutor(Executor):
    """`padding` has a request of every kind that any rank may get."""

    def __init__(
        self, model: MillModel, store: Store, ranks: Ranks, padding: Mapping[str, Request], *, quiet: bool = False
    ) -> None:
        super().__init__(LocalBackend(model), store, quiet=quiet)
        self.model, self.ranks, self.padding = model, ranks, padding

    def run(self, requests: Iterable[Request], *, round_number: int = 1) -> None:
        """Every rank runs every kind in the same order, even where it has no such requests."""
        self.round_number = round_number
        pending = list(requests)
        for kind in (kind for kind in KINDS if kind in self.padding):
            self._run_kind(kind, [request for request in pending if request.kind == kind])

    def any_active(self, active: bool) -> bool:
        return any(self.ranks.exchange(active))

    def _compute(self, kind: str, requests: list[Request], responses: dict[str, Response]) -> None:
        left = list(requests)
        while (count := self._fitting_together(left)) is not None:
            self._compute_window(kind, left[:count], responses)
            left = left[count:]

    def _compute_window(self, kind: str, requests: list[Request], responses: dict[str, Response]) -> None:
        padding = self._padding(kind, requests)
        self.backend.load([])
        with self._progress(kind, len(requests)) as progress, self._counted(kind):
            stream = self.backend.stream(kind, [*requests, *padding], self.context)
            self._record_all(_without_padding(stream), responses, progress)
        self.tally.padded += len(padding)

    def _fitting_together(self, left: list[Request]) -> int | None:
        """How many requests this rank computes next, while any rank has some; None where all are done, and where the budget
        of one is used up: all ranks stop with it."""
        count = self._fitting(left)
        ranks = self.ranks.exchange([len(left), count, self.stopped])
        stopped = next((reason for _, _, reason in ranks if reason), "")
        if stopped and self.meter is not None:
            self.meter.stop(stopped)
        return None if stopped or not any(open_requests for open_requests, _, _ in ranks) else count

    def _padding(self, kind: str, requests: Iterable[Request]) -> list[Request]:
        """For each set of options, which are separate batches, as many requests as the rank with the largest has more."""
        mine = Counter(map(options_text, requests))
        counts = self.ranks.exchange(mine)
        largest = {text: max(count.get(text, 0) for count in counts) for count in counts for text in count}
        missing = [text for text in sorted(largest) for _ in range(largest[text] - mine[text])]
        return [
            replace(self.padding[kind], options=dict(ast.literal_eval(text)), draw=-number, resps=[])
            for number, text in enumerate(missing, 1)
        ]


def _without_padding(stream: Generator[Completed, None, None]) -> Generator[Completed, None, None]:
    """Padding has a negative draw, which no other request has."""
    with closing(stream):
        for request, response in stream:
            if request.draw >= 0:
                yield request, response
