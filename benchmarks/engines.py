"""One model through every engine: accuracy, seconds, and the largest difference of a log-likelihood to transformers.

    make engines && MILL_DATA=... python benchmarks/engines.py [--only hf,vllm] [--folder results-engines]

50 MMLU questions and 20 GSM8K problems, both without examples, SmolLM2-135M-Instruct in float32 (llama.cpp also as Q4_1).
Each row is a `mill eval` in the environment of its engine, each server is started once. Exits 1 where a float32 engine is
further than 1e-3 nats from transformers. A row that has run already is read from the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.servers import free_port, llama_server, serving  # noqa: E402

TOLERANCE = 1e-3
MODEL = ROOT / ".demo/model/smollm2"
GGUF = ROOT / ".demo/model/SmolLM2-135M-Instruct.Q4_1.gguf"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
ENVIRONMENT |= {"OPENAI_API_KEY": "none"}  # LiteLLM wants one to be there
SCORING = ["mmlu_anatomy", "--limit", "50", "--n_shots", "0"]
GENERATION = ["gsm8k", "--limit", "20", "--n_shots", "0", "--gen_kwargs", "max_gen_toks=160"]


def float32_gguf() -> Path:
    """The weights of the Q4_1 file as float32 values, which the safetensors contain."""
    target = GGUF.with_suffix(".f32.gguf")
    if target.is_file():
        return target
    import gguf
    from gguf.quants import dequantize

    reader = gguf.GGUFReader(GGUF)
    writer = gguf.GGUFWriter(target.with_suffix(".part"), arch="llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    target.with_suffix(".part").rename(target)
    return target


def rows(wanted: list[str]) -> Iterator[tuple[str, str, str, list[list[str]]]]:
    """(name, python, model spec, task arguments); the server of a row runs while the row is used."""
    here, engines = sys.executable, ROOT / ".engines"
    both = [SCORING, GENERATION]
    if "hf" in wanted:
        yield "hf", here, f"hf[path={MODEL},dtype=float32]", both
    if "vllm" in wanted:
        spec = f"vllm[path={MODEL},dtype=float32,max_model_len=1024,enforce_eager=true]"
        yield "vllm", str(engines / "vllm/bin/python"), spec, both
    if "vllm server" in wanted:
        port = str(free_port())
        options = ["--model", str(MODEL), "--served-model-name", "smollm2", "--dtype", "float32", "--max-model-len", "1024"]
        server = [str(engines / "vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server", *options]
        with serving(ENVIRONMENT, *server, "--enforce-eager", "--host", "127.0.0.1", "--port", port):
            yield "vllm server", here, f"http://127.0.0.1:{port}/v1[model=smollm2]", both
    for name in ("llama.cpp f32", "llama.cpp q4_1"):
        if name in wanted:
            exact = name.endswith("f32")
            with llama_server(float32_gguf() if exact else GGUF, exact=exact) as url:
                yield name, here, f"llama-cpp[base_url={url}]", both
                if exact:
                    yield f"{name}, openai-compat", here, f"openai-compat[base_url={url}]", [GENERATION]
                    yield f"{name}, litellm", here, f"litellm[model=openai/smollm2,api_base={url}/v1]", [GENERATION]
    if "mlx-lm" in wanted:
        yield "mlx-lm", str(engines / "mlx/bin/python"), f"mlx-lm[path={MODEL}]", both
    if "vllm-mlx" in wanted:
        port = str(free_port())
        command = [str(engines / "vllm-mlx/bin/vllm-mlx"), "serve", str(MODEL), "--host", "127.0.0.1", "--port", port]
        with serving(ENVIRONMENT, *command):
            yield "vllm-mlx", here, f"vllm-mlx[base_url=http://127.0.0.1:{port},concurrency=1,timeout=600]", [GENERATION]


def run(name: str, python: str, spec: str, tasks: list[str], folder: Path) -> dict[str, Any]:
    """A `mill eval` of one task, unless the folder has its results already."""
    output_dir = folder / name.replace(" ", "-") / tasks[0]
    if not list(output_dir.rglob("results.json")):
        command = [python, "-m", "mill", "eval", spec, *tasks, "--output_dir", str(output_dir), "--quiet", "--wait", "240"]
        subprocess.run(command, env=ENVIRONMENT, check=True, stdout=sys.stderr)
    (results,) = output_dir.rglob("results.json")
    manifest = json.loads((results.parent / "manifest.json").read_text())
    lines = (results.parent / f"samples/{tasks[0]}.jsonl").read_text().splitlines()
    task = json.loads(results.read_text())["tasks"][tasks[0]]
    samples = [json.loads(line) for line in lines]
    metric = "acc" if "acc" in task["metrics"] else "exact_match"
    return {
        "value": task["metrics"][metric]["value"],
        "seconds": sum(session["seconds"] for session in manifest["sessions"]),
        "scores": [answer["score"] for sample in samples for answer in sample["responses"][0] if "score" in answer],
        "texts": [answer["text"] for sample in samples for answer in sample["responses"][0] if "text" in answer],
    }


def main() -> None:
    names = ["hf", "vllm", "vllm server", "llama.cpp f32", "llama.cpp q4_1", "mlx-lm", "vllm-mlx"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=names)
    parser.add_argument("--folder", type=Path, default=Path("results-engines"))
    options = parser.parse_args()
    reference: dict[str, dict[str, Any]] = {}
    table, worst = [], 0.0
    with ExitStack() as stack:
        made = rows(["hf", *(name for name in options.only if name != "hf")])
        stack.callback(made.close)  # type: ignore[attr-defined]
        for name, python, spec, tasks in made:
            found = {arguments[0]: run(name, python, spec, arguments, options.folder) for arguments in tasks}
            reference = reference or found
            scored, written = found.get("mmlu_anatomy"), found["gsm8k"]
            far = ""
            if scored:
                pairs = zip(scored["scores"], reference["mmlu_anatomy"]["scores"], strict=True)
                distance = max(abs(one - other) for one, other in pairs)
                far = f"{distance:.1e}"
                worst = worst if "q4_1" in name else max(worst, distance)
            equal = sum(map(str.__eq__, written["texts"], reference["gsm8k"]["texts"]))
            acc = f"{scored['value']:.2f} | {scored['seconds']:.0f}" if scored else " | "
            table.append(f"| {name} | {acc} | {far} | {written['value']:.2f} | {written['seconds']:.0f} | {equal} of 20 |")
            print(table[-1], file=sys.stderr, flush=True)
    print("| engine | MMLU acc | seconds | largest difference | GSM8K | seconds | texts as hf |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(table))
    sys.exit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
