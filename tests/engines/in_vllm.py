"""Runs in vLLM's environment: commands of mill, all of them on one engine. argv: a model, a folder for what they print."""

import contextlib
import functools
import io
import json
import sys
from pathlib import Path

import vllm

from mill.cli.main import run
from mill.models.vllm import VLLMModel


def commands(model: Path, out: Path) -> dict[str, list[str]]:
    spec = f"vllm[path={model},dtype=float32,max_model_len=1024,enforce_eager=true"
    reference = f"hf[path={model},dtype=float32]"
    compare = ["--prompts", "numerics", "--limit", "4", "--max-tokens", "12", "--fail-on", "kl_mean>1e-4, match_rate<1"]
    return {
        "conform": ["conform", f"{spec}]", "--reference", reference, "--tolerance", "1e-3"],
        "compare": ["compare", reference, f"{spec}]", *compare, "--output", str(out), "--quiet"],
    }


def main(model: Path, out: Path) -> None:
    vllm.LLM = functools.cache(vllm.LLM)
    end_engine, VLLMModel.clean = VLLMModel.clean, lambda self: None  # type: ignore[method-assign]
    for name, command in commands(model, out).items():
        if name == "compare":  # the last
            VLLMModel.clean = end_engine  # type: ignore[method-assign]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = run(command)
        (out / f"{name}.json").write_text(json.dumps([code, printed.getvalue()]))
    print(vllm.LLM.cache_info())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
