"""MLflow: a run of the experiment, found again by its tag `mill.run`, in a database (`sqlite:///FILE`) or on a server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from mill.api.errors import SpecError
from mill.export.run import FAILED, FINISHED, INTERRUPTED, STOPPED, UNFINISHED
from mill.export.target import Exporter, ExportError
from mill.export.tracker import TrackedRun
from mill.models.spec.open import check_address
from mill.support.secrets import fill_variables, looks_like_url, redact_address, remember, split_password
from mill.support.terminal import utf8

T = TypeVar("T")

_MOST_METRICS, _MOST_PARAMS, _MOST_TAGS = 1000, 100, 100  # in one call
_LONGEST_NAME, _LONGEST_PARAM, _LONGEST_TAG = 250, 6000, 8000
_STATUS = {
    FINISHED: "FINISHED",
    STOPPED: "KILLED",
    INTERRUPTED: "KILLED",
    FAILED: "FAILED",
    UNFINISHED: "KILLED",
}
# A server that is gone is reported within seconds, unless the user wants to wait for it.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


class MlflowTracker:
    """One run of an experiment. Numbers that MLflow cannot store are named by the tag `mill.not_finite` alone."""

    def __init__(self, uri: str, experiment: str) -> None:
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(without_login(uri) or None)
        self._experiment_name = experiment
        self._run_id = self._experiment = ""
        self._started_ms = 0

    def start(self, run: TrackedRun) -> None:
        self._experiment = self._experiment_id()
        found = self._client.search_runs([self._experiment], f"tags.`mill.run` = '{run.uid}'", max_results=1)
        if found:
            entry, known = found[0], found[0].data.params
        else:
            options = {"start_time": run.started_ms or None, "run_name": run.name, "tags": {"mill.run": run.uid}}
            entry, known = self._client.create_run(self._experiment, **options), {}
        self._run_id, self._started_ms = entry.info.run_id, entry.info.start_time or 0
        self._client.update_run(self._run_id, status="RUNNING", name=run.name)
        self._write_params(run.params, known)
        self._write_tags(run.tags)

    def finish(self, run: TrackedRun, files: Path | None) -> str:
        """The time of a metric is that of the run: MLflow then takes the same value at the same step for one."""
        from mlflow.entities import Metric

        entries = [Metric(name, value, run.ended_ms, run.step) for name, value in safe_names(run.metrics).items()]
        for part in _parts(entries, _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=part)
        self._write_tags(run.tags)
        if files is not None:
            self._client.log_artifacts(self._run_id, str(files))
        ended = max(run.ended_ms, self._started_ms)  # the entry of a short run may be created after its end
        self._client.set_terminated(self._run_id, _STATUS[run.status], end_time=ended)
        return f"experiment {self._experiment_name}, run {self._run_id}"

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self._experiment_name)
        if found is None:
            try:
                return str(self._client.create_experiment(self._experiment_name))
            except MlflowException:  # another process created it meanwhile
                found = self._client.get_experiment_by_name(self._experiment_name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise ExportError(f"the MLflow experiment {self._experiment_name} is deleted: restore it or give --project")
        return str(found.experiment_id)

    def _write_params(self, params: Mapping[str, str], known: Mapping[str, str]) -> None:
        """MLflow never changes a parameter: one that another session of the run changed is a tag."""
        from mlflow.entities import Param

        shown = {name: value[:_LONGEST_PARAM] for name, value in safe_names(params).items()}
        for part in _parts([Param(name, value) for name, value in shown.items() if name not in known], _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=part)
        self._write_tags({f"mill.now.{name}": value for name, value in shown.items() if known.get(name, value) != value})

    def _write_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        entries = [RunTag(name, value[:_LONGEST_TAG]) for name, value in safe_names(tags).items()]
        for part in _parts(entries, _MOST_TAGS):
            self._client.log_batch(self._run_id, tags=part)


def check_uri(uri: str) -> None:
    """Refuse one that MLflow would repeat in its messages, with the password."""
    if looks_like_url(uri):
        check_address(uri, "mlflow")
    elif re.match(r"(?!file:)[^/@:]*:(?!//).*@", uri, re.DOTALL):
        raise SpecError(f"mlflow={redact_address(uri)}: give http://host:port or the URI of a database")


EXPORTER = Exporter(
    name="mlflow",
    about="a run of an experiment, on a server or in a database (`sqlite:///mlflow.db`); without a URI where "
    "`MLFLOW_TRACKING_URI` says",
    open=lambda uri, project, offline: MlflowTracker(uri, project),
    address="URI",
    check_address=check_uri,
    package="mlflow",
    extra="mlflow",
)


def without_login(uri: str) -> str:
    """The address of a server without name and password, which MLflow takes from the environment. The address of a
    database has its password inside; it is removed from every message."""
    if not looks_like_url(uri):
        uri = fill_variables(uri)
        for login in re.findall(r"://[^/@\s:]*:(.+)@", uri):
            remember(login)
            remember(unquote(login))
        return uri
    address, login = split_password(uri)
    if login is not None:
        name, _, password = login.partition(":")
        os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"] = name, password
    return address


def safe_names(values: Mapping[str, T]) -> dict[str, T]:
    """The same values under names that MLflow takes. A name that would become that of another has a checksum."""
    safe: dict[str, T] = {}
    for name, value in values.items():
        shown = re.sub(r"[^\w\-./: ]", "_", name)
        shown = re.sub(r"/+", "/", re.sub(r"\.{2,}", ".", shown)).strip("/. ")[:_LONGEST_NAME] or "_"
        if shown in safe or (shown != name and shown in values):
            shown = f"{shown[: _LONGEST_NAME - 9]}-{blake2b(utf8(name), digest_size=4).hexdigest()}"
        safe[shown] = value
    return safe


def _parts(entries: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(entries)
    while part := list(islice(remaining, size)):
        yield part
