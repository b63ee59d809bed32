"""A GGUF file is read once for a model, and again after it changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mill.models.hf.gguf_once import forget, read_once

gguf = pytest.importorskip("gguf")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_file_is_cached_until_it_changes_or_the_model_is_loaded(file: Path) -> None:
    with read_once():
        first = gguf.GGUFReader(file)
        assert first.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
        assert gguf.GGUFReader(str(file)) is first
    with read_once():
        assert gguf.GGUFReader(file) is first
        os.utime(file, (1, 1))
        second = gguf.GGUFReader(file)
        assert second is not first
        forget()
        assert gguf.GGUFReader(file) is not second


def test_the_tensor_name_map_is_built_once() -> None:
    llama = gguf.MODEL_ARCH.LLAMA
    with read_once():
        name_map = gguf.get_tensor_name_map(llama, 3)
        assert gguf.get_tensor_name_map(llama, 3) is name_map
        assert gguf.get_tensor_name_map(llama, 4) is not name_map


def test_the_library_is_restored_after_a_failure() -> None:
    before = gguf.GGUFReader, gguf.get_tensor_name_map
    with pytest.raises(RuntimeError), read_once():
        assert gguf.GGUFReader is not before[0]
        raise RuntimeError
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == before
