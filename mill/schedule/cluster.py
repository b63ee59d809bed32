"""The cluster file: a few lines of YAML that say what a job may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError, UnknownName

SIGNAL_S = 90  # before its time is over a job is told, and goes on as a new one


@dataclass(frozen=True)
class Cluster:
    """What one job gets, and how many there may be. Whatever is left out is the cluster's own choice."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    minutes: int = 240
    gpus: int = 0
    cpus: int = 1
    memory_gb: float | None = None
    ranks: int = 1
    """Processes of a job that share a cell's samples, each with its part of the job's gpus."""
    at_once: int = 16
    """Jobs of an array that may be under way together."""
    array_size: int = 1000
    """The most cells in one array (SLURM's MaxArraySize)."""
    setup: tuple[str, ...] = ()
    """Shell lines before the work, such as `module load cuda`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further options of sbatch by their long names."""

    def parameters(self, name: str) -> dict[str, Any]:
        """In submitit's words."""
        asked = {
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
            **{key: value for key, value in asked.items() if value is not None},
        }


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("partition", "account", "qos"), (str,)),
    **dict.fromkeys(("minutes", "gpus", "cpus", "ranks", "at_once", "array_size"), (int,)),
    "memory_gb": (int, float),
    "setup": (list,),
    "extra": (dict,),
}
_LEAST: dict[str, float] = {"minutes": 1, "gpus": 0, "cpus": 1, "ranks": 1, "at_once": 1, "array_size": 1, "memory_gb": 0}


def read_cluster(path: str | None, *, local: bool = False) -> Cluster:
    """The file's values, checked; all defaults where no file is given, and then one cell at a time on this machine."""
    if path is None:
        return Cluster(at_once=1) if local else Cluster()
    import yaml

    try:
        found: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the cluster file {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"the cluster file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise SpecError(f"the cluster file {path} is not a mapping")
    known = [one.name for one in fields(Cluster)]
    for name, value in found.items():
        if name not in known:
            raise UnknownName(f"entry in {path}", str(name), known, hint=f"entries are {', '.join(known)}")
        if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
            raise SpecError(f"{name} in {path} must be {' or '.join(one.__name__ for one in _TYPES[name])}, not {value!r}")
        least = _LEAST.get(name)
        if least is not None and isinstance(value, (int, float)) and not least <= value < math.inf:
            raise SpecError(f"{name} in {path} is {value}: a number of at least {least:g} is needed")
    return Cluster(**{**found, "setup": tuple(map(str, found.get("setup", ())))})
