"""Are mill's log-likelihoods those of lm-evaluation-harness? The same model and rows through both, choice by choice.

    python benchmarks/parity_lm_eval.py --model MODEL_FOLDER --lm_eval_python PATH/TO/python

Needs MILL_DATA with MMLU and HellaSwag (with its ctx_a and ctx_b columns), and an environment that has lm-eval 0.4.13.
The harness runs its own task definitions; only `datasets.load_dataset` is pointed at the rows that mill read.
Prints a table and exits 1 if any log-likelihood differs by more than the tolerance or any accuracy differs at all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from peer import run_peer

from mill.plan.sampling import SampleChoice
from mill.runs.evaluate import RunConfig
from mill.runs.plan import plan
from mill.store.samples import read_samples
from mill.tasks.load import load_builtin, select

TOLERANCE = 1e-4
TASKS = {"mmlu_abstract_algebra": None, "mmlu_anatomy": None, "mmlu_us_foreign_policy": None, "hellaswag": 200}

PEER = """
from lm_eval.models.huggingface import HFLM
model = HFLM(pretrained=plan["model"], dtype="float32", device="cpu", batch_size=plan["batch_size"], max_length=4096)
out = {}
for task, limit in plan["tasks"].items():
    shots = 5 if task.startswith("mmlu") else 0
    started = time.time()
    options = {"num_fewshot": shots, "limit": limit, "bootstrap_iters": 0, "log_samples": True}
    found = lm_eval.simple_evaluate(model=model, tasks=[task], **options)
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    out[task] = {
        "seconds": time.time() - started,
        "acc": found["results"][task]["acc,none"],
        "acc_norm": found["results"][task].get("acc_norm,none"),
        "scores": [[float(choice[0][0]) for choice in sample["resps"]] for sample in samples],
    }
json.dump(out, open(sys.argv[2], "w"))
"""


def run_mill(model: str, tasks: dict[str, int | None], folder: Path) -> dict[str, dict]:
    """Each task by itself, so that the seconds are comparable."""
    found = {}
    for name, limit in tasks.items():
        run = plan(
            f"hf[path={model},dtype=float32]",
            select([name]),
            RunConfig(output_dir=folder, samples=SampleChoice(limit=limit)),
        )
        run.model.loglikelihood([])  # loads the weights before the clock starts, as the peer does
        started = time.time()
        outcome = run.execute(quiet=True)
        samples = read_samples(outcome.folder.samples_file(name))
        metrics = outcome.tasks[0].metrics
        found[name] = {
            "seconds": time.time() - started,
            "acc": metrics["acc"].value,
            "acc_norm": metrics["acc_norm"].value if "acc_norm" in metrics else None,
            "scores": [[choice.score for choice in sample.responses[0]] for sample in samples],
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--lm_eval_python", required=True)
    parser.add_argument("--batch_size", type=int, default=4, help="of lm-eval")
    parser.add_argument("--limit", type=int, default=None, help="of every task, for a quick look")
    options = parser.parse_args()
    load_builtin()
    tasks = {name: options.limit or limit for name, limit in TASKS.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = {"model": options.model, "batch_size": options.batch_size}
        peer = run_peer(options.lm_eval_python, PEER, tasks, folder, **plan)
        ours = run_mill(options.model, tasks, folder / "results")
    heads = ("choices", "max diff", "acc mill", "acc peer", "norm mill", "norm peer", "s mill", "s peer", "ratio")
    print(f"{'task':<24}" + "".join(f"{head:>11}" for head in heads))
    good = True
    for task in tasks:
        a, b = ours[task], peer[task]
        both = zip(a["scores"], b["scores"], strict=True)
        pairs = [pair for mine, theirs in both for pair in zip(mine, theirs, strict=True)]
        worst = max(abs(x - y) for x, y in pairs)
        same = abs(a["acc"] - b["acc"]) < 1e-12 and (a["acc_norm"] is None or abs(a["acc_norm"] - b["acc_norm"]) < 1e-12)
        good = good and worst <= TOLERANCE and same
        accuracies = (a["acc"], b["acc"], a["acc_norm"], b["acc_norm"])
        shown = ["-" if value is None else f"{value:.4f}" for value in accuracies]
        shown += [f"{value:.2f}" for value in (a["seconds"], b["seconds"], b["seconds"] / a["seconds"])]
        print(f"{task:<24}" + "".join(f"{cell:>11}" for cell in (str(len(pairs)), f"{worst:.1e}", *shown)))
    print("equal within", TOLERANCE if good else f"{TOLERANCE}: NO")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
