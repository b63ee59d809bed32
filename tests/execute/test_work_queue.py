"""WorkQueue hands out every request once, keeps equal contexts together, and isolates a request on which servers die."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mill.api.message import IMAGE, Media, Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.execute.pool import MAX_DEATHS, WorkQueue

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


def distinct_requests(count: int) -> list[Request]:
    return [Request(GENERATE, f"question {number:03}") for number in range(count)]


def drain(queue: WorkQueue) -> list[list[Request]]:
    """The chunks of one worker whose server never dies."""
    chunks = []
    while (chunk := queue.take()) is not None:
        chunks.append(chunk)
        for request in chunk:
            queue.answer(request, Response(text="yes"))
        queue.finish()
    return chunks


@given(REQUESTS, st.integers(1, 9))
def test_every_request_is_taken_once_in_the_chunk_of_its_context(requests: list[Request], workers: int) -> None:
    chunks = drain(WorkQueue(requests, workers))
    assert Counter(id(request) for chunk in chunks for request in chunk) == Counter(map(id, requests))
    chunks_of: dict[object, set[int]] = {}
    for number, chunk in enumerate(chunks):
        assert chunk
        for request in chunk:
            chunks_of.setdefault(request.context, set()).add(number)
    assert all(len(numbers) == 1 for numbers in chunks_of.values())


@given(st.integers(1, 300), st.integers(2, 8))
def test_chunks_shrink_and_every_worker_gets_one(count: int, workers: int) -> None:
    sizes = [len(chunk) for chunk in drain(WorkQueue(distinct_requests(count), workers))]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) >= min(count, workers)


@given(st.integers(1, 60), st.integers(1, 4), st.data())
def test_requests_on_which_servers_die_are_given_up_and_all_others_complete(
    count: int, workers: int, data: st.DataObject
) -> None:
    """A worker computes requests in order until its server dies on one; those that are left are returned."""
    requests = distinct_requests(count)
    poison = data.draw(st.sets(st.sampled_from(range(count)), max_size=3))
    queue = WorkQueue(requests, workers)
    deaths: Counter[str] = Counter()
    while (chunk := queue.take()) is not None:
        deadly = next((index for index, request in enumerate(chunk) if requests.index(request) in poison), len(chunk))
        for request in chunk[:deadly]:
            queue.answer(request, Response(text="yes"))
        deaths.update(request.text for request in chunk[deadly:])
        queue.finish(chunk[deadly:], deadly="killed" if deadly < len(chunk) else "")
    results = []
    while (result := queue.results.get()) is not None:
        assert isinstance(result, tuple)
        results.append(result)
    assert sorted(request.text for request, _ in results) == [request.text for request in requests]
    given_up = [request for request, response in results if response.failed]
    assert sorted(map(requests.index, given_up)) == sorted(poison)
    assert all(MAX_DEATHS <= deaths[request.text] <= MAX_DEATHS + count.bit_length() for request in given_up)


def test_questions_about_one_image_are_adjacent() -> None:
    images = [bytes([number]) for number in range(6)]
    requests = [
        Request(GENERATE, (Message("user", (Media(IMAGE, image), question)),), options={"max_gen_toks": 8})
        for question in ("what?", "why?", "who?")
        for image in images
    ]
    chunks = drain(WorkQueue(requests, 2))
    order = [request.media[0].source for chunk in chunks for request in chunk]
    assert len(chunks) > 1 and sorted(order) == [image for image in images for _ in range(3)]
    assert sum(image != following for image, following in pairwise(order)) == len(images) - 1
