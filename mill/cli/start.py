"""The entry point of `mill` and `infer-check`. It imports nothing heavy, so that Ctrl-C during imports is one line, too."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 plus the signal's number, as in shells


def main() -> None:
    try:
        from mill.cli.main import main as run_command

        run_command()
    except KeyboardInterrupt:  # before or after a command, which reports its own
        if sys.stderr is not None:
            sys.stderr.write("\nmill: interrupted\n")  # after ^C, as click does
        sys.exit(INTERRUPTED)
