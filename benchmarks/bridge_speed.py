"""Tasks of lm-evaluation-harness on a real model, through lm-eval and through mill: equal answers, and how much faster?

    MILL_DATA=... python benchmarks/bridge_speed.py --model MODEL_FOLDER --lm_eval_python PATH/TO/python [--only bbh,cmmlu]

The same tasks, limits and shots on both sides, on a CPU in float32. lm-eval (`--model hf`) gets the rows of MILL_DATA and
the fastest of the listed batch sizes for each workload, tried on a part of it before the clock starts. Both clocks start
when the weights are loaded, and include loading tasks, prompts, model and scores; lm-eval's bootstrap of standard errors is
off, mill's is on. Prints seconds, the ratio, the largest difference of a log-likelihood, equal texts, and equal scores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from mill.api.task import RenderSettings
from mill.models.spec.open import open_model
from mill.models.spec.parse import parse_spec
from mill.plan.sampling import SampleChoice
from mill.runs.evaluate import RunConfig
from mill.runs.plan import plan_run
from mill.store.samples import read_samples
from mill.tasks.load import select

ROOT = Path(__file__).parents[1]
BLIMP = (
    "anaphor_gender_agreement",
    "determiner_noun_agreement_1",
    "irregular_past_participle_verbs",
    "npi_present_1",
    "wh_island",
)


class Workload(NamedTuple):
    """Tasks with the number of samples of each; None takes the shots that a task names."""

    tasks: tuple[str, ...]
    limit: int
    shots: int | None = None
    max_gen_toks: int | None = None
    batch_sizes: tuple[int, ...] = (1, 8)


BBH = ("boolean_expressions", "navigate", "web_of_lies")
WORKLOADS = {
    "bbh": Workload(tuple(f"bbh_cot_fewshot_{name}" for name in BBH), 20, max_gen_toks=96, batch_sizes=(2, 8)),
    "blimp": Workload(tuple(f"blimp_{name}" for name in BLIMP), 25, batch_sizes=(1, 16)),
    "cmmlu": Workload(("cmmlu_anatomy", "cmmlu_astronomy"), 30, shots=5),
    "truthfulqa_mc2": Workload(("truthfulqa_mc2",), 16),
    "lambada": Workload(("lambada_openai",), 60, batch_sizes=(1, 16)),
    "mgsm": Workload(("mgsm_en_cot_en",), 12, shots=4, max_gen_toks=96, batch_sizes=(4, 12)),
}

# Runs in lm-eval's process; argv is (plan file, result file).
PEER = """
import json, sys, time
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from mill.bridges.lm_eval.library import local_first
plan = json.load(open(sys.argv[1]))
manager = TaskManager(include_defaults=False, include_path=plan["folders"])
options = {"num_fewshot": plan["shots"], "bootstrap_iters": 0, "log_samples": True, "task_manager": manager}
if plan["max_gen_toks"]:
    options["gen_kwargs"] = f"max_gen_toks={plan['max_gen_toks']}"
def run(lm, limit, tasks):
    return evaluator.simple_evaluate(model=lm, tasks=tasks, limit=limit, **options)
def model(size):
    return HFLM(pretrained=plan["model"], dtype="float32", device="cpu", batch_size=size)
tried = {}
with local_first():
    for size in plan["batch_sizes"]:
        lm = model(size)
        started = time.time()
        run(lm, max(2, plan["limit"] // 6), plan["tasks"][:1])
        tried[size] = time.time() - started
    best = min(tried, key=tried.get)
    lm = model(best)
    started = time.time()
    found = run(lm, plan["limit"], plan["tasks"])
    seconds = time.time() - started
samples = {}
for name, rows in found["samples"].items():
    once = {row["doc_id"]: row for row in rows}  # a task with two filters lists samples twice
    samples[name] = [
        [float(one[0][0]) if isinstance(one[0], (list, tuple)) else one[0] for one in once[number]["resps"]]
        for number in sorted(once)
    ]
scores = {name: {key: value for key, value in row.items() if "," in key and "_stderr" not in key}
          for name, row in found["results"].items()}
json.dump({"seconds": seconds, "batch_size": best, "samples": samples, "scores": scores}, open(sys.argv[2], "w"))
"""


def run_peer(python: str, workload: Workload, model: str, folders: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        plan, result = Path(folder, "plan.json"), Path(folder, "result.json")
        plan.write_text(json.dumps({**workload._asdict(), "model": model, "folders": folders}))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}
        subprocess.run([python, "-c", PEER, str(plan), str(result)], check=True, stdout=sys.stderr, env=environment)
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def run_mill(workload: Workload, model: str) -> dict[str, Any]:
    decoding = {"max_gen_toks": workload.max_gen_toks} if workload.max_gen_toks else {}
    settings = RenderSettings(n_shots=workload.shots, gen_kwargs=decoding)
    names = [f"lm-eval:{name}" for name in workload.tasks]
    import lm_eval.evaluator  # noqa: F401  the other side imports it before its clock starts, too

    with tempfile.TemporaryDirectory() as folder:
        spec = parse_spec(f"hf[path={model},dtype=float32]")
        opened = open_model(spec)
        opened.load()
        started = time.time()
        config = RunConfig(output_dir=Path(folder), settings=settings, samples=SampleChoice(limit=workload.limit))
        run = plan_run(spec, opened, select(names), config)
        outcome = run.execute(quiet=True)
        seconds = time.time() - started
        samples = {
            name: [
                [one.score if one.text is None else one.text for one in sample.responses[0]]
                for sample in read_samples(outcome.folder.samples_file(f"lm-eval:{name}"))
            ]
            for name in workload.tasks
        }
    scores = {one.task: {name: estimate.value for name, estimate in one.metrics.items()} for one in outcome.tasks}
    return {"seconds": seconds, "samples": samples, "scores": scores}


def agreement(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Differences of answers and of scores."""
    pairs = [
        (a, b)
        for name, rows in ours["samples"].items()
        for mine, other in zip(rows, theirs["samples"][name], strict=True)
        for a, b in zip(mine, other, strict=True)
    ]
    if isinstance(pairs[0][0], str):
        answers = f"{sum(a == b for a, b in pairs)} of {len(pairs)} texts equal"
    else:
        answers = f"largest difference {max(abs(a - b) for a, b in pairs):.1e}"
    differing = [
        f"{name} {key}: {value} and {ours['scores'][f'lm-eval:{name}'][key.removesuffix(',none')]}"
        for name, scores in theirs["scores"].items()
        for key, value in scores.items()
        if abs(value - ours["scores"][f"lm-eval:{name}"][key.removesuffix(",none")]) > 1e-3 * max(1, abs(value))
    ]
    return f"{answers} | {'equal' if not differing else '; '.join(differing)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lm_eval_python", required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(WORKLOADS))
    given = parser.parse_args()
    from mill.tasks.load import source

    lm_eval_tasks: Any = source("lm-eval")
    print("| workload | mill s | lm-eval s | batch | ratio | answers | scores |")
    print("| --- | ---: | ---: | ---: | ---: | --- | --- |", flush=True)
    totals = [0.0, 0.0]
    for name in given.only:
        workload = WORKLOADS[name]
        folders = sorted({str(folder) for task in workload.tasks for folder in lm_eval_tasks.folders_of(task)})
        ours = run_mill(workload, given.model)
        theirs = run_peer(given.lm_eval_python, workload, given.model, folders)
        totals = [totals[0] + ours["seconds"], totals[1] + theirs["seconds"]]
        ratio = theirs["seconds"] / ours["seconds"]
        line = f"| {name} | {ours['seconds']:.1f} | {theirs['seconds']:.1f} | {theirs['batch_size']} | {ratio:.2f} "
        print(f"{line}| {agreement(ours, theirs)} |", flush=True)
    print(f"| together | {totals[0]:.1f} | {totals[1]:.1f} | | {totals[1] / totals[0]:.2f} | | |")


if __name__ == "__main__":
    main()
