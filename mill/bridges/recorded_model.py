"""A model of mill that answers the requests of another package.

Every answer is recorded in a run folder of mill, so that the same command continues where an earlier one ended.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.errors import ModelError, RunError, SpecError, UnknownName
from mill.api.model import MillModel
from mill.api.request import Request
from mill.api.response import Response
from mill.models.spec.open import open_model, resolve_spec, takes_argument
from mill.models.spec.parse import Spec, make_spec
from mill.options.definitions import DEFAULT_OUTPUT_DIR
from mill.runs.evaluate import Plan, RunConfig
from mill.runs.plan import plan_record
from mill.support.processes import world_size
from mill.support.terminal import warn
from mill.tasks.load import load_files

_UNSET = (None, 1, "1")  # batch sizes that leave the choice to mill: 1 is the default of the other packages
_DEFAULT_DEVICE = "cuda:0"  # of the other packages, on machines without one too


class RequestsFailed(RunError):
    """Some answers are missing, as in a run of mill that ends with exit code 1."""

    exit_code = 1


class RecordedModel:
    """A model spec of mill. `output_dir` is where answers are recorded, `wait` how long a server may take to start,
    `task_paths` a Python file that registers a backend."""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> RecordedModel:
        return cls(**cls.checked(given))

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a user gives as --model_args, with known names and a spec that can be read."""
        names = list(inspect.signature(cls).parameters)
        arguments = {name.strip(): value for name, value in rejoined(given).items()}
        for name in arguments:
            if name not in names:
                raise UnknownName("model argument", name, names, hint=f"it takes {', '.join(names)}")
        if not arguments.get("spec"):
            raise SpecError('no model is given: --model_args "spec=hf[path=org/name]"')
        if not arguments.get("task_paths"):  # a file may register the backend
            make_spec(str(arguments["spec"]))
        return arguments

    def __init__(
        self,
        spec: str,
        *,
        output_dir: str = DEFAULT_OUTPUT_DIR,
        wait: float = 0.0,
        task_paths: str = "",
        batch_size: int | str | None = None,
        device: str | None = None,
    ) -> None:
        if world_size() > 1:
            raise SpecError("mill distributes the work itself: start one process, without torchrun or accelerate")
        if task_paths:
            load_files((str(task_paths),))
        self.spec = _on_device(resolve_spec(make_spec(str(spec))), device)
        automatic = batch_size in _UNSET or str(batch_size).startswith("auto")
        try:
            fixed, seconds = None if automatic else int(str(batch_size)), float(wait)
        except ValueError:
            raise SpecError(f"batch_size={batch_size}, wait={wait}: numbers are needed") from None
        self.model: MillModel = open_model(self.spec, batch_size=fixed)
        self.model.ready(seconds)
        self.output_dir = Path(output_dir)

    @cached_property
    def plan(self) -> Plan:
        """That of the run whose folder records the answers."""
        return plan_record(self.spec, self.model, RunConfig(output_dir=self.output_dir))

    def answers(self, requests: Sequence[Request]) -> list[Response]:
        """The other package has no failed answers: once everything else is recorded, failures end its run. Equal requests
        that are sampled are draws of one."""
        if not requests:
            return []
        if not self.model.capabilities.serves(requests[0].kind):
            raise ModelError(f"{self.model.model_name} does not answer {requests[0].kind} requests")
        self.model.check(requests[0])
        numbered = _numbered(requests)
        with self.plan.open(keep_model=True) as run:
            answers = run.ask(numbered)
        responses = [answers[request.key][0] for request in numbered]
        failed = [response for response in responses if response.failed]
        if failed:
            raise RequestsFailed(
                f"{len(failed)} of {len(responses)} requests failed, the first with: {failed[0].error}; the other answers "
                f"are recorded in {self.plan.folder.path}, and the same command continues from them"
            )
        return responses


def rejoined(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments whose spec was split at its commas: `hf[path=a,dtype=b]` arrives as `hf[path=a` and `dtype=b]`."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        spec = found.get("spec")
        if isinstance(spec, str) and spec.count("[") > spec.count("]"):
            found["spec"] = f"{spec},{name}={str(value).lower() if isinstance(value, bool) else value}"
        else:
            found[name] = value
    return found


def _on_device(spec: Spec, device: str | None) -> Spec:
    if device in (None, _DEFAULT_DEVICE) or "device" in spec.arguments:
        return spec
    if not takes_argument(spec.backend, "device"):
        warn(f"--device {device} has no effect: the backend {spec.backend} chooses the device itself")
        return spec
    return Spec(spec.backend, {**spec.arguments, "device": device})


def _numbered(requests: Sequence[Request]) -> list[Request]:
    seen: Counter[str] = Counter()
    numbered = []
    for request in requests:
        draw = 0 if request.deterministic else seen[request.content_hash]
        seen[request.content_hash] += 1
        numbered.append(Request(request.kind, request.context, request.continuation, request.options, draw=draw))
    return numbered
