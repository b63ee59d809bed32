"""Weights & Biases and trackio, which has functions of the same names: a run of a project, found again by its id in wandb,
by its name in trackio."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError
from mill.export.run import FINISHED
from mill.export.target import Exporter, ExportError
from mill.export.tracker import TrackedRun
from mill.support.secrets import redact_address

_STATE = "mill.state"  # in the configuration of an entry: what was stored last
# What wandb would read from this machine and process: command lines, installed packages, hardware, the git remote.
_NOTHING_ELSE = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


def store_in_wandb(run: TrackedRun, files: Path, *, address: str, project: str, offline: bool) -> str:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    entity, slash, name = (address or project).rpartition("/")
    entry = wandb.init(
        id=run.uid,
        name=run.name,
        group=run.group,
        project=name,
        entity=entity if slash else None,
        config=_config(run),
        resume="allow",
        allow_val_change=True,
        mode="offline" if offline else None,
        settings=wandb.Settings(**_NOTHING_ELSE),
    )
    metrics = {**run.metrics, **run.not_finite}
    entry.log(metrics, step=run.step)  # wandb leaves it out where the run has this step already
    entry.summary.update(metrics)
    entry.log_artifact(str(files), name=f"mill-{run.uid}", type="evaluation")
    where = f"{entry.dir.removesuffix('/files')}: wandb sync uploads it" if offline else entry.url
    wandb.finish(exit_code=int(run.status != FINISHED))
    return str(where)


def store_in_trackio(run: TrackedRun, files: Path, *, address: str, project: str, offline: bool) -> str:
    """A state that is stored already is not stored again: a second export would double the points of a chart."""
    import trackio

    project, name = address or project, f"{run.name} {run.uid}"
    with _failures_raised():
        stored = _stored_state(trackio, project, name)
        quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
        entry = trackio.init(project=project, name=name, group=run.group, resume="allow", config=_config(run), **quiet)
        if stored != run.state:
            entry.log({**run.metrics, **run.not_finite}, step=run.step)
        entry.log_artifact(str(files), name=f"mill-{run.uid}", type="evaluation")
        trackio.finish()
    return f"project {project}, run {entry.name}"


def _stored_state(trackio: Any, project: str, name: str) -> str:
    """The state that a local project has of this run; empty where it has none."""
    try:
        runs = list(trackio.Api().runs(project))
    except ValueError:  # there is no such project yet
        return ""
    return str(next(((run.config or {}).get(_STATE, "") for run in runs if run.name == name), ""))


@contextlib.contextmanager
def _failures_raised() -> Iterator[None]:
    """trackio prints what it does, and reports every failure as a warning: here it is an error."""
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield
    failures = [str(warning.message) for warning in caught if "trackio" in str(warning.message).lower()]
    if failures:
        raise ExportError(f"trackio: {failures[0]}")


def _config(run: TrackedRun) -> dict[str, str]:
    return {**run.params, **run.tags, _STATE: run.state}


def _exporter(name: str, about: str, store: Callable[..., str], *options: str) -> Exporter:
    def check(project: str) -> None:
        """An address has a password, which these packages would take for a part of a project's name."""
        if re.match(r".*:.*@", project, re.DOTALL):
            raise SpecError(f"{name}={redact_address(project)}: give the name of a project, not an address")

    return Exporter(
        name=name,
        about=about,
        store=store,
        address="PROJECT",
        check_address=check,
        options=options,
        package=name,
        extra=name,
    )


WANDB = _exporter(
    "wandb",
    "a run of a project (`TEAM/PROJECT`), online, or offline for `wandb sync` (`--offline` or `WANDB_MODE=offline`)",
    store_in_wandb,
    "offline",
)
TRACKIO = _exporter(
    "trackio", "a run of a project, local, or where `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` say", store_in_trackio
)
