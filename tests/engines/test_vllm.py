"""A real vLLM, in process and as a server: the conformance suite, and comparison with hf on the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.prepared import ENVIRONMENT, MODEL, ROOT, conform, engine
from tests.launching import ended, start, toy
from tests.outcomes import recorded
from tests.servers import free_port, serving
from tests.vlm import make_llava


def test_vllm_in_process_conforms_and_scores_like_hf() -> None:
    python = engine("vllm") / "python"
    spec = f"vllm[path={MODEL},dtype=float32,max_model_len=256,enforce_eager=true]"
    out = conform(python, spec, "--reference", f"hf[path={MODEL},dtype=float32]", "--tolerance", "1e-3")
    assert "20 passed, 0 failed, 1 skipped" in out


def test_vllm_scores_images_like_hf(tmp_path: Path) -> None:
    """No torchvision exists for vLLM's CPU torch: another build is imported without its compiled operators."""
    python = engine("vllm") / "python"
    folder = make_llava(tmp_path / "llava", head_dim=32)  # vLLM's kernels support no smaller heads
    use_published_names(folder / "model.safetensors")
    beside = [str(ROOT), str(ROOT / "tests/engines/shim"), str(ROOT / ".engines/vllm/torchvision")]
    options = ["shapes_mcq,shapes_mcq_gen", "--limit", "6", "--output_dir"]
    specs = {
        str(python): f"vllm[path={folder},dtype=float32,max_model_len=256,enforce_eager=true]",
        sys.executable: f"hf[path={folder},dtype=float32]",
    }
    scores: list[list[Any]] = []
    texts: list[list[Any]] = []
    for interpreter, spec in specs.items():
        out = tmp_path / spec.partition("[")[0]
        paths = beside if interpreter == str(python) else beside[:1]
        command = [interpreter, "-m", "mill", "eval", spec, *options, str(out)]
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        for task, values, field in (("shapes_mcq", scores, "score"), ("shapes_mcq_gen", texts, "text")):
            (file,) = out.rglob(f"samples/{task}.jsonl")
            samples = [json.loads(line) for line in file.read_text().splitlines()]
            values.append([answer[field] for sample in samples for answer in sample["responses"][0]])
    assert scores[0] == pytest.approx(scores[1], abs=1e-3) and len(scores[0]) == 24
    assert len(set(scores[1])) > 12  # scores differ between images
    assert sum(a[:8] == b[:8] for a, b in zip(*texts, strict=True)) >= 5


def use_published_names(file: Path) -> None:
    """vLLM expects the vision tower's weights under the names of published checkpoints."""
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    renamed = {name.replace("vision_tower.", "vision_tower.vision_model.", 1): value for name, value in weights.items()}
    save_file(renamed, file, metadata={"format": "pt"})


def test_vllm_behind_openai_compat_conforms_and_scores_like_hf() -> None:
    python, port = engine("vllm") / "python", free_port()
    options = ["--model", str(MODEL), "--served-model-name", "smollm2", "--dtype", "float32", "--max-model-len", "512"]
    server = [str(python), "-m", "vllm.entrypoints.openai.api_server", *options, "--enforce-eager"]
    with serving(ENVIRONMENT, *server, "--host", "127.0.0.1", "--port", str(port)):
        spec = f"http://127.0.0.1:{port}/v1[model=smollm2,bos_token_id=1]"
        out = conform(sys.executable, spec, "--reference", f"hf[path={MODEL},dtype=float32]", "--wait", "180")
    assert "19 passed, 0 failed, 2 skipped" in out


def test_vllm_on_a_ray_worker_answers_like_hf(tmp_path: Path) -> None:
    specs = {
        str(engine("vllm") / "python"): f"vllm[path={MODEL},dtype=float32,max_model_len=256,enforce_eager=true]",
        sys.executable: f"hf[path={MODEL},dtype=float32]",
    }
    records = []
    for (python, spec), more in zip(specs.items(), (["--executor", "ray"], []), strict=True):
        out = tmp_path / spec.partition("[")[0]
        command = [python, "-m", "mill", *toy(out, "toy_gen,toy_choice", *more, model=spec)]
        code, stderr = ended(start(command, VLLM_CPU_KVCACHE_SPACE="1", TOY_N="4"), 600)
        assert code == 0, stderr
        records.append(recorded(out))
    on_ray, local = records
    assert on_ray.keys() == local.keys() and len(local) == 16
    for key, answer in local.items():
        assert on_ray[key].get("text") == answer.get("text")
        assert on_ray[key].get("score") == pytest.approx(answer.get("score"), abs=1e-3)


def test_compare_finds_no_difference_between_hf_and_vllm(tmp_path: Path) -> None:
    specs = [f"hf[path={MODEL},dtype=float32]", f"vllm[path={MODEL},dtype=float32,max_model_len=512,enforce_eager=true]"]
    options = ["--prompts", "numerics", "--limit", "4", "--max-tokens", "12", "--output", str(tmp_path), "--quiet"]
    command = [
        str(engine("vllm") / "python"),
        "-m",
        "mill",
        "compare",
        *specs,
        *options,
        "--fail-on",
        "kl_mean>1e-4, match_rate<1",
    ]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    (file,) = (tmp_path / "checks").glob("compare-*/check.json")
    (variant,) = json.loads(file.read_text())["variants"]
    assert variant["counts"]["positions"] > 8 and variant["counts"]["nonfinite_positions"] == 0
    assert "KL is a lower bound" in " ".join(variant["warnings"])
