"""MLflow: a run of the experiment, found again by its tag `mill.run`, in a database (`sqlite:///FILE`) or on a server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import blake2b
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


def store_in_mlflow(run: TrackedRun, files: Path, *, address: str, project: str, offline: bool) -> str:
    """Numbers that MLflow cannot store are named by the tag `mill.not_finite` alone. The time of a metric is that of the
    run: MLflow then takes the same value at the same step for one."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow.entities import Metric, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(without_login(address) or None)
    experiment = _experiment_id(client, project)
    found = client.search_runs([experiment], f"tags.`mill.run` = '{run.uid}'", max_results=1)
    options = {"start_time": run.started_ms or None, "run_name": run.name, "tags": {"mill.run": run.uid}}
    entry = found[0] if found else client.create_run(experiment, **options)
    run_id = entry.info.run_id
    client.update_run(run_id, status="RUNNING", name=run.name)
    tags = {**run.tags, **_write_params(client, run_id, run.params, entry.data.params if found else {})}
    client.log_batch(
        run_id,
        metrics=[Metric(name, value, run.ended_ms, run.step) for name, value in safe_names(run.metrics).items()],
        tags=[RunTag(name, value[:_LONGEST_TAG]) for name, value in safe_names(tags).items()],
    )
    client.log_artifacts(run_id, str(files))
    ended = max(run.ended_ms, entry.info.start_time or 0)  # the entry of a short run may be created after its end
    client.set_terminated(run_id, _STATUS[run.status], end_time=ended)
    return f"experiment {project}, run {run_id}"


def _experiment_id(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # another process created it meanwhile
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        raise ExportError(f"the MLflow experiment {name} is deleted: restore it or give --project")
    return str(found.experiment_id)


def _write_params(client: Any, run_id: str, params: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """MLflow never changes a parameter: those that another session of the run changed are returned as tags."""
    from mlflow.entities import Param

    shown = {name: value[:_LONGEST_PARAM] for name, value in safe_names(params).items()}
    client.log_batch(run_id, params=[Param(name, value) for name, value in shown.items() if name not in known])
    return {f"mill.now.{name}": value for name, value in shown.items() if known.get(name, value) != value}


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
    store=store_in_mlflow,
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
