"""Triton's kernels against torch in float64: on CUDA where there is a device, else by Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch

from tests.engines.prepared import ENVIRONMENT, ROOT, environment

ROUNDED_ONCE = {"torch.float32": 1e-6, "torch.float16": 1e-3, "torch.bfloat16": 8e-3}


def test_kernels_compute_what_torch_computes() -> None:
    variables = dict(ENVIRONMENT)
    if not torch.cuda.is_available():  # where there is one, torch has brought Triton
        packages = environment("triton").parent
        variables |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)]), "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(ROOT / "tests/engines/run_kernels.py")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout)
    assert set(errors) == {"gate", "rotation", "tree", "slots"}
    for name, by_dtype in errors.items():
        for dtype, error in by_dtype.items():
            assert error < ROUNDED_ONCE[dtype], (name, dtype)
