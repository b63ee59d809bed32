"""An engine of several workers that each hold the model: a queue of bundles, and answers in one stream.

A worker that dies is replaced, and what it had not answered goes to others. How a worker is started and asked is a Worker.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from mill.api.batching import Observer, describe
from mill.api.errors import MillError, ModelBroken, ModelError
from mill.api.request import Request
from mill.api.response import Response
from mill.api.warnings import warn
from mill.execute.work_queue import MOST_DEATHS, WorkQueue
from mill.execute.workers import Tell, Worker, WorkerLost

POLL_S = 0.2
LEAVE_S = 2.0
MOST_DOUBTS = 2  # bundles of which a worker answers nothing, before it waits for others to answer
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 20.0  # before a lost worker is replaced


class WorkerNotStarted(WorkerLost):
    """A worker that was lost before it began."""


class Pool:
    """`start_worker(n)` starts worker number n and returns when it is ready; it raises WorkerLost or a MillError.

    Workers that only stand for `servers` must answer something before they are trusted again.
    """

    def __init__(self, start_worker: Callable[[int], Worker], workers: int, *, servers: bool = False) -> None:
        self.start_worker, self.workers, self.servers = start_worker, workers, servers
        self._workers: dict[int, Worker] = {}
        self._hiring: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._busy: set[int] = set()
        self._closings = 0
        self._threads: list[threading.Thread] = []
        self._paths: dict[int, dict[str, str]] = {}
        self._said: dict[str, None] = {}
        self._deaths = 0
        self._doubts: Counter[int] = Counter()
        self.canary: Request | None = None
        self._lost: set[int] = set()

    def load(self) -> None:
        """Workers start with their first bundle, all at once: those that are ready do not wait for the others."""

    def answer(self, kind: str, requests: Sequence[Request], observer: Observer) -> None:
        self._doubts.clear()
        bundles = WorkQueue(requests, self.workers)
        news: queue.Queue[Any] = queue.Queue()
        self._threads = []
        numbers = iter(sorted(range(self.workers), key=lambda number: number in self._lost and number not in self._workers))

        def reinforce() -> None:
            """Somebody who was not needed so far: the others' machines or servers may stay away."""
            for number in islice(numbers, 1):
                thread = threading.Thread(target=self._work, args=(number, kind, bundles, news), daemon=True)
                self._threads.append(thread)
                thread.start()

        for _ in range(bundles.groups):
            reinforce()
        try:
            self._listen(bundles, news, len(requests), observer, reinforce)
        finally:
            bundles.stop()
            self._keep(news, observer)
        self._let_finish()

    def _keep(self, news: queue.Queue[Any], observer: Observer) -> None:
        """Worker on the answers that came before an end that was not foreseen."""
        with contextlib.suppress(queue.Empty, MillError):  # that end may be a full disk
            while True:
                item = news.get_nowait()
                for request, response in item if isinstance(item, list) else ():
                    observer.answered(request, response)

    def _let_finish(self) -> None:
        """Wait for the threads a moment; one may still be waiting for a machine."""
        until = time.monotonic() + LEAVE_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    def _listen(
        self, bundles: WorkQueue, news: queue.Queue[Any], total: int, observer: Observer, reinforce: Callable[[], None]
    ) -> None:
        """Worker answers on, in the thread that asked, until all are there."""
        answered, deaths = 0, 0
        while answered < total:
            item = news.get()
            if isinstance(item, MillError):
                raise item
            if isinstance(item, WorkerLost):
                started = not isinstance(item, WorkerNotStarted)
                self._deaths += started
                deaths += started or not self._busy  # somebody who is in the middle of an answer is worth waiting for
                if deaths > MOST_DEATHS * self.workers + MOST_DEATHS:
                    raise ModelError(f"{deaths} workers died and none has answered since: {item}")
                goes_on = "another one goes on with what it left" if started else "it is tried again"
                warn(f"a worker {'died' if started else 'could not start'} ({item}); {goes_on}")
                reinforce()
                continue
            for request, response in item:
                observer.answered(request, response)
            if item:
                answered, deaths = answered + len(item), 0
            bundles.done(len(item))

    def _work(self, number: int, kind: str, bundles: WorkQueue, news: queue.Queue[Any]) -> None:
        """One worker's thread: a bundle after another; what goes wrong is told in the stream of answers.

        A bundle is taken when there is somebody to answer it: a worker that waits for a machine keeps nothing back.
        """
        while self._ready(number, bundles, news) and (bundle := bundles.take()) is not None:
            left = dict(enumerate(bundle))
            try:
                self._ask(number, kind, bundle, self._teller(left, news))
                if left:
                    raise ModelError(f"a worker answered {len(bundle) - len(left)} of {len(bundle)} requests")
            except WorkerLost as lost:
                self._drop(number)
                news.put(lost)
                given_up = bundles.give_back(list(left.values()))
                why = f"the worker died each of the {MOST_DEATHS} times it was asked: {lost}"
                news.put([(request, Response(error=why)) for request in given_up])
            except ModelBroken as broken:
                bundles.put_back(list(left.values()))  # what fails may stand together: others have had better luck, or will
                self._doubts[number] += 1
                if not self._await_proof(number, bundles):
                    news.put(broken)
                    return
                try:
                    self._prove(number)
                except WorkerLost as lost:
                    news.put(lost)
            except BaseException as error:
                news.put(error if isinstance(error, MillError) else ModelError(f"a worker failed: {describe(error)}"))
                return
        with contextlib.suppress(WorkerLost, KeyError):  # gone, or never there
            self._said |= dict.fromkeys(self._workers[number].warnings())
            self._paths[number] = self._workers[number].execution_paths()

    def _await_proof(self, number: int, bundles: WorkQueue) -> bool:
        """Whether there is hope for a worker that failed on all it was asked: somebody answers, or may yet."""
        while self.canary is None and self._doubts[number] >= MOST_DOUBTS and not bundles.over:
            if sum(count >= MOST_DOUBTS for count in self._doubts.values()) >= len(self._threads):
                return False
            time.sleep(POLL_S)
        return True

    def _prove(self, number: int) -> None:
        """Have a worker answer what another one answered; who cannot is dismissed, and WorkerLost says so."""
        if self.canary is not None and number in self._workers:
            try:
                self._workers[number].check_canary(self.canary)
            except WorkerLost:
                self._drop(number)
                raise

    def _ask(self, number: int, kind: str, bundle: Sequence[Request], tell: Tell) -> None:
        self._busy.add(number)
        try:
            self._workers[number].answer(kind, bundle, tell)
        finally:
            self._busy.discard(number)

    def _ready(self, number: int, bundles: WorkQueue, news: queue.Queue[Any]) -> bool:
        """Have a worker under this number; False when there is none and nobody needs one any more."""
        pause = FIRST_PAUSE_S
        while number not in self._workers and not bundles.over:
            try:
                self._engage(number, bundles)
            except WorkerLost as lost:
                news.put(WorkerNotStarted(str(lost)))
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            except BaseException as error:
                news.put(error if isinstance(error, MillError) else ModelError(f"a worker failed: {describe(error)}"))
                return False
        return number in self._workers

    def _engage(self, number: int, bundles: WorkQueue) -> None:
        """One at a time under each number: a thread of an earlier round of questions may still be at it."""
        while not self._hiring[number].acquire(timeout=POLL_S):
            if bundles.over:
                return
        try:
            if number not in self._workers:
                closings, hand = self._closings, self.start_worker(number)
                self._workers[number] = hand
                if self.servers and number in self._lost:
                    self._prove(number)  # a server that answers nothing is there all the same
                if closings != self._closings:  # nobody will close it
                    self._drop(number)
        finally:
            self._hiring[number].release()

    def _drop(self, number: int) -> None:
        self._lost.add(number)
        hand = self._workers.pop(number, None)
        if hand is not None:
            with contextlib.suppress(Exception):  # it is gone already, or nobody can end it
                hand.end()

    def _teller(self, left: dict[int, Request], news: queue.Queue[Any]) -> Tell:
        """Passes answers on and takes their requests off the list of what is left."""

        def tell(answers: list[tuple[int, Response]]) -> None:
            if self.canary is None:
                good = (left[place] for place, response in answers if place in left and not response.failed)
                self.canary = next(good, None)
            news.put([(left.pop(place), response) for place, response in answers if place in left])

        return tell

    def warnings(self) -> list[str]:
        """What the workers' models said of themselves, and how many workers died."""
        died = [f"workers that died and were replaced: {self._deaths}"] if self._deaths else []
        return [*self._said, *died]

    def execution_paths(self) -> dict[str, str]:
        """Those of each worker, by its number; a worker that died after its last bundle has none."""
        return {
            f"worker {number}: {stage}": path
            for number, paths in sorted(self._paths.items())
            for stage, path in paths.items()
        }

    def close(self) -> None:
        self._closings += 1
        for number in list(self._workers):
            self._drop(number)
        self._let_finish()  # before whoever hires leaves the cluster that a thread speaks to
