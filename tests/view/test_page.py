"""The page: one script of all modules, its size, and its policy."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mill.view.page import STATIC, live_page, offline_page, script

OWN = [file for file in STATIC.rglob("*.js") if "vendor" not in file.parts]


def test_the_modules_are_one_classic_script() -> None:
    text = script()
    assert not re.search(r"^\s*(import|export)\b", text, re.MULTILINE)
    for file in OWN:
        assert text.count(file.read_text().partition("\n")[0]) == 1, file


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_can_be_parsed(tmp_path: Path) -> None:
    """Two modules with the same name at the top would be an error, too."""
    file = tmp_path / "app.js"
    file.write_text(script())
    subprocess.run(["node", "--check", str(file)], check=True)


def test_the_page_is_small_and_loads_nothing() -> None:
    assert len(live_page()) < 200_000
    for file in [*OWN, STATIC / "style.css", STATIC / "index.html"]:
        assert not re.search(r"""(https?:|["'(])//\w""", file.read_text()), file


def test_no_text_ends_the_data() -> None:
    hostile = {"a": "</script><script>alert(1)</script><!--", "<b>": float("nan"), "c": "\ud800 \u2028"}
    page = offline_page(hostile).decode()
    (text,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert "<" not in text
    assert json.loads(text)["a"] == hostile["a"]
    assert page.count("<script") == 2
