"""`mill lm-eval ...`: the command line of lm-evaluation-harness, with mill's models as `--model mill`."""

from __future__ import annotations

import argparse
import sys

import click

from mill.api.errors import MissingPackage


@click.command(
    "lm-eval",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "token_normalize_func": None},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Run lm-evaluation-harness with any model of mill: all of lm-eval's options, and --model mill.

    Answers are recorded below the folder `output_dir` of --model_args ("results" unless given); the same command continues.
    Data on MILL_DATA comes before the hub.

    \b
    Examples:
      mill lm-eval run --model mill --model_args "spec=hf[path=org/name]" --tasks hellaswag --limit 100
      mill lm-eval run --model mill --model_args "spec=http://127.0.0.1:8000/v1,output_dir=out" --tasks gsm8k
    """
    try:
        import lm_eval.models  # noqa: F401  registers lm-eval's own, which mill's joins
        from lm_eval.__main__ import cli_evaluate
        from lm_eval.api import metrics
        from lm_eval.api.registry import register_model
    except ModuleNotFoundError as error:
        if error.name != "lm_eval":
            raise
        raise MissingPackage("mill lm-eval", "lm_eval", "lm-eval") from error
    from mill.bridges.lm_eval.bootstrap import bootstrap_stderr
    from mill.bridges.lm_eval.library import compiled_once, local_first
    from mill.bridges.lm_eval.model import NAME, MillLM, read_arguments
    from mill.bridges.recorded_model import RecordedModel

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model")
    parser.add_argument("--model_args", nargs="*")
    given, _ = parser.parse_known_args([word for word in arguments if word not in ("run", "ls", "validate")])
    text = ",".join(given.model_args or ())
    if given.model == NAME and text and not text.startswith("{"):
        RecordedModel.checked(read_arguments(text))  # lm-eval reads all of its task files before the model
    register_model(NAME)(MillLM)
    sys.argv = ["lm-eval", *arguments]
    try:
        with local_first(), compiled_once(), bootstrap_stderr(metrics):
            cli_evaluate()
    except SystemExit as end:  # argparse ends the process, with 0 after --help
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0
