"""A real vLLM, in process and as a server: the conformance suite, and comparison with hf on the same weights."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import InProcess
from tests.engines.prepared import ROOT, VLLM_PATHS, conform
from tests.launching import ended, start, toy
from tests.outcomes import recorded
from tests.vlm import make_llava


def test_vllm_in_process_conforms_and_scores_like_hf(vllm_in_process: InProcess) -> None:
    assert "20 passed, 0 failed, 1 skipped" in vllm_in_process.printed("conform")


def test_vllm_behind_openai_compat_conforms_and_scores_like_hf(vllm_server: str, small: Path) -> None:
    spec = f"{vllm_server}/v1[model=smollm2,bos_token_id=1]"
    out = conform(sys.executable, spec, "--reference", f"hf[path={small},dtype=float32]")
    assert "19 passed, 0 failed, 2 skipped" in out


def test_vllm_answers_and_scores_images_like_hf(vllm_python: str, tmp_path: Path) -> None:
    folder = make_llava(tmp_path / "llava", head_dim=32)  # vLLM's kernels support no smaller heads
    use_published_names(folder / "model.safetensors")
    runs = [
        (vllm_python, f"vllm[path={folder},dtype=float32,max_model_len=512,enforce_eager=true]", VLLM_PATHS),
        (sys.executable, f"hf[path={folder},dtype=float32]", []),
    ]
    records: list[Any] = []
    scores: list[Any] = []
    texts: list[Any] = []
    plain_texts: list[Any] = []
    for python, spec, paths in runs:
        out = tmp_path / spec.partition("[")[0]
        command = toy(out, "toy_gen,toy_choice,shapes_mcq,shapes_mcq_gen", "--limit", "6", model=spec)
        variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *paths]), "TOY_N": "4"}
        # In one process: on a CPU vLLM starts two more for an engine, and each imports it for 14 seconds.
        variables |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        process = start([python, "-m", "mill", *command], **variables)
        code, stderr = ended(process, 600)
        assert code == 0, stderr
        records.append(recorded(out))
        fields = (("shapes_mcq", scores, "score"), ("shapes_mcq_gen", texts, "text"), ("toy_gen", plain_texts, "text"))
        for task, values, field in fields:
            (file,) = out.rglob(f"samples/{task}.jsonl")
            samples = [json.loads(line) for line in file.read_text().splitlines()]
            values.append([answer[field] for sample in samples for answer in sample["responses"][0]])
    served, local = records
    assert served.keys() == local.keys() and len(local) == 16 + 24 + 6
    for key, answer in local.items():
        assert served[key].get("score") == pytest.approx(answer.get("score"), abs=1e-3)
    whole_characters = [[text.rstrip("\ufffd") for text in answers] for answers in plain_texts]
    assert whole_characters[0] == whole_characters[1] and len(plain_texts[0]) == 4
    assert len(scores[1]) == 24 and len(set(scores[1])) > 12  # scores differ between images
    assert sum(a[:8] == b[:8] for a, b in zip(*texts, strict=True)) >= 5


def use_published_names(file: Path) -> None:
    """vLLM expects the vision tower's weights under the names of published checkpoints."""
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    renamed = {name.replace("vision_tower.", "vision_tower.vision_model.", 1): value for name, value in weights.items()}
    save_file(renamed, file, metadata={"format": "pt"})


def test_compare_finds_no_difference_between_hf_and_vllm(vllm_in_process: InProcess) -> None:
    vllm_in_process.printed("compare")
    (file,) = (vllm_in_process.folder / "checks").glob("compare-*/check.json")
    (variant,) = json.loads(file.read_text())["variants"]
    assert variant["counts"]["positions"] > 8 and variant["counts"]["nonfinite_positions"] == 0
    assert "KL is a lower bound" in " ".join(variant["warnings"])
