"""Does mill score dialogs as the Berkeley function-calling leaderboard does? The same calls, through both checkers.

Setup as for `bfcl_agreement.py`, and `bfcl/venv/bin/pip install mpmath`, which a simulated API imports. Then:

    export MILL_BFCL=$(ls bfcl/*.whl)
    export PYTHONHASHSEED=0  # the text of an error has a set, in no order
    python benchmarks/bfcl_multi_turn_agreement.py --bfcl_python bfcl/venv/bin/python [--n 500 | --all]

The dialogs have the expected calls, or those with one change: a planted mistake, another call, value or order. Verdicts,
the results of all calls, and the tools and messages of all turns are compared. Prints every disagreement; exits 1 where
there is one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mill.api.response import Response
from mill.api.task import RenderSettings, Sample
from mill.execute.sample_state import execute_call
from mill.tasks.bfcl.multi_turn import DIALOGS, MultiTurnTask, split_turns
from mill.tasks.load import load_builtin, make_task

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.bfcl_agreement import read_options
from benchmarks.bfcl_dialogs import EITHER, MISTAKES, RIGHT, Dialog, responses, right_dialog

# Runs in the peer's process; argv is (plan file, result file). Results of the model's calls are collected where its checker
# executes them. Each answer has a model name of its own, because the instances of a model are global variables.
PEER = """
import json, re, sys
from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
from bfcl_eval.constants.enums import ModelStyle
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker, multi_turn_utils as utils
from bfcl_eval.model_handler.utils import convert_to_function_call, convert_to_tool
from bfcl_eval.utils import load_dataset_entry, load_ground_truth_entry

results, original = [], checker.execute_multi_turn_func_call

def execute(*, model_name, **given):
    found = original(model_name=model_name, **given)
    if not model_name.endswith("_ground_truth"):
        results.extend(found[0])
    return found

checker.execute_multi_turn_func_call = execute

def verdict(question, truth, turns, name):  # as in eval_runner.py
    if len(turns) != len(truth):
        return False
    decoded = []
    for turn in turns:
        steps = []
        for step in turn:
            try:
                calls = convert_to_function_call([{name: text} for name, text in step])
            except Exception:
                continue
            if not utils.is_empty_execute_response(calls):
                steps.append(calls)
        decoded.append(steps)
    return checker.multi_turn_checker(decoded, truth, question, "", name)["valid"]

def tools_and_messages(entry):  # as in base_handler.py
    found = []
    for function in [*entry["function"], *(one for added in entry.get("missed_function", {}).values() for one in added)]:
        function.pop("response", None)  # what it returns, which is no field of OpenAI's format
    for index, messages in enumerate(entry["question"]):
        if str(index) in entry.get("missed_function", {}):
            entry["function"].extend(entry["missed_function"][str(index)])
            messages = [{"role": "user", "content": DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}]
        found.append([convert_to_tool(entry["function"], GORILLA_TO_OPENAPI, ModelStyle.OPENAI_COMPLETIONS), messages])
    return found

out = {"verdicts": [], "tools": {}}
plan = json.load(open(sys.argv[1]))
truths, questions = {}, {}
for category in plan["categories"]:
    truths |= {one["id"]: one["ground_truth"] for one in load_ground_truth_entry(category)}
    questions |= {one["id"]: one for one in load_dataset_entry(category, include_language_specific_hint=False)}
    out["tools"] |= {one["id"]: json.loads(json.dumps(tools_and_messages(one))) for one in load_dataset_entry(category)}
for number, (sample, turns) in enumerate(plan["answers"]):
    results.clear()
    try:
        found = verdict(questions[sample], truths[sample], turns, f"m{number}")
    except Exception as error:
        found = repr(error)
    text = re.sub(f"m{number}_(ground_truth_)?eval_{sample}_", "", json.dumps(results))
    out["verdicts"].append([found, json.loads(text)])
    for name in [name for name in vars(utils) if name.endswith("_instance")]:
        delattr(utils, name)
json.dump(out, open(sys.argv[2], "w"))
"""

Answer = tuple[MultiTurnTask, Sample, str, Dialog]
CHANGES = {**RIGHT, **MISTAKES, **EITHER}


def all_answers(tasks: Sequence[MultiTurnTask], seed: int) -> list[Answer]:
    found: list[Answer] = []
    for task in tasks:
        for sample in task.samples():
            for name, change in CHANGES.items():
                draw = random.Random(f"{seed}/{sample.id}/{name}")
                if (changed := change(right_dialog(sample), sample, draw)) is not None:
                    found.append((task, sample, name, changed))
    return found


def run_bfcl(python: str, answers: Sequence[Answer]) -> Any:
    plan = [
        [sample.id, [[[[call.name, call.text] for call in step] for step in turn] for turn in dialog]]
        for _, sample, _, dialog in answers
    ]
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "plan.json"), Path(folder, "result.json")
        given.write_text(json.dumps({"categories": DIALOGS, "answers": plan}))
        environment = {**os.environ, "BFCL_PROJECT_ROOT": folder}  # it writes lock files
        subprocess.run([python, "-c", PEER, str(given), str(result)], check=True, env=environment)
        return json.loads(result.read_text())


def executed(task: MultiTurnTask, sample: Sample, dialog: Dialog) -> tuple[list[Response], list[str]]:
    """The responses with the results of their calls, as the executor gets them; the outputs, "" of unknown functions."""
    found: list[Response] = []
    known = {tool.name for tool in task.tools(sample)}
    outputs = []
    for generated in responses(dialog):
        response = replace(generated, tool_results=())
        for call in response.tool_calls:
            result = execute_call(task, sample, call, [*found, response])
            response = replace(response, tool_results=(*response.tool_results, result))
        if all(call.arguments is not None for call in response.tool_calls):
            outputs += [one.output if one.name in known else "" for one in response.tool_results]
        found.append(response)
    return found, outputs


def compare(answers: Sequence[Answer], theirs: Sequence[Any]) -> int:
    """Prints a line for each change and each disagreement, and returns how many there are."""
    counts: dict[str, Counter[str]] = {}
    lines = []
    for (task, sample, change, dialog), (verdict, outputs) in zip(answers, theirs, strict=True):
        found, own = executed(task, sample, dialog)
        wrong = task.wrong(sample, found)
        count = counts.setdefault(change.rstrip("_0123456789"), Counter())
        count.update(answers=1, right=not wrong, crashed=isinstance(verdict, str))
        if isinstance(verdict, str):
            lines.append(f"bfcl-eval raised {verdict[:80]} ({change} dialog of {sample.id}); mill: {wrong or 'right'}")
        elif verdict != (not wrong):
            count["different"] += 1
            lines.append(f"{sample.id} ({change}): bfcl-eval {verdict}, mill {wrong or 'right'}")
        # Its checker stops at the first wrong turn. Calls of functions that there are not have another text.
        for mine, other in zip(own, outputs, strict=False):
            count["results"] += 1
            if mine and mine != other:
                count["different_results"] += 1
                lines.append(f"{sample.id} ({change}): bfcl-eval gives {other[:150]}, mill {mine[:150]}")
    for name, count in sorted(counts.items()):
        print(f"{name:<24}{count['answers']:>6} dialogs{count['right']:>6} right{count['different']:>4} different", end="")
        print(f"{count['results']:>8} results{count['different_results']:>5} different", end="")
        print(f", bfcl-eval raised on {count['crashed']}" if count["crashed"] else "")
    for line in lines:
        print(line)
    total = sum(counts.values(), Counter[str]())
    print(f"{total['answers']} dialogs, {total['different']} different; ", end="")
    print(f"{total['results']} results, {total['different_results']} different")
    return total["different"] + total["different_results"]


def compare_tools(tasks: Sequence[MultiTurnTask], theirs: dict[str, Any]) -> int:
    """The tools and the last message of the first request of each turn."""
    different, total = 0, 0
    for task in tasks:
        for sample in task.samples():
            for turn, (tools, messages) in enumerate(theirs[sample.id]):
                total += 1
                answered = [Response(text="Done.")] * turn
                settings = RenderSettings()
                request = task.next_round(sample, settings, answered) if turn else task.requests(sample, settings)[0]
                assert request is not None and len(split_turns(answered)) == turn + 1
                last = request.context[-1]
                same = not isinstance(last, str) and messages == [{"role": last.role, "content": last.text}]
                if not same or [tool.to_dict() for tool in request.tools] != tools:
                    different += 1
                    print(f"turn {turn} of {sample.id} differs")
    print(f"tools and messages: {total - different} of {total} turns equal")
    return different


def main() -> int:
    options = read_options(__doc__)
    load_builtin()
    tasks = [task for name in DIALOGS if isinstance(task := make_task(f"bfcl_{name}"), MultiTurnTask)]
    answers = all_answers(tasks, options.seed)
    if not options.all:
        answers = random.Random(options.seed).sample(answers, min(options.n, len(answers)))
    theirs = run_bfcl(options.bfcl_python, answers)
    different = compare(answers, theirs["verdicts"]) + compare_tools(tasks, theirs["tools"])
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
