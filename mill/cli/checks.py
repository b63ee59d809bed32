"""The commands of checks and `mill gate`: their options, and how a check is made, shown and tested against rules."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mill.api.errors import Interrupted, SpecError
from mill.checks.gate import Rule, check_names, conclude, judge, judge_all, parse_rules
from mill.checks.kinds import CheckKind, Given
from mill.checks.result import Check, find_checks, read_check
from mill.checks.subjects import check_config
from mill.checks.verdict import first_sentences
from mill.cli.options import FilePath, given_options, option, options, with_options
from mill.options.definitions import CheckOptions, RunOptions, merge
from mill.options.option import options_of
from mill.report.checks import as_junit, print_check
from mill.report.sections import summary_markdown
from mill.support.files import write_atomically
from mill.support.terminal import echo
from mill.tasks.load import Selection, expand_task_files, load_builtin, load_files, select
from mill.tasks.suite import select_suites

RULES = ("fail_on", "require", "strict")
_OF_SOME_KINDS = ("base_url", "decide", "alpha", "forced_tokens")


def check_command(kind: CheckKind) -> click.Command:
    """The command of a kind of check: its own options, then those of every check."""

    @click.pass_context
    def run(ctx: click.Context, /, **values: Any) -> int:
        return _run(ctx, kind, values)

    template = "on" if kind.chat else "on for prompts, if every model has a chat template"
    names = sorted(options_of(CheckOptions), key=lambda name: name in options_of(RunOptions))  # what checks alone have first
    shown = {name: options_of(CheckOptions)[name].help for name in names if name not in _OF_SOME_KINDS or name in kind.takes}
    shown["prompts"] += f" [default: {kind.prompts}]"
    shown["chat"] += f" [default: {template}]"
    own = [option(name, kind.Options) for name in options_of(kind.Options)]
    shared = [
        option(name, CheckOptions, help=text, default=kind.chat if name == "chat" else None) for name, text in shown.items()
    ]
    decorate = with_options([*own, *shared])
    about = inspect.cleandoc(kind.__doc__ or "")
    return click.command(kind.name, help=about, epilog=kind.examples)(decorate(run))


def _run(ctx: click.Context, kind: CheckKind, values: Mapping[str, Any]) -> int:
    """Refuse bad options before a model is opened; then make the check, show it, save it, and test it against its rules."""
    options = CheckOptions(**merge(given_options(ctx, values, CheckOptions)))
    load_builtin()
    load_files(tuple(options.task_paths))
    rules = parse_rules(options.fail_on, options.require)
    check_names(rules)
    selection = select_prompts(options.prompts, options.tasks, kind.prompts)
    config = check_config(options, selection, top_logprobs=kind.top_logprobs)
    own = {name: values[name] for name in options_of(kind.Options) if values[name] is not None}
    typed = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    try:
        check = kind.make(Given(kind.Options(**own), options, config, typed))
    except KeyboardInterrupt:
        raise Interrupted() from None
    return _finish(check, options, rules)


def select_prompts(prompts: list[str] | None, tasks: list[str] | None, default: str) -> Selection:
    if prompts and tasks:
        raise SpecError("give --prompts or --tasks, not both")
    if tasks:
        return select(expand_task_files(tasks))
    return Selection(select_suites(prompts or [default]), ())


def _finish(check: Check, options: CheckOptions, rules: Sequence[Rule]) -> int:
    """0, or 1 where requests failed; a rule that is broken or inconclusive raises."""
    root = Path(options.output_dir)
    written = [check.save(root)]
    print_check(check)
    if options.report:
        from mill.view.offline import write_check_page

        written.append(write_check_page(check, written[0].with_name("report.html"), root=root))
    for file in written:
        echo(f"written: {file}")
    add_summary(summary_markdown(check, judge(check, rules)))
    if rules:
        echo(conclude([(check, judge(check, rules))], strict=options.strict))
    return int(any(variant.counts.get("failed") for variant in check.variants))


def add_summary(text: str) -> None:
    """Append to the job summary of GitHub Actions, inside such a job."""
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if file:
        with Path(file).open("a", encoding="utf-8") as handle:
            handle.write(text + "\n")


_GATE_EXAMPLES = """
\b
Examples:
  mill gate results/checks/compare-a-b-1234 --require "acc_drop<0.01, kl_mean<0.05"
  mill gate results --fail_on "flip_rate>0.02, acc_drop>0.01@p<0.05" --junit gate.xml
"""


@click.command("gate", epilog=_GATE_EXAMPLES)
@click.argument("folder", type=FilePath())
@options(RULES, CheckOptions)
@click.option("--junit", type=FilePath(), default=None, help="Also write the outcomes as JUnit XML.")
def gate_command(folder: str, fail_on: str | None, require: str | None, strict: bool | None, junit: str | None) -> int:
    """End with exit code 3 when a check of FOLDER breaks a rule, and with 5 when its samples are too few to decide."""
    rules = parse_rules(fail_on, require)
    if not rules:
        raise SpecError('give rules: --require "acc_drop<0.01", or --fail_on "flip_rate>0.02"')
    checks = [read_check(file) for file in find_checks(Path(folder))]
    judged = judge_all(checks, rules)
    if junit:
        write_atomically(Path(junit), as_junit(judged))
        echo(f"written: {junit}")
    for check, outcomes in judged:
        add_summary(summary_markdown(check, outcomes))
        for sentence in first_sentences(check.variants):
            echo(f"{check.name}: {sentence}")
    echo(conclude(judged, strict=bool(strict)))
    return 0
