"""Keys leave the command line: every user of a machine can read the command lines of others with `ps`.

mill starts itself again with the keys in environment variables. That is only for mill's own programs, and only for words
that mill parses as model specs or addresses: a Python program that calls `main()` keeps its process and its command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import PurePath

from mill.api.secrets import hide

PROGRAMS = ("mill", "infer-check", "mill.exe", "infer-check.exe")
SPEC_OPTIONS = ("model", "models", "judge", "reference", "base_url", "base_urls", "backend", "backends", "address")


def restart_without_keys(flags: Collection[str]) -> None:
    """Replace this process where its command line has a key. `flags` are the options that take no value."""
    command, hidden = without_keys(sys.orig_argv, sys.argv[1:], flags)
    if hidden:
        os.execve(sys.executable, command, {**os.environ, **hidden})


def without_keys(
    command: Sequence[str], arguments: Sequence[str], flags: Collection[str]
) -> tuple[list[str], dict[str, str]]:
    """A command line whose keys are names of environment variables, and those variables."""
    start = len(command) - len(arguments)
    if not runs_mill(command[:start]) or list(command[start:]) != list(arguments):
        return list(command), {}
    words = list(arguments)
    positions = spec_positions(words, flags)
    changed, hidden = hide([words[position] for position in positions])
    for position, word in zip(positions, changed, strict=True):
        words[position] = word
    return [*command[:start], *words], hidden


def runs_mill(head: Sequence[str]) -> bool:
    """Whether a command line, up to the arguments, starts one of mill's programs: a console script or `python -m mill`."""
    if len(head) < 2:
        return False
    path = PurePath(head[-1])
    by_path = path.name in PROGRAMS or path.parts[-2:] == ("mill", "__main__.py")
    if head[-2] == "-m":
        return head[-1] == "mill"
    return head[-1] == "-mmill" or (by_path and head[-2] != "-c")


def spec_positions(arguments: Sequence[str], flags: Collection[str]) -> list[int]:
    """The positions of words that are specs or addresses: arguments, and the values of options that take such."""
    positions, option = [], ""
    for position, word in enumerate(arguments):
        if option:
            positions += [position] * (option in SPEC_OPTIONS)
            option = ""
        elif word.startswith("--") and len(word) > 2:
            name, equals, _ = word[2:].replace("-", "_").partition("=")
            positions += [position] * bool(equals and name in SPEC_OPTIONS)
            option = "" if equals or name in flags else name
        else:
            positions.append(position)
    return positions
