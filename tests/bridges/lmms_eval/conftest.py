"""lmms-eval is imported here first: it makes Pillow read images that end too early, which other tests must not see."""

from __future__ import annotations

import contextlib

from PIL import ImageFile

before = ImageFile.LOAD_TRUNCATED_IMAGES
with contextlib.suppress(ImportError):
    import lmms_eval.evaluator  # noqa: F401
ImageFile.LOAD_TRUNCATED_IMAGES = before
