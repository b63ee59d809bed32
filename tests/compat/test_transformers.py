"""Importing transformers without scikit-learn, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("sklearn")

CODE = """
import sys
from mill.compat.transformers import import_transformers
import_transformers()
assert "sklearn" not in sys.modules and "transformers.generation.utils" in sys.modules
import sklearn.metrics
print("imported")
"""


def test_scikit_learn_is_not_imported_and_can_be_later() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr
