"""Runs `mill` with an lm-eval that knows no task of its own: each command would read thousands of files."""

from __future__ import annotations

from functools import partialmethod

from lm_eval.tasks import TaskManager

from mill.cli.main import main

TaskManager.__init__ = partialmethod(TaskManager.__init__, include_defaults=False)  # type: ignore[method-assign]
main()
