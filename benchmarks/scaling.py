"""How do seconds, tokens and memory grow with the number of questions, and with the number of few-shot examples?

    MILL_DATA=... python benchmarks/scaling.py --model MODEL_FOLDER [--tiny] [--dtype float32] [--questions 1000,4000,14000]
        [--shots 0,5,25] [--json out.json]

Runs `mill eval hf[...] mmlu --sample N --n_shots K` as a whole command in a new process with a fresh cache: each number of
questions with `--at_shots` examples, and each number of examples with `--at_questions` questions. MMLU has five examples a
subject. More come from its validation split, and are repeated where that is too short: the cost of a prefix is its length.
`--tiny` evaluates a random Llama of two layers with the tokenizer of MODEL_FOLDER, so that what is left is the program's own
cost. "Tokens of all requests" is what would be computed if nothing was shared: each of the four choices by itself, as
`mill show RUN --timing` counts. `benchmarks/draw_scaling.py out.json` draws the results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from whole_command import environment, last_session, machine, read_tasks, run_command, run_mill, warm_up

from mill.support.clocks import FORWARD
from mill.tasks.data import find_local, load_split
from mill.tasks.load import load_builtin, select
from mill.tasks.prompted import PromptedTask

TINY = """
import sys
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
source, target, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(source)
shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(**shape, vocab_size=len(tokenizer), max_position_embeddings=context)
LlamaForCausalLM(config).save_pretrained(target)
tokenizer.save_pretrained(target)
"""
COLUMNS = (
    "questions",
    "shots",
    "seconds",
    "forward passes",
    "computed tokens",
    "tokens of all requests",
    "peak GiB",
    "GPU GiB",
    "truncated",
)


def write_examples(folder: Path, count: int) -> None:
    """A dev split of twice `count` rows for each subject, since an example that equals its question is left out. The
    search path gets this folder first."""
    for task in select(["mmlu"]).tasks:
        assert isinstance(task, PromptedTask)
        names = [name for name in ("dev", "validation") if find_local(task.dataset, name)]
        rows = [row for name in names for row in load_split(task.dataset, (name,))[1]]
        file = folder / task.dataset.name / str(task.dataset.config) / "dev.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in islice(cycle(rows), 2 * count)), encoding="utf-8")
    os.environ["MILL_DATA"] = os.pathsep.join((str(folder), os.environ["MILL_DATA"]))


def measure(spec: str, questions: int, shots: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        options = ["--sample", str(questions), "--n_shots", str(shots), "--output_dir", str(results), "--quiet"]
        done = run_mill(["eval", spec, "mmlu", *options], environment(Path(folder, "cache")))
        session, tasks = last_session(results), read_tasks(results)
    return {
        "questions": sum(task["n"] for task in tasks.values() if "n_shots" in task),
        "shots": shots,
        "seconds": done.seconds,
        "forward": session["timing"][FORWARD],
        "computed_tokens": session["computed_tokens"],
        "requested_tokens": session["prompt_tokens"] + session["output_tokens"],
        "peak_bytes": done.peak_bytes,
        "gpu_peak_bytes": done.gpu_peak_bytes,
        "truncated": sum(task.get("truncated", 0) for task in tasks.values()),
        "timing": session["timing"],
        "device": session["device"],
    }


def row(run: dict[str, Any]) -> str:
    tokens = f"{run['computed_tokens']:,} | {run['requested_tokens']:,}"
    gpu = f"{run['gpu_peak_bytes'] / 2**30:.1f}" if run["gpu_peak_bytes"] else ""
    start = f"| {run['questions']:,} | {run['shots']} | {run['seconds']:.1f} | {run['forward']:.1f} | {tokens} "
    return f"{start}| {run['peak_bytes'] / 2**30:.2f} | {gpu} | {run['truncated']} |"


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--questions", type=numbers, default=[1000, 4000, 14000])
    parser.add_argument("--shots", type=numbers, default=[0, 5, 25])
    parser.add_argument("--at_shots", type=int, default=5, help="examples while the number of questions grows")
    parser.add_argument("--at_questions", type=int, default=4000, help="questions while the number of examples grows")
    parser.add_argument(
        "--context", type=int, default=16384, help="the longest prompt in tokens, as far as the model has it"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load_builtin()
    pairs = [(number, options.at_shots) for number in options.questions]
    pairs += [(options.at_questions, number) for number in options.shots]
    with tempfile.TemporaryDirectory() as folder:
        model = options.model.resolve()
        if options.tiny:
            source, model = model, Path(folder, "tiny")
            run_command([sys.executable, "-c", TINY, str(source), str(model), str(options.context)], os.environ)
        write_examples(Path(folder, "data"), max(options.at_shots, *options.shots))
        warm_up(environment(Path(folder, "cache")))
        spec = f"hf[path={model},dtype={options.dtype},max_context_length={options.context}]"
        name = "A random Llama of 2 layers" if options.tiny else model.name
        found = {"machine": machine(), "model": name, "dtype": options.dtype}
        found |= {"at_shots": options.at_shots, "at_questions": options.at_questions, "runs": []}
        print(f"| {' | '.join(COLUMNS)} |\n|{' ---: |' * len(COLUMNS)}", flush=True)
        for questions, shots in dict.fromkeys(pairs):
            found["runs"].append(measure(spec, questions, shots))
            print(row(found["runs"][-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
