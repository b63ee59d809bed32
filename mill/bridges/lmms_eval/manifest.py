"""What lmms-eval's entry points `lmms_eval.models` load: the model `mill`."""

from __future__ import annotations

from typing import Any


def manifest() -> Any:
    from lmms_eval.models.registry_v2 import ModelManifest

    module = "mill.bridges.lmms_eval.model"
    return ModelManifest("mill", simple_class_path=f"{module}.MillSimpleLmms", chat_class_path=f"{module}.MillLmms")
