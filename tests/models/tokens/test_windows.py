"""Rolling windows against windows written out by hand, and against the definition of lm-evaluation-harness."""

from __future__ import annotations

from itertools import product

import pytest

from mill.models.tokens.rows import with_prefix
from mill.models.tokens.tokenizer import rolling_windows

BOS = 0


def test_windows_written_out_by_hand() -> None:
    """Ten tokens after BOS, at most four inputs: 1-4 after BOS, 5-8 after 4, 9-10 after 6, 7 and 8."""
    windows = rolling_windows([BOS, *range(1, 11)], 4)
    assert [(pair.ids[: pair.n_context], pair.continuation) for pair in windows] == [
        ([BOS], [1, 2, 3, 4]),
        ([4], [5, 6, 7, 8]),
        ([6, 7, 8], [9, 10]),
    ]
    assert [pair.truncated for pair in windows] == [0, 0, 0]


@pytest.mark.parametrize(("ids", "expected"), [([], []), ([BOS], []), ([BOS, 5], [([BOS], [5])])])
def test_documents_of_no_token_and_of_one(ids: list[int], expected: list[tuple[list[int], list[int]]]) -> None:
    assert [(pair.ids[: pair.n_context], pair.continuation) for pair in rolling_windows(ids, 4)] == expected


def test_windows_are_those_of_the_installed_lm_eval() -> None:
    utils = pytest.importorskip("lm_eval.utils")
    for length, longest in product(range(1, 40), (1, 2, 7, 20)):
        tokens = list(range(1, length + 1))
        rolling = utils.get_rolling_token_windows(tokens, prefix_token=BOS, max_seq_len=longest, context_len=1)
        windows = rolling_windows([BOS, *tokens], longest)
        expected = [tuple(map(list, utils.make_disjoint_window(window))) for window in rolling]
        assert [(pair.ids[: pair.n_context], pair.continuation) for pair in windows] == expected
        assert all(len(pair.ids) - 1 <= longest and pair.fits for pair in windows)


def test_a_prefix_is_never_doubled() -> None:
    assert with_prefix([5, 6], BOS) == [BOS, 5, 6]
    assert with_prefix([BOS, 5], BOS) == [BOS, 5]
    assert with_prefix([5], None) == [5]
    assert with_prefix([], BOS) == [BOS]
