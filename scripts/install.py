"""Installs packages into an environment, which it creates: with uv where there is one, else with pip, which takes longer.

    python scripts/install.py FOLDER [options of pip install] PACKAGE...

uv reads no settings of pip: it is given the indexes of this machine.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SETTINGS = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
SEPARATOR = {"UV_FIND_LINKS": ","}
ONLY_PIP = "--ignore-requires-python"  # an option that uv does not have


def find_uv() -> str | None:
    """On the path, or beside this interpreter."""
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def settings_of_pip() -> dict[str, str]:
    """The indexes of pip as variables that uv reads. What the user has set for uv wins."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    found: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # the later, the stronger
        for line in listed.stdout.splitlines():
            name, _, value = line.partition("=")
            variable = SETTINGS.get(name.removeprefix(f"{section}."))
            if variable:
                found[variable] = SEPARATOR.get(variable, " ").join(str(ast.literal_eval(value)).split())
    # As pip does: the best version of all indexes, not that of the first index which has any.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **found, **os.environ}


def install(folder: Path, arguments: Sequence[str]) -> None:
    uv, python = find_uv(), folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", *(["--without-pip"] if uv else []), str(folder)], check=True)
    if uv and ONLY_PIP not in arguments:
        command = [uv, "pip", "install", "-q", "--python", str(python), *arguments]
        if subprocess.run(command, env=settings_of_pip(), check=False).returncode == 0:
            return
        print(f"{folder}: uv failed, so pip is tried", flush=True)
    if uv:
        subprocess.run([str(python), "-m", "ensurepip"], stdout=subprocess.DEVNULL, check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", *arguments], check=True)


def main(folder: str, *arguments: str) -> int:
    start = time.monotonic()
    print(f"{folder}: installing {' '.join(word for word in arguments if not word.startswith('-'))}", flush=True)
    try:
        install(Path(folder), arguments)
    except subprocess.CalledProcessError as error:
        return error.returncode
    print(f"{folder}: installed in {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
