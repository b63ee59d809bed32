"""Weights & Biases and trackio, which has the same functions: a run of a project, found again by the run's id."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import warnings
from collections.abc import Iterator
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


class WandbTracker:
    """One run of a project, of wandb or of trackio. wandb finds it by its id, trackio by its name."""

    def __init__(self, package: str, project: str, *, offline: bool = False) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        self._library: Any = importlib.import_module(package)
        self._is_wandb, self._project, self._offline = package == "wandb", project, offline
        self._run: Any = None
        self._opened = self._stored = ""  # states of the run

    def start(self, run: TrackedRun) -> None:
        self._stored = "" if self._is_wandb else self._stored_state(_unique_name(run))
        with self._quiet():
            quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
            own = {"name": _unique_name(run), "project": self._project, **quiet}
            options = self._wandb_options(run) if self._is_wandb else own
            self._run = self._library.init(group=run.group, resume="allow", config=_config(run), **options)
        self._opened = run.state

    def finish(self, run: TrackedRun, files: Path | None) -> str:
        """A state that is stored already is not stored again: a second export would double the points of a chart."""
        metrics = {**run.metrics, **run.not_finite}
        if not self._is_wandb and self._opened != run.state:  # trackio takes a configuration when it opens a run
            self._close(run)
            self.start(run)
        with self._quiet():
            if self._is_wandb:
                self._run.config.update(_config(run), allow_val_change=True)
                self._run.log(metrics, step=run.step)  # wandb leaves it out where the run has this step already
                self._run.summary.update(metrics)
            elif self._stored != run.state:
                self._run.log(metrics, step=run.step)
            if files is not None:
                self._run.log_artifact(str(files), name=f"mill-{run.uid}", type="evaluation")
            where = f"project {self._project}, run {self._run.name}"
            if self._is_wandb:
                where = f"{self._run.dir.removesuffix('/files')}: wandb sync uploads it" if self._offline else self._run.url
        self._close(run)
        return str(where)

    def _close(self, run: TrackedRun) -> None:
        with self._quiet():
            self._library.finish(**({"exit_code": int(run.status != FINISHED)} if self._is_wandb else {}))

    def _wandb_options(self, run: TrackedRun) -> dict[str, Any]:
        entity, slash, project = self._project.rpartition("/")
        return {
            "id": run.uid,
            "name": run.name,
            "project": project,
            **({"entity": entity} if slash else {}),
            "mode": "offline" if self._offline else None,
            "allow_val_change": True,
            "settings": self._library.Settings(**_NOTHING_ELSE),
        }

    def _stored_state(self, name: str) -> str:
        """The state that a local project of trackio has of this run; empty where it has none."""
        with self._quiet():
            try:
                runs = list(self._library.Api().runs(self._project))
            except ValueError:  # there is no such project yet
                return ""
            return str(next(((run.config or {}).get(_STATE, "") for run in runs if run.name == name), ""))

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """trackio prints what it does, and reports every failure as a warning: here it is an error."""
        if self._is_wandb:
            yield
            return
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            yield
        failures = [str(one.message) for one in caught if "trackio" in str(one.message).lower()]
        if failures:
            raise ExportError(f"trackio: {failures[0]}")


def _unique_name(run: TrackedRun) -> str:
    return f"{run.name} {run.uid}"


def _config(run: TrackedRun) -> dict[str, str]:
    return {**run.params, **run.tags, _STATE: run.state}


def _exporter(name: str, about: str, *options: str) -> Exporter:
    def check(project: str) -> None:
        """An address has a password, which these packages would take for a part of a project's name."""
        if re.match(r".*:.*@", project, re.DOTALL):
            raise SpecError(f"{name}={redact_address(project)}: give the name of a project, not an address")

    return Exporter(
        name=name,
        about=about,
        open=lambda address, project, offline: WandbTracker(name, address or project, offline=offline),
        address="PROJECT",
        check_address=check,
        options=options,
        package=name,
        extra=name,
    )


WANDB = _exporter(
    "wandb",
    "a run of a project (`TEAM/PROJECT`), online, or offline for `wandb sync` (`--offline` or `WANDB_MODE=offline`)",
    "offline",
)
TRACKIO = _exporter("trackio", "a run of a project, local, or where `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` say")
