"""What the check commands share: their options, and how a check is made, shown and tested against rules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mill.api.errors import SpecError
from mill.api.printing import echo
from mill.checks.gate import Rule, check_names, conclude, judge, parse_rules
from mill.checks.result import Check
from mill.checks.subjects import TOP_LOGPROBS, CheckConfig
from mill.cli.interrupt import interrupted
from mill.cli.options import Decorator, given_options, option, options, with_options
from mill.options.checks import CheckOptions
from mill.options.eval_options import merge
from mill.tasks.load import Selection, expand_task_files, load_builtin, load_files, select
from mill.tasks.suite import select_suites

RULES = ("fail_on", "require", "strict")
_BEFORE = (
    "limit", "sample", "max_tokens", "n_shots", "gen_kwargs", "seed", "system_prompt", "reasoning_effort",
    "chat_template_kwargs", "reasoning_tags",
    "task_paths", "no_remote_code", "confirm_run_unsafe_code", "sandbox", "sandbox_image", "output_dir",
)  # fmt: skip
_AFTER = ("wait", "fresh", "quiet")


def rule_options() -> Decorator:
    """The rules of a check; the same for commands that make a check and for those that read one."""
    return options(RULES, CheckOptions)


def forced_option() -> Decorator:
    return option("forced_tokens", CheckOptions)


def check_options(default_prompts: str, *, chat: bool | None = None) -> Decorator:
    """The options of every check command, in the order in which --help shows them. `chat` is the default of --chat."""
    table = CheckOptions
    prompts = f"Prompt suites or .jsonl files, comma-separated. [default: {default_prompts}]"
    template = "on" if chat else "on for prompts, if every model has a chat template"
    return with_options(
        [
            option("prompts", table, help=prompts),
            option("tasks", table),
            option(
                "chat",
                table,
                off="no_chat",
                default=chat,
                help=f"Apply the chat template, or send plain text. [default: {template}]",
            ),
            *(option(name, table) for name in (*_BEFORE, *RULES)),
            option("report", table, off="no_report", help="Write report.html beside the check. [default: on]"),
            *(option(name, table) for name in _AFTER),
        ]
    )


@dataclass(frozen=True)
class PreparedCheck:
    """A check command after its options are read: what the models are sent, and the rules for the result."""

    config: CheckConfig
    rules: list[Rule]
    options: CheckOptions


def read_options(
    ctx: click.Context,
    values: Mapping[str, Any],
    *,
    default_prompts: str,
    top_logprobs: int | None = TOP_LOGPROBS,
) -> PreparedCheck:
    """Refuse bad options before a model is opened. `top_logprobs` are requested for every generated token."""
    options = CheckOptions(**merge(given_options(ctx, values, CheckOptions)))
    load_builtin()
    load_files(tuple(options.task_paths))
    rules = parse_rules(options.fail_on, options.require)
    check_names(rules)
    selection = select_prompts(options.prompts, options.tasks, default_prompts)
    return PreparedCheck(options.config(selection, top_logprobs=top_logprobs), rules, options)


def select_prompts(prompts: list[str] | None, tasks: list[str] | None, default: str) -> Selection:
    if prompts and tasks:
        raise SpecError("give --prompts or --tasks, not both")
    if tasks:
        return select(expand_task_files(tasks))
    return Selection(select_suites(prompts or [default]), ())


def finish(prepared: PreparedCheck, make: Callable[[], Check]) -> int:
    """Make a check, show it, save it, and test it against its rules."""
    from mill.report.checks import print_check
    from mill.report.markdown import summary_markdown

    try:
        check = make()
    except KeyboardInterrupt:
        raise interrupted() from None
    root = prepared.config.output_dir
    written = [check.save(root)]
    print_check(check)
    if prepared.options.report:
        from mill.report.html import write_report

        written.append(write_report([check], written[0].with_name("report.html"), root=root))
    for file in written:
        echo(f"written: {file}")
    add_summary(summary_markdown(check, judge(check, prepared.rules)))
    return end(check, prepared.rules, strict=prepared.options.strict)


def end(check: Check, rules: Sequence[Rule], *, strict: bool) -> int:
    """0, or 1 where requests failed; a rule that is broken or inconclusive raises."""
    if rules:
        echo(conclude([(check, judge(check, rules))], strict=strict))
    return int(any(variant.counts.get("failed") for variant in check.variants))


def add_summary(text: str) -> None:
    """Append to the job summary of GitHub Actions, inside such a job."""
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if file:
        with Path(file).open("a", encoding="utf-8") as handle:
            handle.write(text + "\n")
