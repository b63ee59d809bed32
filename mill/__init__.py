"""mill evaluates models and the engines that serve them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mill.frames import compare, evaluate
    from mill.view.load import load

__version__ = "0.3.0.dev0"
__all__ = ["__version__", "compare", "evaluate", "load"]


def __getattr__(name: str) -> Any:
    """`evaluate`, `compare` and `load` import much: they are imported at first use."""
    if name == "load":
        import mill.view.load

        return mill.view.load.load
    if name in ("compare", "evaluate"):
        import mill.frames

        return getattr(mill.frames, name)
    raise AttributeError(f"module 'mill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
