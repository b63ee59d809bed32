"""Engines in environments of their own, as `make engines` prepares them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".demo/model/smollm2"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def engine(name: str) -> Path:
    folder = ROOT / ".engines" / name
    if not (folder / "ready").is_file() or not (MODEL / "config.json").is_file():
        pytest.skip(f"the engine {name} is not prepared: make engines")
    return folder / "bin"


def conform(python: Path | str, *arguments: str) -> str:
    command = [str(python), "-m", "mill", "conform", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout
