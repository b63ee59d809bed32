"""A GGUF file is read once for a model, and anew when it has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mill.models.hf.gguf_once import forget, read_once

gguf = pytest.importorskip("gguf")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(place, "llama")
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return place


def test_what_was_read_is_kept_until_the_file_changes_or_the_model_is_loaded(file: Path) -> None:
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


def test_the_table_of_names_is_made_once() -> None:
    llama = gguf.MODEL_ARCH.LLAMA
    with read_once():
        found = gguf.get_tensor_name_map(llama, 3)
        assert gguf.get_tensor_name_map(llama, 3) is found
        assert gguf.get_tensor_name_map(llama, 4) is not found


def test_the_library_is_as_it_was_also_after_a_failure() -> None:
    before = gguf.GGUFReader, gguf.get_tensor_name_map
    with pytest.raises(RuntimeError), read_once():
        assert gguf.GGUFReader is not before[0]
        raise RuntimeError
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == before
