"""The trie of rows: paths spell their rows, shared segments occur once, parents before children."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mill.models.prefix.trie import LEAST_GAIN, LEAST_LENGTH, MOST_LEVELS, Trie, make_trie

TOKENS = st.lists(st.integers(0, 3), max_size=30)


def spelled(trie: Trie, index: int) -> list[int]:
    return [token for segment in trie.ends[index].chain for token in segment.tokens]


@settings(max_examples=200, deadline=None)
@given(st.lists(TOKENS, max_size=3), st.lists(st.tuples(st.integers(0, 2), TOKENS), max_size=16))
def test_every_row_is_spelled_by_its_path(starts: list[list[int]], ends: list[tuple[int, list[int]]]) -> None:
    rows = [(starts[which] if which < len(starts) else []) + end for which, end in ends]
    trie = make_trie(rows)
    assert [spelled(trie, index) for index in range(len(rows))] == rows
    seen = set()
    for segment in trie.segments:
        assert segment.parent is None or segment.parent in seen
        assert segment.start == (segment.parent.end if segment.parent else 0)
        assert segment.level < MOST_LEVELS
        seen.add(segment)
    assert trie.tokens <= sum(map(len, rows))


def test_a_prefix_of_many_rows_is_computed_once() -> None:
    prefix, rows = list(range(100)), [[*range(100), 200 + n, 300 + n] for n in range(10)]
    trie = make_trie(rows)
    assert trie.tokens == 100 + 10 * 2
    assert list(trie.segments[0].tokens) == prefix and [segment.level for segment in trie.segments] == [0] + [1] * 10


def test_examples_questions_and_choices_make_three_levels() -> None:
    examples = list(range(50))
    rows = [examples + [100 * q + n for n in range(20)] + [1000 + c] * 12 for q in (1, 2, 3) for c in range(4)]
    assert make_trie(rows).tokens == 50 + 3 * 20 + 12 * 12


def test_a_prefix_that_saves_too_little_is_repeated() -> None:
    short = [[1] * (LEAST_LENGTH - 1) + [2, 3, n] for n in range(40, 43)]
    assert len(make_trie(short).segments) == 3  # 9 shared tokens, but the two that branch off save fewer than the gain
    few = LEAST_GAIN // 2
    pair = [[5] * few + [1], [5] * few + [2]]
    assert len(make_trie(pair).segments) == 2
    assert len(make_trie([*pair, [5] * few + [3]]).segments) == 4


def test_a_row_that_ends_inside_another_and_equal_rows_share_their_segments() -> None:
    long = list(range(64))
    trie = make_trie([long, long[:40], long])
    assert trie.tokens == 64 and trie.ends[0] is trie.ends[2] and trie.ends[0].parent is trie.ends[1]


def test_no_rows_and_empty_rows() -> None:
    assert make_trie([]).segments == []
    trie = make_trie([[], [], [1]])
    assert [spelled(trie, index) for index in range(3)] == [[], [], [1]]


def test_rows_that_are_prefixes_of_the_next_do_not_overflow() -> None:
    rows = [list(range(n)) for n in range(1, 1500)]
    trie = make_trie(rows)
    assert spelled(trie, 1498) == rows[-1] and spelled(trie, 700) == rows[700]
