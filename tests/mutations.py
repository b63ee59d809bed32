"""Switches guarantees off, one at a time, in a copy of the code: the tests of each must then fail.

    make mutations                                  all of them
    python -m tests.mutations "no network"           one

A text to replace stands in one place of `mill/`, whatever its file is called.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LINKED = (".venv", ".engines", ".demo")
PASSED, FAILED = 0, 1  # exit codes of pytest; others are errors of pytest itself


class Mutation(NamedTuple):
    guarantee: str
    old: str
    new: str
    tests: str
    """A file of tests/, and options of pytest."""


MUTATIONS = (
    Mutation(
        "answers are on disk before the next request",
        '"wb", buffering=0)',
        '"wb", buffering=1 << 20)',
        "runs/test_killed.py",
    ),
    Mutation("a killed run is resumed", "recorded = self.store.get(clone)", "recorded = None", "runs/test_killed.py"),
    Mutation("a budget stops the run", "if not budget.limits:", "if True:", "runs/test_budget.py"),
    Mutation("no key is recorded", 'text = text.replace(secret, "***")', "pass", "runs/test_scrubbing.py"),
    Mutation(
        "pairing by data",
        "if digest] or",
        "if False] or",
        "checks/test_pairing.py",
    ),
    Mutation("NaN is not a score", "if not any(map(math.isfinite, scores)):", "if not scores:", "tasks/test_prompts.py"),
    Mutation("NaN passes no gate", "if math.isnan(estimate.value):", "if False:", "checks/test_gate.py"),
    Mutation("ranks agree on the data", "if text != digests[0])", "if False)", "execute/test_ranks.py -k other_data"),
    Mutation(
        "no network in the sandbox", '"--unshare-all", ', '"--unshare-all", "--share-net", ', "sandbox/test_hostile.py"
    ),
    Mutation(
        "pages need the token", "if not hmac.compare_digest(", "if False and hmac.compare_digest(", "view/test_security.py"
    ),
    Mutation("shared prefixes are proved", "return _disproof(model)", 'return ""', "models/prefix/test_proof.py -k planted"),
)


@contextmanager
def copied() -> Iterator[Path]:
    """The files of git in a temporary folder, with this folder's environments."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="mill-mutations-") as folder:
        for name in filter(None, names):
            if (ROOT / name).is_file() and name not in LINKED:
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, Path(folder, name))
        for name in LINKED:
            Path(folder, name).symlink_to(ROOT / name)
        yield Path(folder)


def file_with(folder: Path, text: str) -> Path | None:
    """The file of `mill/` in which a text stands; None where that is not exactly one place."""
    places = [(file, file.read_text().count(text)) for file in folder.glob("mill/**/*.py")]
    found = [file for file, count in places if count]
    return found[0] if sum(count for _, count in places) == 1 else None


def run_tests(folder: Path, tests: str) -> tuple[int, str]:
    """The exit code of pytest and the end of what it printed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "120",
        *f"tests/{tests}".split(),
    ]
    variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-30:])


def try_out(folder: Path, mutation: Mutation) -> str:
    """The test that fails where the guarantee is switched off; raises LookupError where none does."""
    file = file_with(folder, mutation.old)
    if file is None:
        raise LookupError(f"the text to replace does not stand in exactly one place of mill/: {mutation.old}")
    content = file.read_text()
    file.write_text(content.replace(mutation.old, mutation.new))
    try:
        code, output = run_tests(folder, mutation.tests)
    finally:
        file.write_text(content)
    failed = re.search(r"^FAILED \S+::(\w+)", output, re.MULTILINE)
    if code != FAILED or failed is None:
        raise LookupError(f"{mutation.tests} passes without it" if code == PASSED else output)
    return failed[1]


def main(words: Sequence[str]) -> int:
    chosen = [mutation for mutation in MUTATIONS if not words or any(word in mutation.guarantee for word in words)]
    survived = 0
    with copied() as folder:
        for tests in dict.fromkeys(mutation.tests for mutation in chosen):
            code, output = run_tests(folder, tests)
            if code != PASSED:
                print(f"{tests} fails before anything is switched off:\n{output}")
                return 1
        for mutation in chosen:
            start = time.monotonic()
            try:
                result = try_out(folder, mutation)
            except LookupError as error:
                survived, result = survived + 1, f"NOT FOUND: {error}"
            print(f"{mutation.guarantee} | {result} | {time.monotonic() - start:.0f} s", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} guarantees are tested")
    return 1 if survived or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
