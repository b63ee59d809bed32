"""The texts that `make mutations` replaces are still there, and so are the tests that must find it."""

from __future__ import annotations

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation, file_with


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.guarantee for mutation in MUTATIONS])
def test_a_guarantee_can_be_switched_off(mutation: Mutation) -> None:
    assert file_with(ROOT, mutation.old) is not None
    assert (ROOT / "tests" / mutation.tests.split()[0]).is_file()
