"""Importing transformers without packages that it does not need, in a process of its own."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from mill.compat.model_sources import exports_of_end
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


EARLIER = """
import sys
FIRST
from mill.models.hf import TransformersModel
TransformersModel(sys.argv[1], dtype="float32", device_map="cpu").load()
print("loaded")
"""
MILL_FIRST = """
from mill.compat.transformers import quick_imports
with quick_imports():
    from transformers import AutoConfig
from transformers.utils import is_scipy_available
assert is_scipy_available() and "transformers.modeling_utils" not in sys.modules
"""


@pytest.mark.parametrize(
    "first", ["from transformers import AutoTokenizer, AutoModelForCausalLM", MILL_FIRST], ids=["transformers", "mill"]
)
def test_a_model_loads_where_a_program_imported_parts_of_transformers(tiny_model: Path, first: str) -> None:
    pytest.importorskip("scipy")
    code = EARLIER.replace("FIRST", first)
    done = subprocess.run([sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True)
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


SOURCES = """
import json, sys
if "quick" in sys.argv:
    from mill.compat.transformers import import_transformers
    import_transformers()
import transformers, transformers.generation.utils
from transformers.utils import import_utils
names = {name: getattr(import_utils, name) for name in ("fetch__all__", "define_import_structure")}
assert all(one.__module__ == import_utils.__name__ for one in names.values()), names
found = [transformers, transformers.models, transformers.models.auto]
exports = [{name: sorted(of) for name, of in one._import_structure.items()} for one in found]
print(json.dumps(exports, sort_keys=True))
"""


def test_a_quick_import_finds_the_same_models() -> None:
    quick, plain = (
        subprocess.run([sys.executable, "-c", SOURCES, *how], capture_output=True, text=True) for how in (["quick"], [])
    )
    assert "LlamaForCausalLM" in plain.stdout, plain.stderr
    assert quick.stdout == plain.stdout, quick.stderr


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a\n\n__all__ = ['One', 'Two']\n", ["One", "Two"]),
        ("__all__ = [\n    'One',\n]\n", ["One"]),
        ("x = '__all__'\n__all__ = ['One']\n__all__ = ['Two']", ["Two"]),
        ("def f():\n    __all__ = ['One']\n", []),
        ("", []),
    ],
)
def test_exports_are_those_of_the_last_line_that_names_them(source: str, names: list[str]) -> None:
    from transformers.utils.import_utils import fetch__all__

    assert exports_of_end(fetch__all__, source) == fetch__all__(source) == names


INSTALLED = """
import sys, threading, importlib.metadata
everything = importlib.metadata.packages_distributions
from mill.compat.transformers import import_transformers, quick_imports
threads = [threading.Thread(target=import_transformers) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert importlib.metadata.packages_distributions is everything
import transformers
from transformers.utils import import_utils
assert import_utils.is_librosa_available()
assert import_utils.PACKAGE_DISTRIBUTION_MAPPING["flash_attn"] == ["flash-attn"]
missing = [backends for backends in transformers._object_missing_backend.values() if "librosa" in backends]
assert not missing, missing
with quick_imports():
    assert importlib.metadata.packages_distributions()["PIL"] == everything()["PIL"]
    assert importlib.metadata.packages_distributions().get("no_such_package") is None
print("imported")
"""


def test_packages_of_another_name_and_classes_that_need_hidden_ones_are_found_by_all_threads(tmp_path: Path) -> None:
    for name, distribution in {"flash_attn": "flash-attn", "librosa": "librosa", "torchaudio": "torchaudio"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('__version__ = "2.8.3"\n')
        metadata = tmp_path / f"{distribution.replace('-', '_')}-2.8.3.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.8.3\n")
        (metadata / "top_level.txt").write_text(f"{name}\n")
    (tmp_path / "torchao").mkdir()  # a folder without a distribution
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{INSTALLED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr


def test_distributions_are_those_of_the_metadata() -> None:
    found, wanted = Distributions(), importlib.metadata.packages_distributions()
    for package in ("torch", "transformers", "yaml", "PIL", "numpy"):
        assert set(found[package]) <= set(wanted[package])
    assert found["yaml"] == wanted["yaml"] and len(found) == len(wanted) and list(found) == list(wanted)
    with pytest.raises(KeyError):
        found["no_such_package"]
