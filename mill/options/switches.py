"""Options that hold for the whole process, wherever they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mill.api.unsafe_code import confirm_unsafe_code
from mill.models.spec.remote_code import forbid_remote_code
from mill.sandbox.choice import choose_sandbox
from mill.sandbox.container import DEFAULT_IMAGE

_SWITCHES = {"no_remote_code": forbid_remote_code, "confirm_run_unsafe_code": confirm_unsafe_code}


def apply_switches(given: Mapping[str, Any]) -> None:
    for name, switch in _SWITCHES.items():
        if given.get(name):
            switch()
    choose_sandbox(given.get("sandbox") or "bubblewrap", given.get("sandbox_image") or DEFAULT_IMAGE)
