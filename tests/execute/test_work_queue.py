"""WorkQueue hand every request out once, keep what shares a context together, and corner a request that kills workers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from mill.api.message import Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.execute.work_queue import MAX_DEATHS, WorkQueue

CONTEXTS = st.sampled_from(["", "a", "ab", "<user> a", "long " * 50]) | st.tuples(
    st.builds(Message, st.sampled_from(["user", "system"]), st.sampled_from(["a", "b"]))
)
REQUESTS = st.lists(
    st.builds(Request, st.just(LOGLIKELIHOOD), CONTEXTS, st.text("xyz", max_size=3))
    | st.builds(
        Request, st.just(GENERATE), CONTEXTS, options=st.fixed_dictionaries({"max_gen_toks": st.sampled_from([1, 4096])})
    ),
    max_size=40,
)
WORKERS = st.integers(1, 9)


def alone(count: int) -> list[Request]:
    return [Request(GENERATE, f"question {number:03}") for number in range(count)]


def drain(bundles: WorkQueue) -> list[list[Request]]:
    """What one worker gets that never dies."""
    found = []
    while (bundle := bundles.take()) is not None:
        found.append(bundle)
        bundles.done(len(bundle))
    return found


def within(seconds: float, call: Callable[[], object]) -> object:
    """A call's result; fails where it does not come back."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it waits for ever"
    return found[0]


def ids(requests: Sequence[Request]) -> Counter[int]:
    return Counter(map(id, requests))


@given(REQUESTS, WORKERS)
def test_every_request_is_handed_out_once_and_no_bundle_is_empty(requests: list[Request], workers: int) -> None:
    bundles = drain(WorkQueue(requests, workers))
    assert ids([request for bundle in bundles for request in bundle]) == ids(requests)
    assert all(bundles)


@given(REQUESTS, WORKERS)
def test_requests_with_the_same_context_are_never_parted(requests: list[Request], workers: int) -> None:
    homes: dict[object, set[int]] = {}
    for number, bundle in enumerate(drain(WorkQueue(requests, workers))):
        for request in bundle:
            homes.setdefault(request.context, set()).add(number)
    assert all(len(found) == 1 for found in homes.values())


@given(st.integers(1, 300), st.integers(2, 8))
def test_bundles_become_smaller_and_every_worker_gets_one(count: int, workers: int) -> None:
    sizes = [len(bundle) for bundle in drain(WorkQueue(alone(count), workers))]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) >= min(count, workers)


def test_one_worker_gets_everything_at_once() -> None:
    assert [len(bundle) for bundle in drain(WorkQueue(alone(50), 1))] == [50]


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 4), st.data())
def test_poisonous_requests_are_given_up_and_all_others_are_answered(count: int, workers: int, data: st.DataObject) -> None:
    """A worker answers in order until it meets a request that kills it; what it had not answered it gives back."""
    requests = alone(count)
    poison = data.draw(st.sets(st.sampled_from(range(count)), max_size=3))
    bundles = WorkQueue(requests, workers)
    answered: list[Request] = []
    given_up: list[Request] = []
    deaths: Counter[int] = Counter()
    while (bundle := bundles.take()) is not None:
        deadly = next((place for place, request in enumerate(bundle) if requests.index(request) in poison), len(bundle))
        answered += bundle[:deadly]
        if left := bundle[deadly:]:
            deaths.update(ids(left))
            lost = bundles.give_back(left)
            given_up += lost
            bundles.done(len(lost))
        bundles.done(deadly)
    assert sorted(map(requests.index, given_up)) == sorted(poison)
    assert ids(answered + given_up) == ids(requests)
    assert all(MAX_DEATHS <= deaths[id(request)] <= MAX_DEATHS + count.bit_length() for request in given_up)


def test_what_came_back_is_next_and_goes_in_halves_from_the_second_death() -> None:
    requests = alone(8)
    bundles = WorkQueue(requests, 1)
    assert bundles.give_back(bundles.take() or []) == []
    whole = bundles.take() or []
    assert len(whole) == 8
    bundles.give_back(whole)
    assert [len(bundles.take() or []) for _ in range(2)] == [4, 4]


def test_a_worker_that_had_answered_everything_leaves_nothing_behind() -> None:
    bundles = WorkQueue(alone(3), 1)
    bundle = bundles.take() or []
    assert bundles.give_back([]) == []
    bundles.done(len(bundle))
    assert within(20, lambda: [bundles.take()]) == [None]


def test_take_waits_for_what_may_come_back_and_ends_with_the_last_answer() -> None:
    bundles = WorkQueue(alone(4), 2)
    held = [bundles.take() or []]
    while sum(map(len, held)) < 4:
        held.append(bundles.take() or [])
    taken: list[list[Request] | None] = []
    waiting = threading.Thread(target=lambda: taken.append(bundles.take()), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "others may still give something back"
    bundles.give_back(held[0])
    waiting.join(20)
    assert taken == [held[0]]
    bundles.done(4)
    assert within(20, lambda: [bundles.take()]) == [None]


def test_stop_wakes_whoever_waits_and_nothing_is_handed_out_after_it() -> None:
    bundles = WorkQueue(alone(6), 2)
    held: list[Request] = []
    while len(held) < 6:
        held += bundles.take() or []
    threads = [threading.Thread(target=bundles.take, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    bundles.stop()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    bundles.give_back(held)
    assert within(20, lambda: [bundles.take()]) == [None]


def test_nothing_to_do_is_over_at_once() -> None:
    assert within(20, lambda: [WorkQueue([], 3).take()]) == [None]


def test_many_threads_with_accidents_get_everything_exactly_once() -> None:
    """Every bundle's first worker dies half-way; no request is the cause, and none is lost or answered twice."""
    requests = alone(500)
    bundles = WorkQueue(requests, 8)
    answered: list[Request] = []
    seen: set[int] = set()
    lock = threading.Lock()

    def work() -> None:
        while (bundle := bundles.take()) is not None:
            with lock:
                accident = id(bundle[-1]) not in seen
                seen.add(id(bundle[-1]))
                done = bundle[: len(bundle) // 2] if accident else bundle
                answered.extend(done)
            if accident:
                assert bundles.give_back(bundle[len(done) :]) == []
            bundles.done(len(done))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert ids(answered) == ids(requests)
