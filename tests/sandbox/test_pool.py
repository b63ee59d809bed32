"""Programs in the sandbox: what passes, what fails and why, several at a time, and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mill.api.consent import Consent, consenting
from mill.api.errors import DataError, RunError
from mill.bridges.lm_eval.scoring import CodeEval
from mill.sandbox.isolation import Bubblewrap, Sandbox, popen
from mill.sandbox.programs import chosen_sandbox, has_module, require_imports, run_program, run_programs

ROOT = Path(__file__).parents[2]
isolated = pytest.mark.skipif(bool(Bubblewrap().problem), reason="bubblewrap is not installed or does not work here")


@pytest.fixture(params=[pytest.param("bubblewrap", marks=isolated), "none"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[str]:
    with consenting(Consent(sandbox=request.param, confirm_run_unsafe_code=True)):
        yield str(request.param)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    "program",
    [
        "assert 1 + 1 == 2",
        "print('x' * 10**6)",
        "def f():\n    return 1\nassert f() == 1",
        "",
        "text = '\\ud800'",
        "assert __name__ != '__main__'",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: 'int'\nassert A(1) == A(1)",
        "open('note', 'w').write('x')\nassert open('note').read() == 'x'",
        "import multiprocessing\nmultiprocessing.Lock()",
        f"data = {[*range(50_000)]!r}\nassert len(data) == 50_000",
    ],
)
def test_a_program_that_reaches_its_end_passes(program: str) -> None:
    assert run_program(chosen_sandbox(), program, timeout=10).outcome == "passed"


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert 1 + 1 == 3", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("input()", "EOFError"),
        ("import os; os._exit(0)", "ended early with exit code 0"),
        ("import os; os.abort()", "ended early with SIGABRT"),
        ("class E(Exception):\n    def __str__(self):\n        raise self\nraise E", "E"),
    ],
)
def test_a_program_that_does_not_fails_with_its_reason(program: str, reason: str) -> None:
    found = run_program(chosen_sandbox(), program, timeout=10)
    assert found.outcome == "failed" and found.error.startswith(reason), found


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    "program", ["while True: pass", "import time; time.sleep(3600)", "import subprocess; subprocess.run(['sleep', '3600'])"]
)
def test_a_program_that_does_not_end_is_ended(program: str) -> None:
    assert run_program(chosen_sandbox(), program, timeout=1).outcome == "timed out"


@pytest.mark.usefixtures("sandbox")
def test_results_are_in_the_order_of_the_programs_and_each_has_its_own_time() -> None:
    """A worker continues after a program that took all of its time."""
    programs = ["while True: pass", "assert 0", "while True: pass", "assert 1", "assert 0", "assert 1"]
    found = [one.outcome for one in run_programs(programs, timeout=2, workers=2)]
    assert found == ["timed out", "failed", "timed out", "passed", "failed", "passed"]


@isolated
def test_numpy_can_be_imported() -> None:
    pytest.importorskip("numpy")
    assert has_module(chosen_sandbox(), "numpy")
    check = "import numpy as np\nassert np.allclose(np.linalg.inv(np.eye(3)), np.eye(3))"
    loaded = f"import sys\nassert 'numpy' in sys.modules\n{check}"
    assert [one.outcome for one in run_programs([check, loaded], timeout=20, preload=["numpy"])] == ["passed", "passed"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
@isolated
def test_an_ordinary_user_has_the_same_sandbox(tmp_path: Path) -> None:
    """In the system's Python, which every user can read."""
    code = tmp_path / "code"
    shutil.copytree(ROOT / "mill" / "sandbox", code / "mill" / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "mill" / "api", code / "mill" / "api", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "mill" / "__init__.py").touch()
    tmp_path.chmod(0o755)
    above = [folder for folder in tmp_path.parents if Path(tempfile.gettempdir()) in folder.parents]
    for folder in (code, *code.rglob("*"), *above):
        folder.chmod(0o755)
    programs = ["assert 1", "open('/etc/passwd')", "import os; assert os.getuid() == 4711 and os.getgid() == 4711"]
    script = f"""
import sys; sys.path.insert(0, {str(code)!r})
from mill.sandbox.isolation import Bubblewrap
from mill.sandbox.programs import run_program
print([run_program(Bubblewrap(), program, 10).outcome for program in {programs!r}])
"""
    as_user = ["setpriv", "--reuid=4711", "--regid=4711", "--clear-groups"]
    found = subprocess.run(
        [*as_user, "/usr/bin/python3", "-c", script], capture_output=True, text=True, check=False, cwd="/"
    )
    assert found.stdout == "['passed', 'failed', 'passed']\n", found.stderr


def test_a_sandbox_that_breaks_is_no_failure_of_the_program() -> None:
    class Broken(Sandbox):
        name = "broken"

        def start(self, label: str, arguments: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
            return popen([sys.executable, "-c", "import sys; sys.exit('out of order')"], folder, None)

    with pytest.raises(RunError, match=r"a sandbox \(broken\) failed: out of order"):
        run_program(Broken(), "pass", 5)


@pytest.mark.usefixtures("sandbox")
def test_pass_at_k_is_the_unbiased_estimate() -> None:
    good, bad = "def add(a, b):\n    return a + b", "def add(a, b):\n    return a * b"
    scores, results = CodeEval().compute(
        references=["assert add(2, 3) == 5", "assert add(2, 3) == 5"],
        predictions=[[good, bad, bad], [bad, bad, bad]],
        k=[1, 2, 3, 4],
    )
    assert scores == {"pass@1": pytest.approx(1 / 6), "pass@2": pytest.approx(1 / 3), "pass@3": 0.5}
    assert [one["passed"] for _, one in results[0]] == [True, False, False]
    assert results[1][0][1]["result"].startswith("failed: AssertionError")


@pytest.mark.usefixtures("sandbox")
def test_tests_that_the_sandbox_cannot_import_are_refused() -> None:
    with pytest.raises(DataError, match="the tests import no_such_module, which the Python of the sandbox does not have"):
        require_imports(["import no_such_module\nassert 1"])
