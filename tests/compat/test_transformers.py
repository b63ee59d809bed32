"""Importing transformers without packages that it does not need, in a process of its own."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from mill.compat.transformers import Distributions

pytest.importorskip("transformers")

CODE = """
import importlib.metadata, sys
everything = importlib.metadata.packages_distributions
from mill.compat.transformers import import_transformers
import_transformers()
assert PACKAGE not in sys.modules and "transformers.generation.utils" in sys.modules
assert importlib.metadata.packages_distributions is everything
import PACKAGE_MODULE
from transformers.utils import import_utils
assert import_utils.is_PACKAGE_NAME_available()
assert import_utils.is_torch_available()
print("imported")
"""


@pytest.mark.parametrize("module", ["sklearn.metrics", "scipy.optimize"])
def test_unused_packages_are_not_imported_and_can_be_later(module: str) -> None:
    package = module.partition(".")[0]
    pytest.importorskip(package)
    code = CODE.replace("PACKAGE_MODULE", module).replace("PACKAGE_NAME", package).replace("PACKAGE", repr(package))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr


LOADED = """
import sys
from mill.models.hf import TransformersModel
TransformersModel(sys.argv[1], dtype="float32", device_map="cpu").load()
assert "sklearn" not in sys.modules and "scipy" not in sys.modules
print("loaded")
"""


def test_a_model_loads_without_unused_packages(tiny_model: Path) -> None:
    pytest.importorskip("sklearn")
    done = subprocess.run([sys.executable, "-c", LOADED, str(tiny_model)], capture_output=True, text=True)
    assert done.stdout == "loaded\n", done.stderr


AUDIO = """
import sys
from mill.compat.transformers import import_transformers
import_transformers()
from transformers import audio_utils
assert "soxr" not in sys.modules
assert audio_utils.soxr.resample.__name__ == "resample" and "soxr" in sys.modules
print("imported")
"""


def test_packages_for_audio_are_imported_when_they_are_used() -> None:
    pytest.importorskip("soxr")
    done = subprocess.run([sys.executable, "-c", AUDIO], capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr


def test_distributions_are_those_of_the_metadata() -> None:
    found, wanted = Distributions(), importlib.metadata.packages_distributions()
    for package in ("torch", "transformers", "yaml", "PIL", "numpy"):
        assert set(found[package]) <= set(wanted[package])
    assert found["yaml"] == wanted["yaml"] and len(found) == len(wanted) and list(found) == list(wanted)
    with pytest.raises(KeyError):
        found["no_such_package"]
