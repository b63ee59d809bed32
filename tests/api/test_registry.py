"""Names are resolved lazily, from decorators, files and other packages; an unknown one lists the nearest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from mill.api import registry as registry_module
from mill.api.errors import MillError, UnknownName
from mill.api.registry import Registry, register_model
from mill.models.spec.backends import backends, of_prefix
from mill.support.terminal import own_warnings

Write = Callable[[str, str], None]


@pytest.fixture
def things() -> Registry[Any]:
    return Registry("thing", "mill.things")


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes importable modules and unloads them after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    written: list[str] = []

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def plugins_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real registries read their plugins again."""
    for registry in (registry_module.models, registry_module.tasks, registry_module.metrics):
        monkeypatch.setattr(registry, "_plugins_read", False)


def publish(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> list[str]:
    """Pretend that installed packages publish these entry points; returns the groups that were requested."""
    requested: list[str] = []

    def entry_points(*, group: str) -> list[EntryPoint]:
        requested.append(group)
        return [point for point in points if point.group == group]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return requested


def test_an_unknown_name_lists_the_nearest_names(things: Registry[Any]) -> None:
    for name in ("mmlu", "mmlu_pro", "hellaswag"):
        things.add(name, 1)
    with pytest.raises(UnknownName) as raised:
        things.get("mmlu_pr")
    assert str(raised.value) == "unknown thing 'mmlu_pr'; did you mean mmlu_pro or mmlu?"
    assert raised.value.nearest == ["mmlu_pro", "mmlu"]


def test_a_mill_error_during_import_is_raised_unchanged(things: Registry[Any], write_module: Write) -> None:
    write_module("mill_test_refuses", "from mill.api.errors import SpecError\nraise SpecError('not on Sundays')\n")
    things.add("a", "mill_test_refuses:x")
    with pytest.raises(MillError, match=r"^not on Sundays$"):
        things.get("a")


def test_a_registered_name_wins_over_an_entry_point(things: Registry[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, EntryPoint("a", "math:pi", "mill.things"))
    things.add("a", 1)
    assert things.names() == ["a"]
    assert things.get("a") == 1


@pytest.mark.usefixtures("plugins_unread")
def test_a_module_entry_point_registers_its_name_while_it_is_imported(
    write_module: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from mill.api.registry import register_task\n@register_task('mill-test-module')\ndef make(): return 42\n"
    write_module("mill_test_module", source)
    publish(monkeypatch, EntryPoint("mill-test-module", "mill_test_module", "mill.tasks"))
    assert registry_module.tasks.get("mill-test-module")() == 42


def test_a_module_entry_point_that_does_not_register_its_name_is_refused(
    things: Registry[Any], write_module: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module("mill_test_idle", "")
    publish(monkeypatch, EntryPoint("a", "mill_test_idle", "mill.things"))
    with pytest.raises(MillError, match="mill_test_idle does not register the thing 'a'"):
        things.get("a")


PACKAGE = """
from mill.api.backend import Backend

BACKEND = Backend(
    name="mill-test-engine", target="mill_test_engine:Engine", aliases=("hf", "mine"), prefixes={"vllm": {}, "turbo": {}}
)
"""


@pytest.mark.usefixtures("plugins_unread")
def test_a_package_does_not_get_a_name_of_mill(
    write_module: Write, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither as the name of an entry point, nor as an alias or a prefix, nor in Python without `override`."""
    write_module("mill_test_package", PACKAGE)
    described = EntryPoint("mill-test-engine", "mill_test_package:BACKEND", "mill.models")
    publish(monkeypatch, described, EntryPoint("timm", "math:pi", "mill.models"))
    with own_warnings():
        found = {backend.name: backend for backend in backends()}
        register_model("clip")(type("Mine", (), {"__module__": "mill_test_package"}))
    assert (
        found["mill-test-engine"].names == ("mill-test-engine", "mine")
        and "hf" in found
        and found["timm"].target[:5] == "mill."
    )
    assert of_prefix("vllm") == ("vllm", {}) and of_prefix("turbo") == ("mill-test-engine", {})
    assert registry_module.models.is_builtin("clip")
    who = ("mill_test_package:BACKEND", "hf"), ("math:pi", "timm"), ("mill_test_package", "clip")
    assert caplog.messages == [
        f"mill already has a backend {name}: {module} is not used under that name" for module, name in who
    ]
