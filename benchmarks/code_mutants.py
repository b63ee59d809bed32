"""How many wrong programs fail the tests of code tasks: functions that return nothing, and canonical solutions with a single
mutation.

    MILL_DATA=... python benchmarks/code_mutants.py [--tasks humaneval,mbpp] [--limit 100] [--mutants 4] [--show]

Each mutant differs from the canonical solution in one operator or constant: + and -, * and //, < and <=, == and !=,
`and` and `or`, a number plus 1, a negated condition, a return value that is None. Some are equivalent to the original, such
as < for <= where both sides are never equal, or are not reached by the tests: these pass, and --show prints them.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import time
from collections.abc import Iterator, Sequence

from mill.api.response import Response
from mill.api.task import Sample
from mill.tasks.code import CodeTask
from mill.tasks.load import load_builtin, make_task

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def mutants(source: str) -> list[str]:
    """All programs that differ from this one in one of the ways above, in the order of the source."""
    tree = ast.parse(source)
    found = []
    for index, _ in enumerate(ast.walk(tree)):
        for change in range(2):
            changed = copy.deepcopy(tree)
            node = next(one for number, one in enumerate(ast.walk(changed)) if number == index)
            if _mutate(node, change):
                found.append(ast.unparse(ast.fix_missing_locations(changed)))
    return [one for one in dict.fromkeys(found) if one != ast.unparse(tree)]


def _mutate(node: ast.AST, change: int) -> bool:
    """Change a node in its first or second way; whether it has such a way."""
    if change == 1:
        if isinstance(node, ast.Compare) and len(node.ops) > 1:
            return _swap(node.ops, 1)
        return False
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPPED:
        node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        return _swap(node.ops, 0)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1  # type: ignore[operator]
    elif isinstance(node, ast.If):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Return) and node.value is not None:
        node.value = ast.Constant(None)
    else:
        return False
    return True


def _swap(operators: list[ast.cmpop], index: int) -> bool:
    if type(operators[index]) not in SWAPPED:
        return False
    operators[index] = SWAPPED[type(operators[index])]()  # type: ignore[call-overload]
    return True


def chosen_mutants(task: CodeTask, samples: Sequence[Sample], count: int) -> Iterator[tuple[Sample, str]]:
    """Some mutants of each sample's canonical solution, the same in every run."""
    for sample in samples:
        every = mutants(task.target_code(sample.doc))
        yield from ((sample, one) for one in random.Random(sample.id).sample(every, min(count, len(every))))


def _nothing(task: CodeTask, sample: Sample) -> str:
    return f"def {task.entry_point(sample.doc)}(*given, **named):\n    return None"


def passed(task: CodeTask, programs: Sequence[tuple[Sample, str]]) -> list[bool]:
    answered = [(sample, [Response(text=f"```python\n{program}\n```")]) for sample, program in programs]
    task.prepare_scoring(answered)
    return [task.score(sample, responses)["pass@1"] == 1.0 for sample, responses in answered]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="humaneval,humaneval_plus,mbpp,mbpp_plus")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--mutants", type=int, default=4)
    parser.add_argument("--timeout", type=float, help="seconds for a mutant; endless loops use all of them")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    load_builtin()
    for name in options.tasks.split(","):
        task = make_task(name)
        assert isinstance(task, CodeTask)
        samples = list(task.samples())[: options.limit]
        started = time.perf_counter()
        right = passed(task, [(sample, task.target_code(sample.doc)) for sample in samples])
        empty = passed(task, [(sample, _nothing(task, sample)) for sample in samples])
        task.timeout = options.timeout or task.timeout
        wrong = list(chosen_mutants(task, samples, options.mutants))
        survived = [one for one, yes in zip(wrong, passed(task, wrong), strict=True) if yes]
        share = 1 - len(survived) / max(1, len(wrong))
        seconds = time.perf_counter() - started
        print(
            f"{name}: {sum(right)} of {len(right)} canonical solutions pass; {sum(empty)} of {len(empty)} functions that "
            f"return nothing pass; {len(wrong) - len(survived)} of {len(wrong)} mutants fail ({100 * share:.1f} %); "
            f"{seconds:.0f} s",
            flush=True,
        )
        for sample, program in survived if options.show else ():
            print(f"--- {sample.doc['task_id']}\n{program}")


if __name__ == "__main__":
    main()
