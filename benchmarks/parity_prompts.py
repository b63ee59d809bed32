"""Are mill's prompts those of lm-evaluation-harness? Every context and continuation, compared as text. No model needed.

    python benchmarks/parity_prompts.py --lm_eval_python PATH/TO/python

Needs MILL_DATA with the benchmarks (scripts/fetch_demo.py) and an environment that has lm-eval 0.4.13. Tasks whose
examples are drawn at random are compared without examples, since every draw differs by design.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from peer import run_peer

from mill.api.task import RenderSettings
from mill.tasks.load import load_builtin, make_task

LIMIT = 200
TASKS = ("mmlu_anatomy", "mmlu_us_foreign_policy", "hellaswag", "arc_easy", "arc_challenge", "piqa", "winogrande", "boolq",
         "openbookqa", "gsm8k")  # fmt: skip

PEER = """
from lm_eval.tasks import get_task_dict
out = {}
for name, limit in plan["tasks"].items():
    (task,) = get_task_dict([name]).values()
    task.set_config(key="num_fewshot", value=5 if name.startswith("mmlu") else 0)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    out[name] = [[i.args[0], i.args[1] if isinstance(i.args[1], str) else ""] for i in task.instances]
json.dump(out, open(sys.argv[2], "w"))
"""


def ours(name: str) -> list[list[str]]:
    task = make_task(name)
    settings = RenderSettings(n_shots=None if name.startswith("mmlu") else 0)
    requests = [request for sample in task.samples()[:LIMIT] for request in task.requests(sample, settings)]
    return [[request.text, request.continuation] for request in requests]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lm_eval_python", required=True)
    options = parser.parse_args()
    load_builtin()
    with tempfile.TemporaryDirectory() as folder:
        peer = run_peer(options.lm_eval_python, PEER, dict.fromkeys(TASKS, LIMIT), Path(folder))
    good = True
    for name in TASKS:
        mine, theirs = ours(name), peer[name]
        equal = sum(a == b for a, b in zip(mine, theirs, strict=False))
        good = good and equal == len(mine) == len(theirs)
        print(f"{name:<24}{equal:>6} of {len(theirs)} requests equal")
        if equal < len(theirs):
            print(next((a, b) for a, b in zip(mine, theirs, strict=False) if a != b))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
