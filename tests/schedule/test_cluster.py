"""The cluster file: what it may contain, what is refused, and the parameters of submitit that it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import MillError
from mill.schedule import Cluster, read_cluster

WHOLE: dict[str, Any] = {
    "partition": "gpu",
    "account": "us",
    "qos": "high",
    "minutes": 30,
    "gpus": 2,
    "cpus": 4,
    "memory_gb": 1.5,
    "ranks": 2,
    "at_once": 3,
    "array_size": 50,
    "setup": ["module load cuda", "ulimit -c 0"],
    "extra": {"nice": 100},
}


def written(folder: Path, text: str | object) -> str:
    file = folder / "cluster.yaml"
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    return str(file)


def test_a_file_with_everything_in_it(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, WHOLE))
    assert {name: getattr(cluster, name) for name in WHOLE} == {**WHOLE, "setup": tuple(WHOLE["setup"])}
    assert cluster.parameters("mill") == {
        "name": "mill",
        "timeout_min": 30,
        "cpus_per_task": 4,
        "tasks_per_node": 2,
        "mem_gb": 1.5,
        "gpus_per_node": 2,
        "slurm_partition": "gpu",
        "slurm_account": "us",
        "slurm_qos": "high",
        "slurm_array_parallelism": 3,
        "slurm_signal_delay_s": 90,
        "slurm_setup": ["module load cuda", "ulimit -c 0"],
        "slurm_additional_parameters": {"nice": 100},
    }


def test_a_short_job_gets_its_signal_early_but_not_at_once() -> None:
    assert Cluster(minutes=1).parameters("mill")["slurm_signal_delay_s"] == 15
    assert Cluster(minutes=240).parameters("mill")["slurm_signal_delay_s"] == 90


@pytest.mark.parametrize("name", WHOLE)
def test_an_entry_of_the_wrong_type_is_refused_by_name(tmp_path: Path, name: str) -> None:
    text = {"text", "null"}
    right = {"partition": text, "account": text, "qos": text, "memory_gb": {"1.5", "null"}}
    for value in ("true", "null", "[[]]", "{1: 2}", "text", "1.5", "-1", "2024-01-01", ".inf"):
        file = written(tmp_path, f"{name}: {value}\n")
        if value in right.get(name, ()):
            read_cluster(file)
            continue
        with pytest.raises(MillError, match=rf"^{file} is not valid: .*{name}") as refused:
            read_cluster(file)
        assert "\n" not in str(refused.value)


def test_an_unknown_entry_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(MillError, match=r"unknown entry in .*'minuts'; did you mean minutes"):
        read_cluster(written(tmp_path, {"minuts": 3}))
    with pytest.raises(MillError, match="entries are partition, account"):
        read_cluster(written(tmp_path, "7: 3\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("minutes: [1", "is not YAML"),
        ("!!python/object/apply:os.system ['touch marker']", "is not YAML"),
        ("- minutes", "is not a mapping"),
        ("minutes", "is not a mapping"),
        ("[]", "is not a mapping"),
        ("minutes: 5\nminutes: 50\n", "'minutes' is given twice"),
        ("extra: {nice: 1, nice: 2}", "'nice' is given twice"),
        ("setup: &a [*a]", "has an alias"),
        ("extra: " + "[" * 1200 + "]" * 1200, "nested too deep"),
    ],
)
def test_what_is_no_mapping_in_yaml_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MillError, match=message) as refused:
        read_cluster(written(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "marker").exists()
