"""`mill`: imports the command that is called, and turns errors into one line and an exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import io
import logging
import os
import re
import signal
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mill import __version__
from mill.api.errors import MillError, SpecError, UnknownName, nearest
from mill.api.registry import checks, commands
from mill.cli.start import INTERRUPTED
from mill.support.files import is_file
from mill.support.processes import rank, world_size
from mill.support.secrets import redact_text, refuse_inline
from mill.support.terminal import describe, echo, echo_data, logger, message_line, own_warnings

COMMANDS = {
    "eval": ("mill.cli.eval", "Run benchmarks on models."),
    "compare": ("mill.checks.compare:Compare", "What changes from one model to another."),
    "sweep": ("mill.checks.compare:Sweep", "Several models, such as quantizations, against a baseline."),
    "diff": ("mill.checks.compare:Diff", "One model on several backends."),
    "stress": ("mill.checks.stress:Stress", "The same prompts under growing load."),
    "determinism": ("mill.checks.determinism:Determinism", "The same prompts several times."),
    "gate": ("mill.cli.checks:gate_command", "Test saved checks against rules; exit code 3 when one is broken."),
    "report": ("mill.cli.report", "Saved checks and runs as a page, a table or data."),
    "view": ("mill.cli.view", "Runs and checks in a browser: scores, comparisons, samples, tokens."),
    "export": ("mill.cli.export", "Results in trackers (MLflow, wandb, trackio) and in the formats of other tools."),
    "show": ("mill.cli.show", "One sample of a run, with its reasoning and tool calls."),
    "ls": ("mill.cli.ls", "List models, packaged configs, tasks or runs."),
    "schedule": ("mill.cli.schedule", "A matrix of runs on a cluster."),
    "collect": ("mill.cli.scores:collect_command", "All scores of an output folder in one table."),
    "diff-scores": ("mill.cli.scores:diff_scores_command", "The scores of two runs or output folders, row by row."),
    "plot": ("mill.cli.plot", "Scores, cost and calibration of runs as SVG and PNG files."),
    "conform": ("mill.cli.conform", "Check that a backend fulfils the contract."),
    "lm-eval": ("mill.cli.lm_eval", "lm-evaluation-harness with mill's models."),
    "score": ("mill.cli.scores:score_command", "Score a recorded run again, without the model."),
}
_REMOVED = {
    "new": "CONTRIBUTING.md has a task, a backend and a metric to copy, each in some 20 lines",
    "schema": "`mill eval --help` lists the options of a run file, `mill eval --config FILE --dry_run` checks one",
}
_POSITIONAL = {
    **dict.fromkeys(("model", "models", "task", "tasks"), "models and tasks are positional"),
    "model_args": "arguments of a model are in its brackets, hf[path=org/name,dtype=float32]",
}
_CHAT_TEMPLATE = ("apply_chat_template", "use_chat_template")
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
TERMINATED = 143  # 128 plus the signal's number, as in shells


class ClosedPipe(Exception):
    """The reader of standard output closed it."""


class LazyGroup(click.Group):
    """Lists its commands without importing them; imports one when it is called."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would end the process with code 1
            raise ClosedPipe from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_installed()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS and name not in _installed():
            return None
        found = _import(COMMANDS[name][0]) if name in COMMANDS else (commands if name in commands else checks).get(name)
        if isinstance(found, click.Command):
            return found
        from mill.cli.checks import check_command

        return check_command(found())

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and args[0] not in _installed():
            if args[0] in _REMOVED:
                raise SpecError(f"mill {args[0]} was removed: {_REMOVED[args[0]]}")
            names = self.list_commands(ctx)
            raise UnknownName("command", args[0], names, hint=f"commands are {', '.join(names)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()] + list(_installed().items()))


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute or "command")


def _installed() -> dict[str, str]:
    """The commands and checks of other packages, which are not imported for a list: where each is from."""
    return {
        name: f"From {str(registry.target(name)).partition('.')[0].partition(':')[0]}, another package."
        for registry in (checks, commands)
        for name in registry
        if name not in COMMANDS and not registry.is_builtin(name)
    }


def underscored(name: str) -> str:
    """Options may be typed with - or _."""
    return name.replace("-", "_")


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": underscored,
        "max_content_width": 110,
    },
    epilog="Start with: mill eval org/name mmlu_anatomy --limit 20",
)
@click.option("--output_dir", type=click.Path(), default=None, help="Folder of the results; the commands take it, too.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(__version__, prog_name="mill")
@click.pass_context
def cli(ctx: click.Context, output_dir: str | None, debug: bool) -> None:
    """How good is this model, and does this engine serve it faithfully?"""
    ctx.ensure_object(dict)
    ctx.obj["output_dir"] = output_dir
    if ctx.invoked_subcommand is None:
        echo_data(f"{ctx.get_help()}\n")


def main(argv: list[str] | None = None) -> None:
    """Run the command line and end the process. SIGTERM, which schedulers send, ends a command as Ctrl-C does."""
    gc.set_threshold(100_000, 20, 100)  # samples and requests live until the end: looking for garbage finds none
    terminated = _interrupt_on_sigterm()
    _open_output()
    code = run(sys.argv[1:] if argv is None else argv)
    code = TERMINATED if terminated and code == INTERRUPTED else code
    if argv is None and "torch" in sys.modules and world_size() == 1:  # the ranks' store ends with the process that has it
        _end_process(code)
    sys.exit(code)


def _interrupt_on_sigterm() -> list[int]:
    """Raise KeyboardInterrupt on SIGTERM. Returns a list that has the signal once it was received."""
    received: list[int] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, terminate)
    return received


def _end_process(code: int) -> None:
    """Do what the interpreter does at its end, up to the point where it frees memory. What fails here, such as output that
    cannot be flushed, is left to the interpreter."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except (Exception, KeyboardInterrupt):
        return
    os._exit(code)


def _open_output() -> None:
    """A stream that was closed (`>&-`) gets nothing; a character that one cannot encode is escaped."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")
    if sys.stdout is None:
        _discard_output()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Nothing more is written to standard output, also not when Python flushes it at exit."""
    sys.stdout = Path(os.devnull).open("w")


def _refuse_keys(argv: list[str]) -> None:
    for before, word in pairwise(["", *argv]):
        free_text = any(underscored(part).startswith("__system_prompt") for part in (before, word))
        if not free_text and ("=" in word or "@" in word):
            refuse_inline(word)


@own_warnings()
def run(argv: list[str]) -> int:
    """Run a command line and return its exit code. Only --debug shows tracebacks."""
    debug = "--debug" in argv or bool(os.environ.get("MILL_DEBUG"))
    argv = [word for word in argv if word != "--debug"]
    printed = _PrintedWarnings(logging.WARNING)
    logger.addHandler(printed)
    try:
        _refuse_keys(argv)
        code: Any = cli.main(args=argv, prog_name="mill", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except MillError as error:
        return _fail(str(error), error.exit_code, debug)
    except click.NoSuchOption as error:
        return _fail(_option_message(error), 2, debug)
    except click.ClickException as error:
        return _fail(_usage_message(error), 2, debug)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", INTERRUPTED, debug)
    except (ClosedPipe, BrokenPipeError):
        _discard_output()
        return 0
    except BaseException as error:  # exit() of a library is no success of ours, and a panic in Rust is no Exception
        if isinstance(error, OSError) and error.errno in FULL_DISK:  # files have errors of mill's own
            _discard_output()
            return _fail(f"cannot write to standard output: {error.strerror}", 1, debug)
        return _fail(f"unexpected {describe(error)} (run with --debug for the traceback)", 1, debug)
    finally:
        logger.removeHandler(printed)


class _PrintedWarnings(logging.Handler):
    """The log of mill on standard error, one line per record."""

    def emit(self, record: logging.LogRecord) -> None:
        echo(f"{record.levelname.lower()}: {record.getMessage()}", err=True)


def _option_message(error: click.NoSuchOption) -> str:
    """The message about an unknown option, with what other tools call by this name here."""
    from mill.options.option import REMOVED

    name, context = underscored(error.option_name.lstrip("-")), error.ctx
    params = context.command.params if context else []
    known = [option.lstrip("-") for param in params if isinstance(param, click.Option) for option in param.opts]
    if context and name in REMOVED.get(context.command.name or "", {}):
        return f"{error.option_name} {REMOVED[context.command.name or ''][name]}"
    message = f"unknown option {error.option_name}"
    positional = " ".join(param.human_readable_name.upper() for param in params if isinstance(param, click.Argument))
    if context and positional and name in _POSITIONAL:
        return f"{message}; {_POSITIONAL[name]}: {context.command_path} {positional}"
    if name in _CHAT_TEMPLATE and "chat" in known:
        return f"{message}; use --chat or --no_chat"
    close = nearest(name, known)
    return f"{message}; did you mean --{' or --'.join(close)}?" if close else message


def _usage_message(error: click.ClickException) -> str:
    """Click's message; where a folder is one argument too many, with the option that takes it."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", message)
    if extra is None:
        return message
    takes_folder = context is not None and any(param.name == "output_dir" for param in context.command.params)
    hint = f"; write --output_dir {extra.group(1)}" if takes_folder and is_file(extra.group(1), folder=True) else ""
    if not hint and context is not None and any(param.name == "tasks" for param in context.command.params):
        hint = "; separate tasks by commas"
    return f"{extra.group(1)} is one argument too many{hint}"


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        for line in redact_text(traceback.format_exc()).splitlines():
            echo(line, err=True)
    where = f" (rank {rank()})" if rank() else ""
    echo(message_line(f"mill{where}: {redact_text(message)}"), err=True)
    return code
