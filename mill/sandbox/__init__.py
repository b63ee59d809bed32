"""Programs that a model wrote, run apart from this machine's files and network where bubblewrap is installed."""

from mill.sandbox.run import Execution, has_module, run_python, sandbox_name

__all__ = ["Execution", "has_module", "run_python", "sandbox_name"]
