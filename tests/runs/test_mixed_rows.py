"""Scores of hybrid models that earlier versions computed in half precision are neither reused nor reported as good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mill.cli.main import run as main
from mill.models.prefix.paths import MIXED_ROWS, mixed_rows
from mill.store.folder import RunFolder
from tests.models.trained import DELTA_NET, saved


@pytest.mark.parametrize(
    ("name", "dtype", "mixed"),
    [
        ("qwen3_5_text", "bfloat16", True),
        ("qwen3_next", "float16", True),
        ("granitemoehybrid", "bfloat16", True),
        ("nemotron_h", "bfloat16", True),
        ("qwen3_5_text", "float32", False),
        ("qwen3", "bfloat16", False),
    ],
)
def test_which_models_were_mixed(name: str, dtype: str, mixed: bool) -> None:
    assert mixed_rows(name, dtype) is mixed


def warnings_of(manifest: Path) -> list[str]:
    (result,) = RunFolder(manifest.parent).results().tasks.values()
    return result.warnings


def test_an_earlier_run_is_flagged_and_computed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved("qwen3_5_text", DELTA_NET, tmp_path / "model", "bfloat16")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "the quick brown"}) + "\n")
    command = ["eval", f"hf[path={model},dtype=bfloat16]", str(prompts), "--max_tokens", "2"]
    command += ["--output_dir", str(tmp_path / "results")]
    assert main(command) == 0
    (manifest,) = (tmp_path / "results").rglob("manifest.json")
    content = json.loads(manifest.read_text())
    assert content["model"]["identity"]["shared_prefixes"] == "proved"
    assert MIXED_ROWS not in warnings_of(manifest)

    # As an earlier version left it: another identity, and a fast path that nothing verified.
    del content["model"]["identity"]["shared_prefixes"]
    content["sessions"][0]["paths"] = {"decoding": "continuous: 1 request"}
    manifest.write_text(json.dumps(content))
    assert MIXED_ROWS in warnings_of(manifest)
    capsys.readouterr()
    assert main(["collect", "--output_dir", str(tmp_path / "results")]) == 0
    assert MIXED_ROWS in capsys.readouterr().err

    content["sessions"][0]["paths"] = {"decoding": "plain batches (exact=true): 1 request"}
    manifest.write_text(json.dumps(content))
    assert MIXED_ROWS not in warnings_of(manifest)
