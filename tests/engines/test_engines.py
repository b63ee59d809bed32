"""Real engines, each in its own environment (`make engines`): the conformance suite, and the log-likelihoods of hf."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from servers import free_port, serving
from vlm import make_llava

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


def test_vllm_in_process_conforms_and_scores_like_hf() -> None:
    python = engine("vllm") / "python"
    spec = f"vllm[path={MODEL},dtype=float32,max_model_len=256,enforce_eager=true]"
    out = conform(python, spec, "--reference", f"hf[path={MODEL},dtype=float32]", "--tolerance", "1e-3")
    assert "18 passed, 0 failed, 1 skipped" in out


def test_vllm_sees_pictures_as_hf_does(tmp_path: Path) -> None:
    """No torchvision is built for vLLM's torch on a CPU: one beside it is imported without its compiled operators."""
    python = engine("vllm") / "python"
    folder = make_llava(tmp_path / "llava", head_dim=32)  # vLLM's kernels know no smaller heads
    name_as_the_hub_does(folder / "model.safetensors")
    beside = [str(ROOT), str(ROOT / "tests/engines/shim"), str(ROOT / ".engines/vllm/torchvision")]
    options = ["shapes_mcq,shapes_mcq_gen", "--limit", "6", "--output_dir"]
    specs = {
        str(python): f"vllm[path={folder},dtype=float32,max_model_len=256,enforce_eager=true]",
        sys.executable: f"hf[path={folder},dtype=float32]",
    }
    scores, texts = [], []
    for interpreter, spec in specs.items():
        place = tmp_path / spec.partition("[")[0]
        paths = beside if interpreter == str(python) else beside[:1]
        command = [interpreter, "-m", "mill", "eval", spec, *options, str(place)]
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        for task, found, field in (("shapes_mcq", scores, "score"), ("shapes_mcq_gen", texts, "text")):
            (file,) = place.rglob(f"samples/{task}.jsonl")
            samples = [json.loads(line) for line in file.read_text().splitlines()]
            found.append([answer[field] for sample in samples for answer in sample["responses"][0]])
    assert scores[0] == pytest.approx(scores[1], abs=1e-3) and len(scores[0]) == 24
    assert len(set(scores[1])) > 12  # other pictures are other scores
    assert sum(a[:8] == b[:8] for a, b in zip(*texts, strict=True)) >= 5


def name_as_the_hub_does(file: Path) -> None:
    """vLLM knows the tower's weights by the names that published checkpoints have."""
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    named = {name.replace("vision_tower.", "vision_tower.vision_model.", 1): one for name, one in weights.items()}
    save_file(named, file, metadata={"format": "pt"})


def test_vllm_behind_openai_compat_conforms_and_scores_like_hf() -> None:
    python, port = engine("vllm") / "python", free_port()
    options = ["--model", str(MODEL), "--served-model-name", "smollm2", "--dtype", "float32", "--max-model-len", "512"]
    server = [str(python), "-m", "vllm.entrypoints.openai.api_server", *options, "--enforce-eager"]
    with serving(ENVIRONMENT, *server, "--host", "127.0.0.1", "--port", str(port)):
        spec = f"http://127.0.0.1:{port}/v1[model=smollm2,bos_token_id=1]"
        out = conform(sys.executable, spec, "--reference", f"hf[path={MODEL},dtype=float32]", "--wait", "180")
    assert "18 passed, 0 failed, 1 skipped" in out


def test_mlx_lm_conforms() -> None:
    out = conform(engine("mlx") / "python", f"mlx-lm[path={MODEL},max_context_length=256]")
    assert "17 passed, 0 failed, 1 skipped" in out
    assert "' Paris' -0.258" in out  # what hf and vLLM compute from these weights


def test_vllm_mlx_conforms_in_what_it_serves() -> None:
    binary, port = engine("vllm-mlx") / "vllm-mlx", free_port()
    with serving(ENVIRONMENT, str(binary), "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(port)):
        out = conform(sys.executable, f"vllm-mlx[base_url=http://127.0.0.1:{port}]", "--wait", "60")
    assert "10 passed, 0 failed, 8 skipped" in out


SHARED_PREFIXES = """
import sys
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.models.mlx_lm import MlxModel
start = "Here is a list of capitals. France: Paris. Spain: Madrid."
tails = [" Italy:", " Germany:", " Italy: Rome. Peru:", ""]
asked = [Request(GENERATE, start + tail, options=generation_options(max_gen_toks=6)) for tail in tails]
model = MlxModel(sys.argv[1], max_context_length=256)
together = [answer.text for answer in model.generate_until(asked)]
alone = []
for one in asked:
    model._warm = None
    alone += [answer.text for answer in model.generate_until([one])]
assert together == alone, (together, alone)
(scored,) = model.loglikelihood([Request(LOGLIKELIHOOD, start, " Italy: Rome.", options={"logprobs": "all"})])
whole = scored.distribution
assert whole.shape[0] == len(scored.tokens) and abs(sum(token.logprob for token in scored.tokens) - scored.score) < 1e-3
assert all(abs(float(row[token.id]) - token.logprob) < 1e-4 for row, token in zip(whole, scored.tokens))
print("equal")
"""


def test_mlx_lm_keeps_the_prefix_of_prompts_and_tells_distributions() -> None:
    command = [str(engine("mlx") / "python"), "-c", SHARED_PREFIXES, str(MODEL)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr[-2000:]


def test_compare_finds_hf_and_vllm_alike(tmp_path: Path) -> None:
    specs = [f"hf[path={MODEL},dtype=float32]", f"vllm[path={MODEL},dtype=float32,max_model_len=512,enforce_eager=true]"]
    asked = ["--prompts", "numerics", "--limit", "4", "--max-tokens", "12", "--output", str(tmp_path), "--quiet"]
    command = [
        str(engine("vllm") / "python"),
        "-m",
        "mill",
        "compare",
        *specs,
        *asked,
        "--fail-on",
        "kl_mean>1e-4, match_rate<1",
    ]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    (file,) = (tmp_path / "checks").glob("compare-*/check.json")
    (variant,) = json.loads(file.read_text())["variants"]
    assert variant["counts"]["places"] > 8 and variant["counts"]["nonfinite_places"] == 0
    assert "KL is a lower bound" in " ".join(variant["notes"])
