"""Plans of runs, as tests make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mill.api.task import RenderSettings
from mill.models.spec.parse import Spec
from mill.plan.sampling import SampleChoice
from mill.runs.evaluate import Plan, RunConfig
from mill.runs.plan import plan
from mill.tasks.load import Selection


def prepare(
    spec: Spec | str,
    selection: Selection,
    settings: RenderSettings,
    *,
    output_dir: Path,
    limit: int | float | None = None,
    samples: SampleChoice | None = None,
    **config: Any,
) -> Plan:
    choice = samples or SampleChoice(limit=limit)
    return plan(spec, selection, RunConfig(output_dir=output_dir, settings=settings, samples=choice, **config))
