"""Keys leave the command line of mill's own programs, and of no other program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mill.cli.hide_keys import runs_mill, spec_positions, without_keys

ROOT = Path(__file__).parent.parent.parent
KEY = "sk-0123456789"
SPEC = f"openai-compat[model=m,api_key={KEY}]"
FLAGS = {"quiet", "dry_run"}


@pytest.mark.parametrize(
    "head",
    [
        ["python", "-m", "mill"],
        ["python", "-u", "-m", "mill"],
        ["python", "-mmill"],
        ["python", "/env/bin/mill"],
        ["python", "/env/bin/infer-check"],
        ["python", "/src/mill/__main__.py"],
    ],
)
def test_programs_of_mill_lose_their_keys(head: list[str]) -> None:
    arguments = ["eval", SPEC, "gsm8k"]
    command, hidden = without_keys([*head, *arguments], arguments, FLAGS)
    assert command == [*head, "eval", "openai-compat[model=m,api_key=$MILL_SECRET_0]", "gsm8k"]
    assert hidden == {"MILL_SECRET_0": KEY}


@pytest.mark.parametrize(
    "head",
    [
        ["python", "-c", f"spec = '{SPEC}'"],
        ["python", "-c", "mill"],
        ["python", "script.py"],
        ["python", "-m", "pytest"],
        ["python", "-m", "mill.other"],
        ["mill"],
    ],
)
def test_other_programs_stay_as_they_are(head: list[str]) -> None:
    arguments = ["eval", SPEC, "gsm8k"]
    assert without_keys([*head, *arguments], arguments, FLAGS) == ([*head, *arguments], {})
    assert not runs_mill(head)


def test_arguments_that_a_program_made_up_are_not_those_of_the_process() -> None:
    assert without_keys(["python", "-m", "mill", "ls"], ["eval", SPEC], FLAGS) == (["python", "-m", "mill", "ls"], {})


@pytest.mark.parametrize(
    ("arguments", "specs"),
    [
        (["eval", SPEC, "t", "--quiet", SPEC], [SPEC, SPEC]),
        (["eval", "--judge", SPEC, "--system_prompt", SPEC, "--gen-kwargs", SPEC], [SPEC]),
        (["eval", f"--judge={SPEC}", f"--system-prompt={SPEC}"], [f"--judge={SPEC}"]),
        (["eval", "--base-url", "http://a:b@c", "--output_dir", "http://a:b@c"], ["http://a:b@c"]),
    ],
)
def test_only_specs_and_addresses_are_examined(arguments: list[str], specs: list[str]) -> None:
    words = [arguments[position] for position in spec_positions(arguments, FLAGS)]
    assert [word for word in words if word not in ("eval", "t")] == specs


def test_a_program_that_calls_main_keeps_its_process_and_its_command_line() -> None:
    code = (
        "import os, sys\n"
        "spec = \"hf[path=x,key='x']\"\n"
        "before = os.getpid(), list(sys.orig_argv)\n"
        "from mill.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert ended.code == 2, ended.code\n"
        "assert before == (os.getpid(), sys.orig_argv) and not [n for n in os.environ if n.startswith('MILL_SECRET')]\n"
        "print('unchanged')\n"
    )
    command = [sys.executable, "-c", code, "eval", SPEC, "nosuch"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout == "unchanged\n" and done.stderr.startswith("mill: unknown task 'nosuch'"), done.stderr
