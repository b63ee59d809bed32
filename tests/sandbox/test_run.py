"""Programs in the sandbox: what passes, what fails and why, and what bubblewrap keeps from them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mill.api.errors import DataError
from mill.bridges.lm_eval.hub_metrics import CodeEval
from mill.sandbox import run_python, sandbox_name

isolated = pytest.mark.skipif(not sandbox_name(), reason="bubblewrap is not installed or does not work here")


@pytest.mark.parametrize(
    "program", ["assert 1 + 1 == 2", "print('x' * 10**6)", "def f():\n    return 1\nassert f() == 1", ""]
)
def test_a_program_that_reaches_its_end_passes(program: str) -> None:
    assert run_python(program, timeout=10).outcome == "passed"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert 1 + 1 == 3", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended early with exit code 0"),
        ("import sys; sys.__stdout__.write('passed'); import os; os._exit(0)", "ended early"),
        ("x = ' ' * (4 * 10**9)", "MemoryError"),
    ],
)
def test_a_program_that_does_not_fails_with_its_reason(program: str, reason: str) -> None:
    found = run_python(program, timeout=10)
    assert found.outcome == "failed" and reason in found.error, found


@pytest.mark.parametrize(
    "program", ["while True: pass", "import time; time.sleep(60)", "import subprocess; subprocess.run(['sleep', '60'])"]
)
def test_a_program_that_does_not_end_is_ended(program: str) -> None:
    started = time.monotonic()
    assert run_python(program, timeout=1).outcome == "timed out"
    assert time.monotonic() - started < 8


def test_endless_output_fills_nothing() -> None:
    found = run_python("import os\nwhile True: os.write(2, b'x' * 65536)", timeout=10)
    assert not found.passed and len(found.error) <= 300


@isolated
@pytest.mark.parametrize(
    "program",
    [
        "open('/etc/passwd').read()",
        "import os; assert os.listdir('/root')",
        f"assert open({str(Path(__file__))!r}).read()",
        "open('/usr/planted', 'w').write('x')",
        "import socket; socket.create_connection(('127.0.0.1', 22), 1)",
        "import os; assert os.environ.get('HOME')",
        "import os; assert os.getuid() == 0",
    ],
)
def test_a_sandboxed_program_reaches_nothing_of_the_machine(program: str) -> None:
    assert run_python(program, timeout=10).outcome == "failed"


@isolated
def test_a_sandboxed_program_cannot_end_other_processes() -> None:
    import os

    assert run_python(f"import os; os.kill({os.getpid()}, 9)", timeout=10).outcome == "failed"


def test_pass_at_k_is_the_unbiased_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mill.bridges.lm_eval.hub_metrics.unsafe_code_confirmed", lambda: True)
    good, bad = "def add(a, b):\n    return a + b", "def add(a, b):\n    return a * b"
    scores, results = CodeEval().compute(
        references=["assert add(2, 3) == 5", "assert add(2, 3) == 5"],
        predictions=[[good, bad, bad], [bad, bad, bad]],
        k=[1, 2, 3, 4],
    )
    assert scores == {"pass@1": pytest.approx(1 / 6), "pass@2": pytest.approx(1 / 3), "pass@3": 0.5}
    assert [one["passed"] for _, one in results[0]] == [True, False, False]
    assert results[1][0][1]["result"].startswith("failed: AssertionError")


@isolated
def test_the_files_of_a_program_have_a_limit_together() -> None:
    program = "for number in range(30): open(f'/tmp/{number}', 'wb').write(b'x' * 10**7)"
    assert run_python(program, timeout=20).outcome == "failed"


def test_tests_that_the_sandbox_cannot_import_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mill.bridges.lm_eval.hub_metrics.unsafe_code_confirmed", lambda: True)
    with pytest.raises(DataError, match="the tests import no_such_module, which the Python of the sandbox does not have"):
        CodeEval().compute(references=["import no_such_module\nassert 1"], predictions=[["x = 1"]], k=[1])
