"""Runs in the environment of the trackers: reads back what they stored. argv: a tracker and where its data is; prints JSON,
in which NaN and infinity are texts."""

import json
import math
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HISTORIES = ("odd_text/exact_match", "toy_gen/exact_match")


def mlflow_runs(uri: str, experiment: str = "mill") -> list[dict[str, Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id]) if found else []
    return [
        {
            "name": run.info.run_name,
            "status": run.info.status,
            "seconds": (run.info.end_time or 0) / 1000 - run.info.start_time / 1000,
            "params": run.data.params,
            "tags": run.data.tags,
            "metrics": run.data.metrics,
            "history": {
                name: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]
                for name in HISTORIES
                if name in run.data.metrics
            },
            "files": {
                one.path: Path(client.download_artifacts(run.info.run_id, one.path)).read_bytes().hex()
                for one in client.list_artifacts(run.info.run_id)
            },
        }
        for run in runs
    ]


def trackio_runs(project: str) -> list[dict[str, Any]]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    runs = trackio.Api().runs(project)
    return [
        {
            "name": run.name,
            "config": run.config,
            "logs": SQLiteStorage.get_logs(project, run.name, run_id=run.id),
            "files": _trackio_files(project, run),
        }
        for run in runs
    ]


def _trackio_files(project: str, run: Any) -> dict[str, str]:
    import trackio

    reader = trackio.init(project, name="reader", embed=False, auto_log_cpu=False, auto_log_gpu=False)
    try:
        folder = Path(reader.use_artifact(f"mill-{run.config['mill.run']}:latest").download())
        return {file.name: file.read_bytes().hex() for file in folder.rglob("*") if file.is_file()}
    finally:
        trackio.finish()


def wandb_runs(folder: str) -> list[dict[str, Any]]:
    """Every offline run below a folder, from the records that `wandb sync` uploads."""
    return [_wandb_run(file) for file in sorted(Path(folder).rglob("*.wandb"))]


def _wandb_run(file: Path) -> dict[str, Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    run: dict[str, Any] = {"config": {}, "history": [], "summary": {}, "artifacts": [], "kinds": []}
    for data in _records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        run["kinds"].append(kind)
        if kind == "run":
            run |= {"id": record.run.run_id, "name": record.run.display_name, "project": record.run.project}
            run["config"] |= _items(record.run.config.update)
        elif kind == "config":
            run["config"] |= _items(record.config.update)
        elif kind == "history":
            run["history"].append(_items(record.history.item))
        elif kind == "summary":
            run["summary"] |= _items(record.summary.update)
        elif kind == "artifact":
            run["artifacts"].append(
                {
                    "name": record.artifact.name,
                    "files": {
                        one.path: Path(one.local_path).read_bytes().hex() for one in record.artifact.manifest.contents
                    },
                }
            )
    return run


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB with a checksum, length and kind before each fragment."""
    block, position, parts = 32768, 7, b""  # after a header of 7 bytes
    while position + 7 <= len(data):
        if block - position % block < 7:
            position += block - position % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last fragment
            yield parts
            parts = b""


def plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)  # trackio prints to standard output
    readers: dict[str, Any] = {"mlflow": mlflow_runs, "trackio": trackio_runs, "wandb": wandb_runs}
    os.write(out, json.dumps(plain(readers[sys.argv[1]](*sys.argv[2:]))).encode())
