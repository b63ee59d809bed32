"""CIFAR-10: ten classes of small images."""

from mill.tasks.data import Dataset
from mill.tasks.images import ClassifiedSet, add_renderings

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR10 = ClassifiedSet(
    dataset=Dataset("uoft-cs/cifar10", mirrors=("cifar10",)),
    splits=("test",),
    classes=CLASSES,
    question="What does this small picture show?",
    templates=("a photo of a {c}.", "a blurry photo of a {c}.", "a low resolution photo of the {c}.", "a small {c}."),
)
add_renderings("cifar10", CIFAR10)
