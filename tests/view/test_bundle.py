"""The front end: the bundle of a static copy, and the size of everything that a browser loads."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mill.view.export import bundle
from mill.view.server import SHARED, STATIC


def test_the_bundle_is_a_classic_script_without_imports() -> None:
    text = bundle(STATIC, "static.js")
    assert not re.search(r"^\s*(import|export)\b", text, re.MULTILINE)
    modules = {file.relative_to(STATIC).as_posix() for file in STATIC.rglob("*.*js") if file.suffix in (".js", ".mjs")}
    assert set(re.findall(r'^modules\["([^"]+)"\] =', text, re.MULTILINE)) == modules


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_bundle_can_be_parsed(tmp_path: Path) -> None:
    file = tmp_path / "app.js"
    file.write_text(bundle(STATIC, "static.js"))
    subprocess.run(["node", "--check", str(file)], check=True)


def test_modules_are_renamed_as_they_are_imported(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text('import { one as two } from "./in/b.js";\nimport all from "./in/b.js";\nuse(two, all);\n')
    (tmp_path / "in").mkdir()
    (tmp_path / "in/b.js").write_text('import "../c.js";\nexport const one = 1;\nexport default 5;\n')
    (tmp_path / "c.js").write_text("globalThis.seen = true;\nconst q = 2;export{q as r};\n")
    text = bundle(tmp_path, "a.js")
    assert text.index('modules["c.js"]') < text.index('modules["in/b.js"] =') < text.index('modules["a.js"] =')
    assert 'const { one: two } = modules["in/b.js"];' in text
    assert 'return { "r": q };' in text


def test_the_front_end_is_small() -> None:
    files = [file for file in STATIC.rglob("*") if file.suffix in (".js", ".mjs", ".css", ".html")]
    assert sum(file.stat().st_size for file in [*files, *SHARED.values()]) < 200_000


def test_the_pages_load_nothing_from_elsewhere() -> None:
    for file in STATIC.rglob("*"):
        if file.suffix in (".js", ".css", ".html"):
            assert not re.search(r"""(https?:|["'(])//\w""", file.read_text()), file
