"""Does mill score calls as the Berkeley function-calling leaderboard does? The same answers, through both checkers.

    pip download bfcl-eval --no-deps --dest bfcl
    python -m venv bfcl/venv
    bfcl/venv/bin/pip install --no-deps bfcl/bfcl_eval-*.whl
    bfcl/venv/bin/pip install filelock tenacity tree_sitter==0.21.3 tree-sitter-java==0.21.0 tree-sitter-javascript==0.21.4
    MILL_BFCL=$(ls bfcl/*.whl) python benchmarks/bfcl_agreement.py --bfcl_python bfcl/venv/bin/python [--n 500 | --all]

The answers are right ones, made from the possible answers, and such with one change: a planted mistake, another form of a
value, or another order. Only bfcl-eval's checker runs, not its models, so its other requirements are not needed. The tools
that models get are compared for all questions. Prints every disagreement; exits 1 where there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mill.api.response import Response
from mill.api.task import Sample
from mill.api.tools import ToolCall
from mill.tasks.bfcl.checker import tools_of
from mill.tasks.bfcl.questions import CATEGORIES, FunctionCallTask
from mill.tasks.load import load_builtin, make_task

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.bfcl_answers import MISTAKES, Mutation, perturbed, right_calls, shuffled

# Runs in the peer's process; argv is (plan file, result file). Its table of models imports every API client, and all that
# the checker needs of it is whether dots in names are underscores.
PEER = """
import json, sys, types
table = types.ModuleType("bfcl_eval.constants.model_config")
table.MODEL_CONFIG_MAPPING = {"mill": types.SimpleNamespace(underscore_to_dot=True)}
sys.modules[table.__name__] = table
from bfcl_eval.constants.enums import Language, ModelStyle
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
from bfcl_eval.model_handler.utils import convert_to_tool
from bfcl_eval.utils import (
    is_empty_output, is_function_calling_format_output, is_java, is_js, load_dataset_entry, load_ground_truth_entry,
)

def verdict(category, question, truth, calls):
    try:  # as the handler of OpenAI's API decodes calls
        decoded = [{name: json.loads(text)} for name, text in calls]
    except ValueError:
        decoded = None
    if "relevance" in category:
        called = decoded is not None and not is_empty_output(decoded)
        return called != ("irrelevance" in category)
    if decoded is None or not is_function_calling_format_output(decoded):
        return False
    language = Language.JAVA if is_java(category) else Language.JAVASCRIPT if is_js(category) else Language.PYTHON
    return ast_checker(question["function"], decoded, truth, language, category, "mill")["valid"]

out = {"verdicts": {}, "tools": {}}
for category, answers in json.load(open(sys.argv[1])).items():
    questions = {one["id"]: one for one in load_dataset_entry(category, include_language_specific_hint=False)}
    truths = {} if "relevance" in category else {one["id"]: one["ground_truth"] for one in load_ground_truth_entry(category)}
    found = out["verdicts"][category] = []
    for sample, calls in answers:
        try:
            found.append(verdict(category, questions[sample], truths.get(sample), calls))
        except Exception as error:
            found.append(repr(error))
    out["tools"][category] = {
        one["id"]: convert_to_tool(one["function"], GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS)
        for one in load_dataset_entry(category)
    }
json.dump(out, open(sys.argv[2], "w"))
"""

Answer = tuple[FunctionCallTask, Sample, str, Sequence[ToolCall]]
CHANGES: dict[str, Mutation] = {
    "right": lambda calls, sample, draw: calls,
    **MISTAKES,
    **{f"perturbed_{number}": perturbed for number in range(6)},
    "shuffled": shuffled,
}


def all_answers(tasks: Sequence[FunctionCallTask], seed: int) -> list[Answer]:
    """For each question its right answer and each change of it; where none is expected, a call of each function or none."""
    found: list[Answer] = []
    for task in tasks:
        for sample in task.samples():
            if task.detection is not None:
                calls = [ToolCall.parse(tool.name, {}) for tool in tools_of(sample.doc["function"], task.language)]
                forms = {"call": calls[:1], "no_call": [], "malformed": [ToolCall.parse("f", "{")]}
                found += [(task, sample, name, form) for name, form in forms.items()]
                continue
            for name, change in CHANGES.items():
                draw = random.Random(f"{seed}/{sample.id}/{name}")
                if (changed := change(right_calls(sample, task.language), sample, draw)) is not None:
                    found.append((task, sample, name, changed))
    return found


def some_answers(answers: Sequence[Answer], count: int, seed: int) -> list[Answer]:
    """A draw with equally many answers of each category, as far as it has them."""
    draw = random.Random(seed)
    chosen: list[Answer] = []
    left = {task.name: [one for one in answers if one[0] is task] for task in dict.fromkeys(one[0] for one in answers)}
    for pool in left.values():
        draw.shuffle(pool)
    while len(chosen) < count and any(left.values()):
        chosen += [pool.pop() for pool in left.values() if pool]
    return chosen[:count]


def run_bfcl(python: str, answers: Sequence[Answer]) -> Any:
    plan: dict[str, list[Any]] = {category: [] for category in CATEGORIES}
    for task, sample, _, calls in answers:
        plan[task.category_name].append([sample.id, [[call.name, call.text] for call in calls]])
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "plan.json"), Path(folder, "result.json")
        given.write_text(json.dumps(plan))
        environment = {**os.environ, "BFCL_PROJECT_ROOT": folder}  # it writes lock files
        subprocess.run([python, "-c", PEER, str(given), str(result)], check=True, env=environment)
        return json.loads(result.read_text())


def compare_verdicts(answers: Sequence[Answer], theirs: dict[str, list[Any]]) -> int:
    """Prints a line for each category and each disagreement, and returns how many there are."""
    waiting = {category: iter(verdicts) for category, verdicts in theirs.items()}
    counts: dict[str, Counter[str]] = {}
    lines = []
    for task, sample, change, calls in answers:
        wrong = task.wrong(sample, [Response(text="", tool_calls=tuple(calls))])
        verdict = next(waiting[task.category_name])
        count = counts.setdefault(task.name, Counter())
        count.update(answers=1, right=not wrong, crashed=isinstance(verdict, str))
        if isinstance(verdict, str):
            lines.append(f"bfcl-eval raised {verdict[:80]} ({change} answer to {sample.id}); mill: {wrong or 'right'}")
        elif verdict != (not wrong):
            count["different"] += 1
            spelled = task.extracted(sample, [Response(text="", tool_calls=tuple(calls))])
            lines.append(f"{sample.id} ({change}): bfcl-eval {verdict}, mill {wrong or 'right'}: {spelled[:300]}")
    for name, count in counts.items():
        print(f"{name:<30}{count['answers']:>7} answers{count['right']:>7} right{count['different']:>5} different", end="")
        print(f", bfcl-eval raised on {count['crashed']}" if count["crashed"] else "")
    for line in lines:
        print(line)
    return sum(count["different"] for count in counts.values())


def compare_tools(tasks: Sequence[FunctionCallTask], theirs: dict[str, dict[str, Any]]) -> int:
    different, total = 0, 0
    for task in tasks:
        for sample in task.samples():
            mine = [tool.to_dict() for tool in tools_of(sample.doc["function"], task.language)]
            total += 1
            if mine != theirs[task.category_name][sample.id]:
                different += 1
                print(f"tools of {sample.id} differ")
    print(f"tools: {total - different} of {total} questions equal")
    return different


def read_options(about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--bfcl_python", required=True)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    options = read_options(__doc__)
    load_builtin()
    tasks = [task for name in CATEGORIES if isinstance(task := make_task(f"bfcl_{name}"), FunctionCallTask)]
    answers = all_answers(tasks, options.seed)
    if not options.all:
        answers = some_answers(answers, options.n, options.seed)
    theirs = run_bfcl(options.bfcl_python, answers)
    different = compare_verdicts(answers, theirs["verdicts"]) + compare_tools(tasks, theirs["tools"])
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
