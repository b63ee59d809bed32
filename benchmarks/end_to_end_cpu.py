"""Whole commands on a CPU beside lm-evaluation-harness, from the shell's prompt and back.

    MILL_DATA=... python benchmarks/end_to_end_cpu.py --model MODEL_FOLDER --lm_eval_python PATH/TO/python
        [--only mmlu,hellaswag,overhead,start] [--part 1.0] [--json out.json]

Needs MMLU and HellaSwag (with its ctx_a and ctx_b columns) under MILL_DATA, and an environment that has lm-eval 0.4.13.

- mmlu, hellaswag: `mill eval` and lm-eval on the same rows and prompts, each in a new process. "Whole command" is from the
  start of the process to its end. "Evaluation alone" starts when the weights are loaded. The harness runs the faster of the
  listed batch sizes, which another process finds first; its bootstrap and its samples file are off.
- overhead: the share of a run of about 60 s that is neither forward passes nor decoding nor loading; then the same command
  again, when every response is recorded.
- start: `mill --help`, and `--dry_run` in an empty folder.

Every command has a fresh cache and output folder, but the one that repeats another. Bytecode of packages is compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from peer import plan_peer
from whole_command import environment, last_session, machine, read_tasks, run_command, run_mill, warm_up

from mill.support.clocks import DECODING, FORWARD, HASHING, LOADING, START
from mill.tasks.load import load_builtin


class Comparison(NamedTuple):
    """What both sides do; `limit` is that of each task. The harness tries `batch_sizes` on the first samples."""

    tasks: tuple[str, ...]
    shots: int
    limit: int | None
    goal: float
    batch_sizes: tuple[int, ...] = (1, 8)
    trial: int = 8


COMPARISONS = {
    "mmlu": Comparison(("mmlu_anatomy", "mmlu_virology"), shots=5, limit=None, goal=5.7),
    "hellaswag": Comparison(("hellaswag",), shots=0, limit=200, goal=2.3),
}
LARGEST = {"mmlu_anatomy": 135, "mmlu_virology": 166}  # questions of the test split
OVERHEAD_TASKS = "mmlu_anatomy,hellaswag"
OVERHEAD_SECONDS, FIRST_LIMIT, MOST_TRIES = 60.0, 8, 4
MOST_OVERHEAD, MOST_CACHED, MOST_HELP = 0.05, 2.5, 0.1

PEER = """
def model(size):
    return HFLM(pretrained=plan["model"], dtype="float32", device="cpu", batch_size=size, max_length=4096)
def run(lm, limit):
    options = {"num_fewshot": plan["shots"], "limit": limit, "bootstrap_iters": 0, "log_samples": False}
    started = time.time()
    found = lm_eval.simple_evaluate(model=lm, tasks=list(plan["tasks"]), **options)
    return time.time() - started, found["results"]
from lm_eval.models.huggingface import HFLM
out = {}
if len(plan["batch_sizes"]) > 1:
    run(model(1), 1)  # else the first size is charged with what is read and compiled once
for size in plan["batch_sizes"]:
    seconds, results = run(model(size), plan["limit"])
    out[size] = {"evaluation": seconds, "acc": {name: results[name]["acc,none"] for name in plan["tasks"]}}
json.dump(out, open(sys.argv[2], "w"))
"""


class Bench:
    """Runs commands in folders of its own, prints a table, and collects what it measured."""

    def __init__(self, model: Path, lm_eval_python: str, folder: Path) -> None:
        self.spec, self.model = f"hf[path={model},dtype=float32,device_map=cpu]", model
        self.lm_eval_python, self.folder = lm_eval_python, folder
        self.found: dict[str, Any] = {"machine": machine(), "model": model.name}
        print(f"| {machine()}, {model.name} | | goal | reached |\n| --- | ---: | ---: | --- |", flush=True)

    def row(self, what: str, value: str, goal: str = "", reached: bool | None = None) -> None:
        print(f"| {what} | {value} | {goal} | {'' if reached is None else 'yes' if reached else 'no'} |", flush=True)

    def fresh(self, name: str) -> Path:
        """A folder for one command and those that repeat it; the command runs in its empty folder `cwd`."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        (folder / "cwd").mkdir()
        return folder

    def evaluate(self, folder: Path, *arguments: str) -> dict[str, Any]:
        """Seconds of `mill eval` and what its run recorded."""
        command = ["eval", self.spec, *arguments, "--output_dir", str(folder / "results"), "--quiet"]
        done = run_mill(command, environment(folder / "cache"), folder / "cwd")
        tasks, session = read_tasks(folder / "results"), last_session(folder / "results")
        timing = session["timing"]
        return {
            "seconds": done.seconds,
            "evaluation": sum(timing.values()) - sum(timing.get(phase, 0.0) for phase in (START, HASHING, LOADING)),
            "acc": {name: task["metrics"]["acc"]["value"] for name, task in tasks.items()},
            "questions": {name: task["n"] for name, task in tasks.items()},
            "computed": session["computed"],
            "peak_bytes": done.peak_bytes,
            "timing": timing,
        }

    def run_lm_eval(self, tasks: list[str], shots: int, limit: int | None, batch_sizes: list[int]) -> dict[str, Any]:
        """Seconds of its process, and by batch size those of the evaluation alone, with its accuracies."""
        folder = self.fresh("lm-eval")
        plan = {"model": str(self.model), "shots": shots, "limit": limit, "batch_sizes": batch_sizes}
        rows = dict.fromkeys(tasks, limit)
        command, result = plan_peer(self.lm_eval_python, PEER, rows, folder, with_shots=bool(shots), **plan)
        given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = run_command(command, {**given, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"})
        return {"seconds": done.seconds, "peak_bytes": done.peak_bytes, "by_batch": json.loads(result.read_text())}

    def compare(self, name: str, part: float) -> None:
        work = COMPARISONS[name]
        largest = work.limit or max(LARGEST[task] for task in work.tasks)
        limit = work.limit if part == 1.0 else max(1, round(largest * part))
        options = ["--n_shots", str(work.shots), *(["--limit", str(limit)] if limit else [])]
        mine = self.evaluate(self.fresh(name), ",".join(work.tasks), *options)
        tried = self.run_lm_eval([*work.tasks[:1]], work.shots, min(work.trial, limit or largest), [*work.batch_sizes])
        best = min(work.batch_sizes, key=lambda size: tried["by_batch"][str(size)]["evaluation"])
        theirs = self.run_lm_eval([*work.tasks], work.shots, limit, [best])
        theirs |= {"batch_size": best, **theirs.pop("by_batch")[str(best)], "tried": tried["by_batch"]}
        differences = {task: abs(mine["acc"][task] - theirs["acc"][task]) for task in work.tasks}
        ratio, alone = (theirs[kind] / mine[kind] for kind in ("seconds", "evaluation"))
        self.found[name] = {"mill": mine, "lm_eval": theirs, "ratio": ratio, "ratio_evaluation": alone}
        label = f"{name} {work.shots}-shot, {sum(mine['questions'].values())} questions"
        self.row(f"{label}: whole command, mill", f"{mine['seconds']:.1f} s")
        self.row(f"{label}: whole command, lm-eval, batches of {best}", f"{theirs['seconds']:.1f} s")
        self.row(f"{label}: ratio of whole commands", f"{ratio:.2f}", f">= {work.goal}", ratio >= work.goal)
        self.row(f"{label}: evaluation alone", f"{mine['evaluation']:.1f} and {theirs['evaluation']:.1f} s: {alone:.2f}")
        for task, difference in differences.items():
            accuracies = f"{mine['acc'][task]:.4f} and {theirs['acc'][task]:.4f}"
            self.row(f"{task}: acc of mill and lm-eval", accuracies, "equal", difference < 1e-9)

    def overhead(self) -> None:
        """A run of about a minute, found by running shorter or longer ones; then the same command again."""
        limit = FIRST_LIMIT
        for _ in range(MOST_TRIES):
            folder, options = self.fresh("overhead"), [OVERHEAD_TASKS, "--limit", str(limit)]
            found = self.evaluate(folder, *options)
            network = sum(found["timing"].get(phase, 0.0) for phase in (FORWARD, DECODING, LOADING))
            if 0.8 <= found["seconds"] / OVERHEAD_SECONDS <= 1.3:
                break
            forward = found["timing"][FORWARD]
            limit = max(1, round(limit * (OVERHEAD_SECONDS - found["seconds"] + forward) / forward))
        rest = found["seconds"] - network
        share = rest / found["seconds"]
        again = self.evaluate(folder, *options)
        self.found["overhead"] = {**found, "limit": limit, "share": share}
        self.found["cached"] = again
        label = f"{OVERHEAD_TASKS}, {sum(found['questions'].values())} questions"
        reached = f"{rest:.1f} of {found['seconds']:.1f} s, {share:.1%}"
        self.row(f"{label}: not forward passes, loading", reached, f"<= {MOST_OVERHEAD:.0%}", share <= MOST_OVERHEAD)
        if again["computed"]:
            sys.exit(f"the second command computed {again['computed']} responses again: it is no measurement of the cache")
        seconds = again["seconds"]
        self.row("the same command again, all recorded", f"{seconds:.2f} s", f"<= {MOST_CACHED} s", seconds <= MOST_CACHED)

    def start(self) -> None:
        folder = self.fresh("start")
        given, cwd = environment(folder / "cache"), folder / "cwd"
        times = [run_command([sys.executable, "-m", "mill", "--help"], given, cwd).seconds for _ in range(5)]
        median = statistics.median(times)
        self.row("`mill --help`, median of 5", f"{median:.3f} s", f"<= {MOST_HELP} s", median <= MOST_HELP)
        tasks = ",".join(COMPARISONS["mmlu"].tasks)
        done = run_mill(["eval", self.spec, tasks, "--n_shots", "5", "--dry_run"], given, cwd)
        self.row(f"`{tasks} --dry_run` in an empty folder", f"{done.seconds:.2f} s")
        self.found["start"] = {"help": times, "dry_run": done.seconds}


def main() -> None:
    parts = [*COMPARISONS, "overhead", "start"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lm_eval_python", default="", help="the Python of an environment that has lm-eval")
    parser.add_argument("--only", type=lambda text: text.split(","), default=parts)
    parser.add_argument("--part", type=float, default=1.0, help="the share of the compared samples to run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in parts]:
        parser.error(f"--only {','.join(unknown)}: one of {', '.join(parts)}")
    if not options.lm_eval_python and any(name in COMPARISONS for name in options.only):
        parser.error("--lm_eval_python is needed for a comparison")
    load_builtin()
    with tempfile.TemporaryDirectory() as folder:
        warm_up(environment(Path(folder, "cache")))
        bench = Bench(options.model.resolve(), options.lm_eval_python, Path(folder))
        for name in options.only:
            if name in COMPARISONS:
                bench.compare(name, options.part)
            else:
                getattr(bench, name)()
            if options.json:
                options.json.write_text(json.dumps(bench.found, indent=1))


if __name__ == "__main__":
    main()
