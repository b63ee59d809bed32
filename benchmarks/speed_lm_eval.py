"""How much faster than lm-evaluation-harness? The same model, rows and prompts through both, on a CPU.

    MILL_DATA=... python benchmarks/speed_lm_eval.py --model MODEL_FOLDER --lm_eval_python PATH/TO/python [--only mmlu,gsm8k]

Needs MMLU, HellaSwag (with its ctx_a and ctx_b columns), GSM8K and WikiText-2 under MILL_DATA, and an environment that has
lm-eval 0.4.13. The harness runs its own task definitions on the rows that mill read; examples are the first of their split
on both sides. Its batch size is the fastest of those listed for each workload, on a part of it, measured before the clock
starts. Both clocks start when the weights are loaded. Prints seconds, the ratio, the tokens fed and the distinct ones,
whether scores agree, and the peak memory of either process so far (of one workload where `--only` names one).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from peer import run_peer

from mill.api.task import RenderSettings
from mill.models.hf.model import TransformersModel
from mill.models.prefix.trie import make_trie
from mill.plan.sampling import SampleChoice
from mill.runs.evaluate import RunConfig
from mill.runs.plan import plan
from mill.store.samples import read_samples
from mill.tasks.commonsense import HellaSwag
from mill.tasks.data import load_split
from mill.tasks.load import load_builtin, make_task, select


class Workload(NamedTuple):
    """What both sides do; the harness tries `batch_sizes` on the first `trial` samples of the first task."""

    tasks: dict[str, int]
    shots: int = 0
    generation: dict[str, Any] = {}
    batch_sizes: tuple[int, ...] = (1, 8)
    trial: int = 2


MMLU = {"mmlu_abstract_algebra": 60, "mmlu_anatomy": 60, "mmlu_professional_law": 40, "mmlu_marketing": 60}
WORKLOADS = {
    "mmlu": Workload(MMLU, shots=5, trial=8),
    "hellaswag 0-shot": Workload({"hellaswag": 400}, trial=8),
    "hellaswag 10-shot": Workload({"hellaswag": 60}, shots=10),
    "gsm8k": Workload({"gsm8k": 64}, shots=4, generation={"max_gen_toks": 128}, batch_sizes=(8, 32), trial=32),
    "wikitext": Workload({"wikitext": 8}, batch_sizes=(1,)),
}

PEER = """
from lm_eval.models.huggingface import HFLM
import torch
sizes = plan["batch_sizes"]
options = {"num_fewshot": plan["shots"], "bootstrap_iters": 0, "log_samples": True}
if plan["generation"]:
    options["gen_kwargs"] = ",".join(f"{k}={v}" for k, v in plan["generation"].items())
from lm_eval.api import samplers
samplers.SAMPLER_REGISTRY["default"] = samplers.FirstNSampler
def model(size):
    return HFLM(pretrained=plan["model"], dtype="float32", device="cpu", batch_size=size, max_length=4096)
def run(lm, name, limit):
    return lm_eval.simple_evaluate(model=lm, tasks=[name], limit=limit, **options)
first = next(iter(plan["tasks"]))
tried = {}
for size in sizes if len(sizes) > 1 else ():
    lm = model(size)
    started = time.time()
    run(lm, first, plan["trial"])
    tried[size] = time.time() - started
best = min(tried, key=tried.get) if tried else sizes[0]
lm = model(best)
out = {"batch_size": best, "tried": tried, "tasks": {}, "seconds": 0.0}
for name, limit in plan["tasks"].items():
    started = time.time()
    found = run(lm, name, limit)
    out["seconds"] += time.time() - started
    once = {sample["doc_id"]: sample for sample in found["samples"][name]}  # a task with two filters lists samples twice
    samples = [once[index] for index in sorted(once)]
    out["tasks"][name] = [
        [float(one[0][0]) if isinstance(one[0], (list, tuple)) else one[0] for one in sample["resps"]] for sample in samples
    ]
import resource
out["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
json.dump(out, open(sys.argv[2], "w"))
"""


def split_hellaswag(folder: Path) -> None:
    """HellaSwag's validation rows as two splits, the first twenty to take examples from."""
    rows = load_split(HellaSwag.dataset, ("validation",))[1]
    data = folder / HellaSwag.dataset.name
    data.mkdir(parents=True)
    for split, part in (("train", rows[:20]), ("validation", rows[20:])):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    os.environ["MILL_DATA"] = f"{folder}{os.pathsep}{os.environ['MILL_DATA']}"


def run_mill(model: str, tasks: dict[str, int | None], settings: RenderSettings, folder: Path) -> dict[str, Any]:
    seconds, found = 0.0, {}
    spec = f"hf[path={model},dtype=float32]"
    for name, limit in tasks.items():
        run = plan(spec, select([name]), RunConfig(output_dir=folder, settings=settings, samples=SampleChoice(limit=limit)))
        run.model.load()
        started = time.time()
        outcome = run.execute(quiet=True)
        seconds += time.time() - started
        samples = read_samples(outcome.folder.samples_file(name))
        found[name] = [[one.score if one.text is None else one.text for one in sample.responses[0]] for sample in samples]
    return {"seconds": seconds, "tasks": found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def count_tokens(model: str, tasks: dict[str, int | None], settings: RenderSettings) -> tuple[int, int]:
    """Tokens that go in where every row is computed alone (the choices of one letter as one row), and distinct ones."""
    opened = TransformersModel(model, dtype="float32")
    fed = distinct = 0
    for name, limit in tasks.items():
        task = make_task(name)
        requests = [request for sample in task.samples()[:limit] for request in task.requests(sample, settings)]
        if task.kind == "generate_until":
            rows = [prompt.ids for prompt in opened.tokens.prompts(requests)]
        elif task.kind == "loglikelihood_rolling":
            rows = [row.ids for request in requests for row in opened.tokens.windows(request)]
        else:
            rows = list({tuple(pair.ids[:-1]): pair.ids[:-1] for pair in opened.tokens.pairs(requests)}.values())
        fed += sum(map(len, rows))
        distinct += make_trie(rows).tokens
    return fed, distinct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lm_eval_python", required=True)
    parser.add_argument("--part", type=float, default=1.0, help="the share of each workload's samples to run")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(WORKLOADS))
    options = parser.parse_args()
    load_builtin()
    rows = tempfile.TemporaryDirectory()
    split_hellaswag(Path(rows.name))
    counts = "batch | ratio | tokens fed | distinct | largest difference"
    print(f"| workload | mill s | lm-eval s | {counts} | GiB mill | GiB lm-eval |")
    print("| --- |" + " ---: |" * 9, flush=True)
    for name in options.only:
        workload = WORKLOADS[name]
        tasks = {task: max(1, round(limit * options.part)) for task, limit in workload.tasks.items()}
        settings = RenderSettings(n_shots=workload.shots, same_shots=True, gen_kwargs=workload.generation)
        fed, distinct = count_tokens(options.model, tasks, settings)
        with tempfile.TemporaryDirectory() as folder:
            mine = run_mill(options.model, tasks, settings, Path(folder, "mill"))
            plan = {**workload._asdict(), "model": options.model, "with_shots": bool(workload.shots)}
            del plan["tasks"]
            theirs = run_peer(options.lm_eval_python, PEER, tasks, Path(folder), **plan)
        line = f"| {name} | {mine['seconds']:.0f} | {theirs['seconds']:.0f} | {theirs['batch_size']} "
        line += f"| {theirs['seconds'] / mine['seconds']:.2f} | {fed:,} | {distinct:,} | {agreement(mine, theirs)} "
        line += f"| {mine['peak'] / 2**20:.1f} | {theirs['peak'] / 2**20:.1f} |"
        print(line, flush=True)
        print(json.dumps(theirs["tried"]), file=sys.stderr, flush=True)


def agreement(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    pairs = [
        (a, b)
        for name in mine["tasks"]
        for ours, other in zip(mine["tasks"][name], theirs["tasks"][name], strict=True)
        for a, b in zip(ours, other, strict=True)
    ]
    if isinstance(pairs[0][0], str):
        return f"{sum(a == b for a, b in pairs)} of {len(pairs)} texts equal"
    return f"{max(abs(a - b) for a, b in pairs):.1e}"


if __name__ == "__main__":
    main()
