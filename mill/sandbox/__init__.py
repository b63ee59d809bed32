"""Programs that a model wrote, run apart from this machine: tasks and bridges import it, and it imports `api` alone."""

from mill.sandbox.programs import (
    UNISOLATED,
    Execution,
    chosen_sandbox,
    has_module,
    refuse_unsafe_code,
    require_imports,
    run_programs,
    run_python,
    sandbox_label,
    sandbox_warnings,
)

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
