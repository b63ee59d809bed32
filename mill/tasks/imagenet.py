"""ImageNet-1k: a thousand classes. Class names are those in common use for zero-shot classification."""

from __future__ import annotations

import importlib.util
from functools import cached_property
from pathlib import Path

from mill.api.message import Labels
from mill.tasks.data import Dataset
from mill.tasks.images import ClassifiedSet, ZeroShotTask, add_renderings

_LINES = [line.split("\t") for line in Path(__file__).with_name("imagenet_classes.tsv").read_text("utf-8").splitlines()]
WNIDS = tuple(wnid for wnid, _ in _LINES)
CLASSES = tuple(name for _, name in _LINES)

IMAGENET = ClassifiedSet(
    dataset=Dataset("ILSVRC/imagenet-1k", mirrors=("imagenet-1k",)),
    splits=("validation",),
    classes=CLASSES,
    folders=WNIDS,
    question="What does this picture show?",
)


class ZeroShotImageNet(ZeroShotTask):
    """With open_clip's eighty templates, as in published results."""

    @cached_property
    def labels(self) -> Labels:
        return Labels(self.data.names, self.data.classes, _templates())


def _templates() -> tuple[str, ...]:
    """Empty without open_clip: no installed model needs them then, and other backends use their own template."""
    if importlib.util.find_spec("open_clip") is None:
        return ()
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES

    return tuple(make("{c}") for make in OPENAI_IMAGENET_TEMPLATES)


add_renderings("imagenet", IMAGENET, ZeroShotImageNet)
