"""Run the tests of `mill/compat` with the oldest versions that pyproject.toml allows, and with the newest.

    python scripts/check_compat.py                 # all packages; torch downloads some gigabytes
    python scripts/check_compat.py gguf mlx-lm     # some of them
    python scripts/check_compat.py --at 0.31.3 mlx-lm

Each version gets its own virtual environment in a temporary folder. Exit code 1 if a version cannot be installed or a
test fails. Needs an index of packages.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
# The test of each package, and what it needs beside the package to be imported on this machine.
PACKAGES = {
    "gguf": ("test_gguf.py", []),
    "mlx-lm": ("test_mlx.py", ["mlx[cpu]"] if sys.platform == "linux" else []),
    "torch": ("test_torch.py", ["numpy"]),
}
TEST_TOOLS = ["pytest", "click", "rich", "msgspec"]  # msgspec, click and rich: what mill.api imports


def allowed(package: str) -> Requirement:
    """The requirement in pyproject.toml; of an optional package that of its extra."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf'"({re.escape(package)}[<>=!~][^"]*)"', text)
    if found is None:
        raise SystemExit(f"pyproject.toml has no requirement for {package}")
    return Requirement(found[1])


def extremes(package: str) -> list[str]:
    """The oldest and the newest version on the index that pyproject.toml allows."""
    done = _pip(sys.executable, "index", "versions", package)
    listed = re.search(r"Available versions: (.*)", done.stdout)
    if listed is None:
        raise SystemExit(f"pip index versions {package}: {_last_line(done)}")
    fitting = sorted(filter(allowed(package).specifier.contains, listed[1].split(", ")), key=Version)
    return list(dict.fromkeys([fitting[0], fitting[-1]]))


def check(package: str, version: str) -> str:
    """`passed`, or what went wrong in one line."""
    test, needed = PACKAGES[package]
    with tempfile.TemporaryDirectory(prefix="mill-compat-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin/python")
        installed = _pip(python, "install", "-q", f"{package}=={version}", *needed, *TEST_TOOLS)
        if installed.returncode:
            return f"cannot be installed: {_last_line(installed)}"
        # Without conftest.py, which imports all of mill. A skipped test would mean that the package cannot be imported.
        command = [python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", f"tests/compat/{test}"]
        tested = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
        unimported = "could not import" in tested.stdout
        return f"{'failed' if tested.returncode or unimported else 'passed'}: {_last_line(tested)}"


def _pip(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-m", "pip", *arguments], capture_output=True, text=True)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", choices=[*PACKAGES, []], help="default: all")
    parser.add_argument("--at", action="append", metavar="VERSION", help="this version instead of the oldest and the newest")
    options = parser.parse_args()
    ok = True
    for package in options.packages or PACKAGES:
        for version in options.at or extremes(package):
            outcome = check(package, version)
            ok = ok and outcome.startswith("passed")
            sys.stdout.write(f"{package} {version}: {outcome}\n")
            sys.stdout.flush()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
