"""The shape of the code: class names are unique, modules import each other in one direction and never in a circle."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What each package may import beside itself. `design.md`: cli → report, schedule → checks → runs → score → plan → store →
# execute, metrics → models, tasks → api → support, which knows the errors alone.
BASE = {"api", "support", "metrics"}
ANSWERING = BASE | {"models", "tasks", "execute"}
RUNNING = ANSWERING | {"store", "plan", "score", "runs"}
SHOWING = RUNNING | {"checks", "report"}
ALLOWED: dict[str, set[str]] = {
    "support": {"api.errors"},
    "api": {"support"},
    "compat": {"api", "support"},
    "metrics": {"api", "support"},
    "sandbox": {"api", "support"},
    "models": BASE | {"compat"},
    "tasks": BASE | {"compat", "sandbox"},
    "execute": BASE | {"compat", "models", "tasks"},
    "store": ANSWERING,
    "plan": ANSWERING | {"sandbox", "store"},
    "score": ANSWERING | {"plan", "store"},
    "runs": ANSWERING | {"sandbox", "plan", "store", "score"},
    "options": RUNNING | {"sandbox"},
    "checks": RUNNING | {"options"},
    "bridges": RUNNING | {"options", "sandbox", "compat"},
    "report": RUNNING | {"checks"},
    "schedule": RUNNING | {"checks"},
    "view": SHOWING,
    "export": SHOWING | {"view"},
    "frames": SHOWING | {"options", "export", "view"},
    "cli": SHOWING | {"schedule", "options", "bridges", "export", "view"},
}


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of mill by its dotted name."""
    found = {}
    for path in sorted((ROOT / "mill").rglob("*.py")):
        if "configs" in path.parts:  # files of models, which are run and not imported
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, but those for type checkers."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.unparse(statement.test):
            yield from module_statements(statement.body + statement.orelse)
        elif isinstance(statement, ast.Try):
            yield from module_statements(statement.body)


@cache
def imports(*, in_functions: bool) -> dict[str, set[str]]:
    """The modules of mill that each module imports at module level, or anywhere; type checkers' imports left out."""
    found = {}
    for name, tree in sources().items():
        statements = list(module_statements(tree.body))
        if in_functions:
            definitions = [
                one for one in statements if isinstance(one, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            ]
            statements += [node for one in definitions for node in ast.walk(one) if isinstance(node, ast.stmt)]
        found[name] = {target for statement in statements for target in imported(statement)} - {name}
    return found


def imported(statement: ast.stmt) -> set[str]:
    """The modules of mill that a statement imports."""
    known = sources()
    if isinstance(statement, ast.ImportFrom) and statement.module:
        targets = [f"{statement.module}.{alias.name}" for alias in statement.names]
        return {target if target in known else statement.module for target in targets} & set(known)
    return {alias.name for alias in statement.names} & set(known) if isinstance(statement, ast.Import) else set()


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import cycle, in order; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph[name]):
            if circle := visit(target, [*path, name]):
                return circle
        done.add(name)
        return []

    return next((circle for name in sorted(graph) if (circle := visit(name, []))), [])


def test_no_two_classes_share_a_name() -> None:
    owners = defaultdict(list)
    for module, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                owners[node.name].append(module)
    assert {name: modules for name, modules in owners.items() if len(modules) > 1} == {}


def test_no_module_imports_itself_through_others() -> None:
    circle = cycle(imports(in_functions=False))
    assert not circle, " → ".join(circle)


def test_a_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    against = {
        f"{name} imports {target}"
        for name, targets in imports(in_functions=True).items()
        for target in targets
        if package_of(name) == package
        and not {package_of(target), target.removeprefix("mill.")} & {package, "", *ALLOWED[package]}
    }
    assert against == set()


def test_every_package_has_a_rule() -> None:
    assert {package_of(name) for name in sources()} - {"", "__main__"} == set(ALLOWED)


def package_of(module: str) -> str:
    """`store` of `mill.store.record`; empty for `mill` itself."""
    return module.split(".")[1] if "." in module else ""
