"""Programs that a model wrote, run apart from this machine: tasks and bridges import it, and it imports `api` alone."""

from mill.sandbox.choice import (
    UNISOLATED,
    chosen_sandbox,
    refuse_unsafe_code,
    sandbox_label,
    sandbox_warnings,
)
from mill.sandbox.pool import has_module, require_imports, run_programs, run_python
from mill.sandbox.process import Execution

__all__ = [
    "UNISOLATED",
    "Execution",
    "chosen_sandbox",
    "has_module",
    "refuse_unsafe_code",
    "require_imports",
    "run_programs",
    "run_python",
    "sandbox_label",
    "sandbox_warnings",
]
