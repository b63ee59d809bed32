"""The cluster file: the limits of a job and of arrays, in YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mill.api.errors import SpecError, UnknownName
from mill.api.yaml_file import read_yaml

SIGNAL_S = 90  # a job gets a signal this long before its time is over, and is queued again


@dataclass(frozen=True)
class Cluster:
    """What one job gets, and how many may run. The cluster's defaults apply to what is left out."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    minutes: int = 240
    gpus: int = 0
    cpus: int = 1
    memory_gb: float | None = None
    ranks: int = 1
    """Processes of a job that share a cell's samples and the job's gpus."""
    at_once: int = 16
    """Jobs of an array that may run at the same time."""
    array_size: int = 1000
    """Most cells in one array (SLURM's MaxArraySize)."""
    setup: tuple[str, ...] = ()
    """Shell lines to run first, such as `module load cuda`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other options of sbatch, by their long names."""

    def parameters(self, name: str) -> dict[str, Any]:
        """The same as parameters of submitit."""
        optional = {
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_qos": self.qos,
            "mem_gb": self.memory_gb,
            "gpus_per_node": self.gpus or None,
            "slurm_setup": list(self.setup) or None,
            "slurm_additional_parameters": dict(self.extra) or None,
        }
        return {
            "name": name,
            "timeout_min": self.minutes,
            "cpus_per_task": self.cpus,
            "tasks_per_node": self.ranks,
            "slurm_array_parallelism": self.at_once,
            "slurm_signal_delay_s": min(SIGNAL_S, self.minutes * 15),
            **{key: value for key, value in optional.items() if value is not None},
        }


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("partition", "account", "qos"), (str,)),
    **dict.fromkeys(("minutes", "gpus", "cpus", "ranks", "at_once", "array_size"), (int,)),
    "memory_gb": (int, float),
    "setup": (list,),
    "extra": (dict,),
}
_MINIMUM: dict[str, float] = {"minutes": 1, "gpus": 0, "cpus": 1, "ranks": 1, "at_once": 1, "array_size": 1, "memory_gb": 0}


def read_cluster(path: str | None, *, local: bool = False) -> Cluster:
    """The checked values of a file. Without a file: the defaults, and one cell at a time on this machine."""
    if path is None:
        return Cluster(at_once=1) if local else Cluster()
    content = read_yaml(path, "cluster file") or {}
    known = [entry.name for entry in fields(Cluster)]
    for name, value in content.items():
        if name not in known:
            raise UnknownName(f"entry in {path}", str(name), known, hint=f"entries are {', '.join(known)}")
        if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
            raise SpecError(f"{name} in {path} must be {' or '.join(kind.__name__ for kind in _TYPES[name])}, not {value!r}")
        minimum = _MINIMUM.get(name)
        if minimum is not None and isinstance(value, (int, float)) and not minimum <= value < math.inf:
            raise SpecError(f"{name} in {path} is {value}: give a number of at least {minimum:g}")
    return Cluster(**{**content, "setup": tuple(map(str, content.get("setup", ())))})
