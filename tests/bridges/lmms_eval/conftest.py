"""lmms-eval, imported by the first test that needs it: that takes ten seconds."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def lmms_eval() -> Any:
    """The library. It makes Pillow read images that end too early, which other tests must not see."""
    from PIL import ImageFile

    before = ImageFile.LOAD_TRUNCATED_IMAGES
    evaluator = pytest.importorskip("lmms_eval.evaluator", reason="lmms-eval is not installed")
    ImageFile.LOAD_TRUNCATED_IMAGES = before
    return evaluator


@pytest.fixture(scope="session")
def task_manager(lmms_eval: Any) -> Any:
    """All tasks of lmms-eval, which takes six seconds."""
    return lmms_eval.TaskManager()
