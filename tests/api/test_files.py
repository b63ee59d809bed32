"""A user's Python file is imported as it is now, and the names that it registers are those of one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.api.errors import UnknownName
from mill.api.registry import import_file, imported_files, metrics, own_names, source_digest
from mill.options.option import one_call

FILE = """
from mill.api.registry import register_metric

@register_metric("{name}")
def own(samples):
    return {value}
"""


Files = tuple[str, ...]


@pytest.fixture
def before() -> Files:
    """What other tests of this process have imported for good."""
    return imported_files()


def write(file: Path, value: int, name: str = "own_metric") -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(FILE.format(name=name, value=value))
    return file


def test_an_edited_file_is_imported_anew(tmp_path: Path, before: Files) -> None:
    file = write(tmp_path / "own.py", 1)
    with own_names():
        first = import_file(file, "file")
        assert import_file(file, "file") is first and metrics.get("own_metric")([]) == 1
        write(file, 2)  # of the same size, and in the same second
        second = import_file(file, "file")
        assert (first.own([]), second.own([]), metrics.get("own_metric")([])) == (1, 2, 2)
        assert source_digest(first.__name__) != source_digest(second.__name__)
        assert imported_files() == (*before, str(file.resolve()))


def test_the_files_of_a_call_win_over_those_of_an_earlier_one(tmp_path: Path, before: Files) -> None:
    one, other = write(tmp_path / "a" / "own.py", 1), write(tmp_path / "b" / "own.py", 2)
    found = []
    for file in (one, other, one):
        with one_call({}):
            import_file(file, "file")
            found.append((metrics.get("own_metric")([]), imported_files()))
    assert found == [(1, (*before, str(one))), (2, (*before, str(other))), (1, (*before, str(one)))]


def test_names_end_with_their_call(tmp_path: Path, before: Files) -> None:
    file = write(tmp_path / "own.py", 1)
    with own_names():
        import_file(file, "file")
        assert "own_metric" in metrics and "own_metric" in metrics.names()
    with own_names(), pytest.raises(UnknownName):
        metrics.get("own_metric")
    assert imported_files() == before


def test_names_of_a_module_that_files_import_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python executes it once, for whichever file comes first."""
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "shared_by_files.py", 3, "shared_metric")
    for name in ("one", "other"):
        file = tmp_path / f"{name}.py"
        file.write_text(f"import shared_by_files  # {name}\n")
        with own_names():
            import_file(file, "file")
            assert metrics.get("shared_metric")([]) == 3
