"""A GGUF file is parsed once per model, and again if it has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mill.compat import cached_gguf_reads, clear_gguf_cache

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


def test_a_parsed_file_is_reused_until_it_changes_or_the_cache_is_cleared(file: Path) -> None:
    with cached_gguf_reads():
        first = gguf.GGUFReader(file)
        assert first.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
        assert gguf.GGUFReader(str(file)) is first
    with cached_gguf_reads():
        assert gguf.GGUFReader(file) is first
        os.utime(file, (1, 1))
        second = gguf.GGUFReader(file)
        assert second is not first
        clear_gguf_cache()
        assert gguf.GGUFReader(file) is not second


def test_the_table_of_tensor_names_is_built_once() -> None:
    llama = gguf.MODEL_ARCH.LLAMA
    with cached_gguf_reads():
        names = gguf.get_tensor_name_map(llama, 3)
        assert gguf.get_tensor_name_map(llama, 3) is names
        assert gguf.get_tensor_name_map(llama, 4) is not names


def test_the_library_is_restored_also_after_an_exception() -> None:
    before = gguf.GGUFReader, gguf.get_tensor_name_map
    with pytest.raises(RuntimeError), cached_gguf_reads():
        assert gguf.GGUFReader is not before[0]
        raise RuntimeError
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == before
