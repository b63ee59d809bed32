"""`mill schema run`: the JSON schema of run files, for editors."""

from __future__ import annotations

import json

import click

from mill.options.eval_options import run_file_schema
from mill.support.terminal import echo_data


@click.command("schema")
@click.argument("what", type=click.Choice(["run"]), default="run")
def command(what: str) -> int:
    """Print the JSON schema of a file that mill reads. `run` is the run file of `mill eval --config`.

    \b
    Example:
      mill schema run > run.schema.json
      # first line of run.yaml, for editors with the YAML language server:
      # yaml-language-server: $schema=run.schema.json
    """
    echo_data(json.dumps(run_file_schema(), indent=2) + "\n")
    return 0
