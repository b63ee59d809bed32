"""What the check commands share: the options, and how they become what is asked of the models."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mill.api.errors import Interrupted, SpecError
from mill.api.printing import echo
from mill.api.request import generation_options
from mill.api.task import RenderSettings
from mill.checks.gate import Rule, check_names, conclude, judge, parse_rules
from mill.checks.result import Check
from mill.checks.subjects import TOP_LOGPROBS, CheckConfig
from mill.cli.options import Decorator, chosen_output_dir, parse_pairs, remote_code_option, split_paths, task_paths_option
from mill.cli.values import FilePath, Real
from mill.models.spec.parse import split_list
from mill.runs.plan import parse_limit
from mill.tasks.load import Selection, load_builtin, load_files, select
from mill.tasks.suite import select_suites


def rule_options() -> list[Decorator]:
    """What a check must keep; the same for commands that make a check and for those that read one."""
    return [
        click.option(
            "--fail_on",
            default=None,
            help='What must not be: "flip_rate>0.02, acc_drop>0.01@p<0.05"; exit code 3, or 5 where n is too small.',
        ),
        click.option(
            "--require",
            default=None,
            help='What the 95 % interval must show: "acc_drop<0.01"; exit code 3 or 5 where it does not. For CI.',
        ),
        click.option("--strict", is_flag=True, help="An inconclusive rule counts as broken."),
    ]


def check_options(default_prompts: str, *, chat: bool | None = None) -> Decorator:
    """The options of every check command, in the order that --help shows them. `chat` is the default of --chat."""
    default = "on for prompts, where every model has one" if chat is None else "on"
    options: list[Decorator] = [
        click.option("--prompts", default=None, help=f"Prompt suite, or a .jsonl file. [default: {default_prompts}]"),
        click.option("--tasks", default=None, help="Tasks or benchmarks instead of prompts, comma-separated."),
        click.option(
            "--chat/--no_chat",
            default=chat,
            help=f"Through the chat template, or as plain text. [default: {default}]",
        ),
        click.option(
            "--limit",
            "--num_prompts",
            "limit",
            default=None,
            help="Samples of each: a count or a fraction.",
        ),
        click.option(
            "--max_tokens",
            type=click.IntRange(min=1),
            help="Longest answer. [default: the prompt's own, else 256]",
        ),
        click.option("--n_shots", type=click.IntRange(min=0), default=None, help="Examples before each question of a task."),
        click.option("--gen_kwargs", default=None, help="Decoding options: temperature=0.7,top_p=0.9."),
        click.option("--seed", type=int, default=0, help="Seed of example draws and sampling."),
        click.option("--system_prompt", default=None, help="A system message, or text in front of each prompt."),
        task_paths_option(),
        remote_code_option(),
        click.option(
            "--output_dir",
            "--output",
            "output_dir",
            type=FilePath(),
            default=None,
            help="Where runs and checks go. [default: results]",
        ),
        *rule_options(),
        click.option("--report/--no_report", default=True, help="Write report.html beside the check."),
        click.option("--wait", type=Real(min=0), default=0.0, help="Seconds to wait for a server to come up."),
        click.option("--fresh", is_flag=True, help="Ask everything anew, beside what is recorded."),
        click.option("--quiet", is_flag=True, help="No progress."),
    ]

    return with_options(options)


def with_options(options: Sequence[Decorator]) -> Decorator:
    """A decorator that adds options in the order that --help shows them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@dataclass(frozen=True)
class CheckOptions:
    """A check command's options, read: what is asked, which rules hold, whether a report is written."""

    asked: CheckConfig
    rules: list[Rule]
    report: bool
    strict: bool = False


def read_options(
    ctx: click.Context,
    given: dict[str, Any],
    *,
    default_prompts: str,
    top_logprobs: int | None = TOP_LOGPROBS,
) -> CheckOptions:
    """Refuses what cannot be before a model is looked at. `top_logprobs` are asked for beside every generated token."""
    load_builtin()
    load_files(split_paths(given["task_paths"]))
    rules = parse_rules(given["fail_on"], given["require"])
    check_names(rules)
    gen_kwargs = parse_pairs(given["gen_kwargs"], "--gen_kwargs")
    if given["max_tokens"]:
        gen_kwargs["max_gen_toks"] = given["max_tokens"]
    if top_logprobs:
        gen_kwargs.setdefault("logprobs", top_logprobs)
    generation_options(**gen_kwargs)
    settings = RenderSettings(
        n_shots=given["n_shots"],
        seed=given["seed"],
        gen_kwargs=gen_kwargs,
        system_prompt=given["system_prompt"],
    )
    asked = CheckConfig(
        selection=select_prompts(given["prompts"], given["tasks"], default_prompts),
        settings=settings,
        output_dir=chosen_output_dir(ctx, given["output_dir"]),
        limit=parse_limit(given["limit"]),
        quiet=given["quiet"],
        wait=given["wait"],
        fresh=given["fresh"],
        chat=given["chat"],
    )
    return CheckOptions(asked, rules, given["report"], given["strict"])


def select_prompts(prompts: str | None, tasks: str | None, default: str) -> Selection:
    if prompts and tasks:
        raise SpecError("give --prompts or --tasks, not both")
    if tasks:
        return select(split_list(tasks))
    return Selection(select_suites(split_list(prompts or default)), ())


def finish(options: CheckOptions, make: Callable[[], Check]) -> int:
    """Make a check, show it, write it down, and hold it against its rules."""
    from mill.report.checks import print_check, summary_markdown

    try:
        check = make()
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing that was answered is lost: the same command goes on from here") from None
    file = check.save(options.asked.output_dir)
    print_check(check)
    written = [file]
    if options.report:
        from mill.report.html import write_report

        written.append(write_report([check], file.with_name("report.html"), root=options.asked.output_dir))
    for one in written:
        echo(f"written: {one}")
    add_summary(summary_markdown(check, judge(check, options.rules)))
    return end(check, options.rules, strict=options.strict)


def end(check: Check, rules: Sequence[Rule], *, strict: bool) -> int:
    """0, or 1 where requests failed; a rule that is broken or inconclusive raises."""
    if rules:
        echo(conclude([(check, judge(check, rules))], strict=strict))
    return int(any(variant.counts.get("failed") for variant in check.variants))


def add_summary(text: str) -> None:
    """Where GitHub shows a job's summary, if this is one of its jobs."""
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if file:
        with Path(file).open("a", encoding="utf-8") as handle:
            handle.write(text + "\n")
