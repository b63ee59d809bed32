"""Digests of weights are cached in a file that may be missing, damaged or not a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mill.api.errors import ModelError
from mill.models.spec.fingerprint import file_digest, folder_digest

MEMOS: dict[str, Callable[[Path], object]] = {
    "a list": lambda file: file.write_text("[1, 2]"),
    "torn": lambda file: file.write_text('{"a": "'),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda file: file.symlink_to("/dev/zero"),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache/fingerprints.json"


@pytest.mark.parametrize("what", MEMOS)
def test_a_damaged_cache_only_costs_time(tmp_path: Path, cache: Path, what: str) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"weights")
    MEMOS[what](cache)
    assert file_digest(weights) == hashlib.sha256(b"weights").hexdigest()


def test_a_digest_is_cached(tmp_path: Path, cache: Path) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"weights")
    digest = file_digest(weights)
    assert list(json.loads(cache.read_text()).values()) == [digest] and file_digest(weights) == digest


def test_a_cache_that_is_a_link_is_replaced(tmp_path: Path, cache: Path) -> None:
    victim, weights = tmp_path / "victim", tmp_path / "weights.bin"
    victim.write_text("{}")
    weights.write_bytes(b"weights")
    cache.symlink_to(victim)
    file_digest(weights)
    assert victim.read_text() == "{}" and not cache.is_symlink()


@pytest.mark.parametrize("name", ["additional_chat_templates/tool_use.jinja", "sub/w.safetensors", "sub/i.safetensors"])
def test_files_in_subfolders_that_a_model_uses_are_digested(tmp_path: Path, cache: Path, name: str) -> None:
    folder = indexed(tmp_path / "model", "sub/i.safetensors")
    (folder / "config.json").write_text('{"transformers_weights": "sub/w.safetensors"}')
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "missing.bin"}}')  # of no interest
    for file in (folder / "sub/i.safetensors", folder / name):
        file.parent.mkdir(exist_ok=True)
        file.write_text("one")
    first = folder_digest(folder)
    (folder / "sub/other.safetensors").write_text("not used")
    assert folder_digest(folder) == first
    (folder / name).write_text("two")
    assert folder_digest(folder) != first


def test_a_folder_is_digested_by_names_and_contents(tmp_path: Path, cache: Path) -> None:
    """Several files at the same time, and the digest of one after another: that of earlier versions."""
    folder = tmp_path / "model"
    folder.mkdir()
    contents = {"a-1.safetensors": b"one" * 5_000_000, "a-2.safetensors": b"two", "config.json": b"{}"}
    for name, content in {**contents, "notes.md": b"other", ".hidden.json": b"{}"}.items():
        (folder / name).write_bytes(content)
    lines = "".join(f"{name} {hashlib.sha256(content).hexdigest()}\n" for name, content in sorted(contents.items()))
    assert folder_digest(folder) == hashlib.sha256(lines.encode()).hexdigest() == folder_digest(folder)
    assert len(json.loads(cache.read_text())) == 3


def test_an_edit_that_keeps_size_and_time_is_found(tmp_path: Path, cache: Path) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"weights")
    os.utime(weights, ns=(10**18, 10**18))
    file_digest(weights)
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(10**18, 10**18))
    assert file_digest(weights) == hashlib.sha256(b"WEIGHTS").hexdigest()


def indexed(folder: Path, *names: str) -> Path:
    """A model folder whose index names these files of weights."""
    folder.mkdir()
    tensors = {f"layer.{number}": name for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": tensors}))
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../w.safetensors", "names a file outside of its folder"),
        ("/w.safetensors", "names a file outside of its folder"),
        ("w.safetensors", "names w.safetensors, which is not there"),
    ],
)
def test_an_index_that_names_no_files_of_the_model_is_refused(tmp_path: Path, cache: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        folder_digest(indexed(tmp_path / "model", name))


@pytest.mark.parametrize("content", ["{", '{"weight_map": {"a": 1}}', "{}"])
def test_a_damaged_index_is_refused(tmp_path: Path, cache: Path, content: str) -> None:
    folder = indexed(tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        folder_digest(folder)
