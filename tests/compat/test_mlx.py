"""mlx-lm: its private downloader, and rope settings as transformers 5 writes them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from mill.api.errors import ModelError
from mill.compat import model_folder, rope_overrides


def test_a_local_folder_is_returned_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm")
    assert model_folder(str(tmp_path), None) == tmp_path


def test_load_takes_what_mill_passes() -> None:
    mlx_lm = pytest.importorskip("mlx_lm")
    assert {"model_config", "trust_remote_code"} <= set(inspect.signature(mlx_lm.load).parameters)


def test_mlx_lm_reads_the_fields_that_are_passed() -> None:
    llama = pytest.importorskip("mlx_lm.models.llama")
    assert {"rope_theta", "rope_scaling"} <= set(inspect.signature(llama.ModelArgs).parameters)


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        ({"rope_theta": 5.0}, {}),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 5.0}}, {}),
        ({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}, {"rope_theta": 5.0}),
        (
            {"rope_parameters": {"rope_theta": 5.0, "rope_type": "linear", "factor": 2.0}},
            {"rope_theta": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
    ],
)
def test_rope_settings_are_passed_in_the_fields_that_mlx_lm_reads(config: dict, overrides: dict) -> None:
    assert rope_overrides(config) == overrides


def test_rope_settings_per_layer_type_are_refused() -> None:
    with pytest.raises(ModelError, match="no single rope_theta"):
        rope_overrides({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}})
