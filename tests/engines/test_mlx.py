"""Real MLX engines on this machine's CPU: the conformance suite, and prefix reuse."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mill.api.request import LOGLIKELIHOOD, Request
from mill.models.hf.model import TransformersModel
from tests import forking
from tests.conftest import make_tiny_model
from tests.engines.mlx_prefixes import PAIR
from tests.engines.prepared import ENVIRONMENT, ROOT, conform, environment
from tests.servers import free_port, serving
from tests.shared import made_once


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose answer in a dialog begins with words."""
    return made_once(tmp_path_factory, "tiny-with-words", lambda folder: make_tiny_model(folder, bos=True, seed=176))


def test_mlx_lm_conforms(tiny: Path) -> None:
    out = conform(environment("mlx") / "python", f"mlx-lm[path={tiny},max_context_length=256]")
    assert "19 passed, 0 failed, 1 skipped" in out


def test_vllm_mlx_conforms_in_the_kinds_it_serves(tiny: Path) -> None:
    binary, port = environment("vllm-mlx") / "vllm-mlx", free_port()
    with serving(ENVIRONMENT, str(binary), "serve", str(tiny), "--host", "127.0.0.1", "--port", str(port)):
        out = conform(sys.executable, f"vllm-mlx[base_url=http://127.0.0.1:{port}]", "--wait", "120")
    assert "11 passed, 0 failed, 9 skipped" in out, out


def test_mlx_lm_reuses_prefixes_and_scores_like_hf(tiny: Path) -> None:
    command = [str(environment("mlx") / "python"), str(ROOT / "tests/engines/mlx_prefixes.py"), str(tiny)]
    done = forking.run(command, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    (reference,) = TransformersModel(str(tiny), dtype="float32").loglikelihood([Request(LOGLIKELIHOOD, *PAIR)])
    assert float(done.stdout.splitlines()[-1]) == pytest.approx(reference.score, abs=2e-3)
