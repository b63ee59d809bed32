"""`mill view [FOLDER]`: runs and checks in a browser."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import click

from mill.api.errors import SpecError
from mill.cli.options import FilePath
from mill.support.terminal import echo

EXAMPLES = """
\b
Examples:
  mill view                                   (the runs and checks below ./results)
  mill view results --port 8080 --no_browser
  mill view logs                              (logs of lm-eval --log_samples and of inspect_ai, too)
  mill view results --export site --runs 'SmolLM2*'
  mill view results --host 0.0.0.0 --token "$(openssl rand -hex 16)"
"""


@click.command("view", epilog=EXAMPLES)
@click.argument("folder", type=FilePath(), default="results")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the server. [default: a free one]")
@click.option("--no_browser", is_flag=True, help="Print the address, and do not open it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; another one needs --token.")
@click.option("--token", default=None, help="Token in the address, 16 characters or more. [default: a random one]")
@click.option("--export", type=FilePath(), default=None, help="Write a static copy to this folder instead, and end.")
@click.option("--runs", default=None, help="With --export: which runs, by patterns of their names such as 'SmolLM2*'.")
def command(
    folder: str, port: int, no_browser: bool, host: str, token: str | None, export: str | None, runs: str | None
) -> int:
    """Show the runs and checks below FOLDER in a browser: scores, comparisons, samples, tokens, load and checks.

    The server listens on this machine alone and only reads. The address that it prints has a token: with this address,
    anyone on this machine can read the results. Ctrl-C ends it.
    """
    from mill.view.server import is_loopback

    if not folder:
        raise SpecError("FOLDER is empty: name a folder of results")
    if export is not None and (port or no_browser or token or host != "127.0.0.1"):
        raise SpecError("--export starts no server: leave out --port, --no_browser, --host and --token")
    if runs is not None and export is None:
        raise SpecError("--runs is for --export; the pages list all runs")
    if not is_loopback(host) and token is None:
        raise SpecError(f"--host {host} makes the results readable from other machines: give a --token as well")
    if token is not None and not re.fullmatch("[A-Za-z0-9_-]{16,}", token):
        raise SpecError("--token: 16 or more letters, digits, - or _ are needed")
    if export is not None:
        from mill.view.offline import export_site

        pages = export_site(Path(folder), Path(export), [name for name in (runs or "").split(",") if name])
        echo(f"written: {pages}; open it in a browser, from disk or from any web server")
        return 0
    from mill.view.server import serve

    return serve(Path(folder), host=host, port=port, token=token or secrets.token_urlsafe(18), browser=not no_browser)
