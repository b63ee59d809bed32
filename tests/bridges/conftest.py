"""The Ray cluster of the executor's tests."""

from tests.execute.conftest import cluster

__all__ = ["cluster"]
