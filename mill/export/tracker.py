"""What every experiment tracker gets of a run: one entry, found again by the run's id, with parameters, tags, metrics with
a step, and files; and `--log_to`, which exports a run when it ends."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mill
from mill.api.errors import MillError, SpecError
from mill.export.parquet import write_samples
from mill.export.run import ExportedRun, clean, flatten, result_name
from mill.export.target import Target, failure, names_taking, parse_target
from mill.report.collect import decision_text, mean_name, mean_of_tasks, sampled_text
from mill.store.folder import MANIFEST, RESULTS, RunFolder
from mill.support.files import json_text, read_bytes, write_atomically
from mill.support.processes import rank
from mill.support.secrets import redact_text
from mill.support.terminal import echo_data, logger, one_line, utf8, warn
from mill.view.offline import results_page

DEFAULT_PROJECT = "mill"
_MOST_TASKS = 20  # in the tag of a run


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker stores it. `step` counts the responses, so that it grows when the run is extended."""

    uid: str
    name: str
    group: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]
    step: int
    started_ms: int
    ended_ms: int
    status: str
    not_finite: dict[str, float] = field(default_factory=dict)
    """Metrics whose value is NaN or infinite. Trackers show those in different ways, so that a tag names them as well."""

    @property
    def state(self) -> str:
        """The same for a run that did not change since it was stored."""
        content = json_text([self.params, self.tags, self.metrics, self.not_finite, self.step, self.status])
        return hashlib.blake2b(utf8(content), digest_size=8).hexdigest()


def tracked(run: ExportedRun) -> TrackedRun:
    metrics = _metrics(run)
    not_finite = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    return TrackedRun(
        uid=run.uid,
        name=run.name,
        group=run.model,
        params=_params(run),
        tags=_tags(run, not_finite),
        metrics={name: value for name, value in metrics.items() if name not in not_finite},
        step=sum(count.responses for count in run.counts.values()),
        started_ms=int(run.started.timestamp() * 1000),
        ended_ms=int(run.ended.timestamp() * 1000),
        status=run.status,
        not_finite=not_finite,
    )


def _params(run: ExportedRun) -> dict[str, str]:
    """What distinguishes the run: the same after it was extended."""
    model = run.manifest["model"]
    given = {"model": run.model, "backend": run.backend, "judge": run.judge, "condition": run.manifest.get("condition")}
    identity = model.get("identity") if isinstance(model.get("identity"), dict) else {}
    return {
        **flatten(given),
        **flatten(run.arguments, "model_args."),
        **flatten(identity, "identity."),
        **flatten(run.settings, "settings."),
    }


def _tags(run: ExportedRun, not_finite: Mapping[str, float]) -> dict[str, str]:
    tasks = [clean(task) for task in run.tasks]
    more = f" and {len(tasks) - _MOST_TASKS} more" if len(tasks) > _MOST_TASKS else ""
    warnings = dict.fromkeys(clean(line) for result in run.results.tasks.values() for line in result.warnings)
    tags = {
        "mill.run": run.uid,
        "mill.status": run.status,
        "mill.tasks": ", ".join(tasks[:_MOST_TASKS]) + more,
        "mill.folder": "/".join(run.folder.path.absolute().parts[-2:]),
        "mill.command": run.command,
        "mill.warnings": "; ".join(warnings),
        "mill.sampled": sampled_text(run.results.tasks.values()),
        "mill.decision": decision_text(run.results.decisions.values()),
        "mill.partial_means": ", ".join(
            mean_name(mean.benchmark, mean_of_tasks(mean)) for mean in run.results.benchmarks.values() if mean.missing
        ),
        "mill.not_finite": ", ".join(f"{name} = {value}" for name, value in not_finite.items()),
        **{f"mill.version.{name}": version for name, version in run.versions.items()},
    }
    return {clean(name): clean(value) for name, value in tags.items() if value}


def _metrics(run: ExportedRun) -> dict[str, float]:
    """`task/metric` with its standard error and interval, and the counts of samples, of tasks and benchmarks. The mean of
    some of a benchmark's tasks has another name than that of all."""
    metrics: dict[str, float] = {}
    for result in run.scored:
        of = mean_of_tasks(result).replace(" ", "_")
        name = clean(result_name(result)) + (f"_mean_of_{of}" if of else "")
        for metric, estimate in result.metrics.items():
            parts = {"": estimate.value, "_stderr": estimate.stderr, "_low": estimate.low, "_high": estimate.high}
            key = f"{name}/{clean(metric)}"
            metrics |= {f"{key}{part}": float(value) for part, value in parts.items() if value is not None}
        metrics |= {f"{name}/samples": float(result.n), f"{name}/total": float(result.total)}
    for task, count in run.counts.items():
        metrics[f"{clean(task)}/failed"] = float(count.failed)
        metrics[f"{clean(task)}/unanswered"] = float(count.unanswered)
    counts = run.counts.values()
    return {
        **metrics,
        "run/samples": float(sum(count.done for count in counts)),
        "run/failed": float(sum(count.failed for count in counts)),
        "run/unanswered": float(sum(count.unanswered for count in counts)),
        "run/seconds": run.seconds,
        "run/prompt_tokens": float(sum(session.prompt_tokens for session in run.sessions)),
        "run/output_tokens": float(sum(session.output_tokens for session in run.sessions)),
    }


def track(
    run: ExportedRun, target: Target, *, project: str = "", offline: bool = False, samples: bool = True, report: bool = True
) -> str:
    """Store a run, or what has changed of it. Returns where it is."""
    store = target.exporter.store
    assert store is not None
    target.exporter.check_installed(f"the target {target.name}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_files(run, Path(folder), samples=samples, report=report)
            own = {"address": target.address, "project": project or DEFAULT_PROJECT, "offline": offline}
            return store(tracked(run), Path(folder), **own)
    except MillError:
        raise
    except Exception as error:  # packages of trackers raise anything
        raise failure(target, error) from error


def write_files(run: ExportedRun, folder: Path, *, samples: bool, report: bool) -> None:
    """results.json, samples.parquet and report.html of a run."""
    results = run.folder.path / RESULTS
    if results.exists():
        write_atomically(folder / RESULTS, read_bytes(results), root=folder, sync=False)
    if samples:
        write_samples([run], folder / "samples.parquet", folder)
    if report:
        write_atomically(folder / "report.html", results_page(run.folder.path), root=folder, sync=False)


LONGEST_S = 60.0  # that an export may take before it is ended


def check_trackers(targets: Sequence[str]) -> None:
    """Refuse, before a run, names that are no trackers and trackers that are not installed."""
    for target in map(parse_target, targets):
        if not target.exporter.is_tracker:
            trackers = names_taking("project")
            raise SpecError(f"{target.name} is a file format, written by `mill export`; trackers are {trackers}")
        target.exporter.check_installed(f"--log_to {target.name}")


@contextlib.contextmanager
def logged_to(folder: RunFolder, targets: Sequence[str]) -> Iterator[None]:
    """Export the run that is executed inside when it ends, also with an error; only rank 0 does."""
    try:
        yield
    finally:
        if rank() == 0 and (folder.path / MANIFEST).exists():
            for target in map(parse_target, targets):
                _export(folder, target)


def _export(folder: RunFolder, target: Target) -> None:
    paths = [str(Path(mill.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,  # an address may have a password, which other users could read on a command line
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interruption of the run is no interruption of its export
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    given = json.dumps([str(folder.path.absolute()), str(folder.root.absolute()), f"{target.name}:{target.address}"])
    try:
        out, err = process.communicate(given, timeout=LONGEST_S)
        last = one_line((out if process.returncode == 0 else err).strip().rpartition("\n")[2])
        if process.returncode == 0:
            logger.info("logged to %s: %s", target.name, last)
            return
    except subprocess.TimeoutExpired:
        last = f"it did not answer within {LONGEST_S:.0f} seconds"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its group: wandb starts a process
        process.wait()
    again = f"`mill export {shlex.quote(str(folder.path))} --to {target.name}` stores the run later"
    reason = last.removeprefix(f"{target.name}: ") or "its process ended"
    warn(redact_text(f"{target.name}: the run is not logged: {reason}; {again}"))


def main() -> None:
    from mill.export.tracker import track  # of the module that targets import, and not of this second copy of it

    folder, root, target = json.load(sys.stdin)
    try:
        echo_data(f"{track(ExportedRun.read(RunFolder(Path(folder), Path(root))), parse_target(target))}\n")
    except MillError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
