"""The `timm` backend: image classifiers with a fixed head, argmax over its classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.batching import free_memory
from mill.api.engine import local_engine
from mill.api.errors import CannotServe, ModelError, UnknownName
from mill.api.message import IMAGE
from mill.api.model import ModelCapabilities
from mill.api.request import CLASSIFY, Request
from mill.api.response import Response
from mill.models.device import one_device
from mill.models.media.vision_model import VisionModel, ranked
from mill.models.spec.fingerprint import file_digest
from mill.support.terminal import describe


class TimmModel(VisionModel):
    """Any model name of timm, with its published weights, with those of a checkpoint file, or random.

    A task's labels are in the order of the head's classes, so a task of another size is refused.
    """

    def __init__(
        self,
        path: str,
        pretrained: bool = True,
        batch_size: int = 64,
        num_classes: int | None = None,
        checkpoint: str | None = None,
        dtype: str = "float32",
        device: str = "auto",
    ) -> None:
        self.path, self.batch_size, self.num_classes = path, batch_size, num_classes
        self.pretrained, self.checkpoint, self.dtype, self.device = pretrained and not checkpoint, checkpoint, dtype, device
        self._check_options("timm", dtype)
        _check_name(path)
        if checkpoint and not Path(checkpoint).expanduser().is_file():
            raise ModelError(f"checkpoint {checkpoint} does not exist")
        self.capabilities = ModelCapabilities({IMAGE}, kinds=frozenset({CLASSIFY}))
        self._model: Any = None
        self.use_engine(local_engine("timm", "torch"))

    @property
    def model_name(self) -> str:
        return self.path

    def identity(self) -> dict[str, Any]:
        return {
            "backend": "timm",
            "path": self.path,
            "pretrained": self.pretrained,
            "num_classes": self.num_classes,
            "checkpoint": file_digest(Path(self.checkpoint).expanduser()) if self.checkpoint else None,
            "dtype": self.dtype,
        }

    def warnings(self) -> list[str]:
        random = not self.pretrained and not self.checkpoint
        return [f"the weights of {self.path} are random: pretrained=false and no checkpoint"] if random else []

    @cached_property
    def head_size(self) -> int:
        """How many classes the head has, from the model's published configuration: no weights are loaded."""
        import timm

        if self.num_classes:
            return self.num_classes
        published = timm.get_pretrained_cfg(self.path, allow_unregistered=True) if not _is_address(self.path) else None
        return int(published.num_classes if published else self.model.num_classes)

    def check(self, request: Request) -> list[str]:
        super().check(request)
        if len(request.labels) != self.head_size:
            raise CannotServe(
                f"the head of {self.path} has {self.head_size} classes, the task has {len(request.labels)} labels: "
                "they must be the same classes in the same order"
            )
        return []

    @property
    def model(self) -> Any:
        if self._model is None:
            self._model = self._load()
        return self._model

    def _load(self) -> Any:
        import timm
        import torch

        arguments: dict[str, Any] = {"pretrained": self.pretrained}
        if self.num_classes:
            arguments["num_classes"] = self.num_classes
        if self.checkpoint:
            arguments["checkpoint_path"] = str(Path(self.checkpoint).expanduser())
        torch.manual_seed(0)  # random weights are the same in every run
        try:
            model = timm.create_model(self.path, **arguments)
        except Exception as error:  # timm, the hub's client and torch raise many kinds
            raise ModelError(f"timm cannot load {self.path}: {describe(error)}") from error
        self._device = one_device(self.device)
        model = model.to(self._device, getattr(torch, self.dtype)).eval()
        return model.to(memory_format=torch.channels_last)  # faster for convolutions, the same for the rest

    def load(self) -> None:
        _ = self.transform

    def clean(self) -> None:
        if not self.made_with.holds_weights:
            self._model = None
        self.__dict__.pop("transform", None)
        free_memory()

    @cached_property
    def transform(self) -> Any:
        """The model's own preprocessing for evaluation."""
        from timm.data import create_transform, resolve_model_data_config

        return create_transform(**resolve_model_data_config(self.model), is_training=False)

    def _pixels(self, image: Any) -> Any:
        return self.transform(image)

    def _answer_batch(self, requests: Sequence[Request], pixels: Sequence[Any]) -> list[Response]:
        import torch

        if any(image is None for image in pixels):
            raise ValueError("a request to a classifier has no image")
        stacked = torch.stack(list(pixels)).to(self._device, getattr(torch, self.dtype))
        with torch.inference_mode():
            logits = self.model(stacked.to(memory_format=torch.channels_last))
        scores = logits.float().softmax(dim=1).cpu()
        for request in requests:
            if scores.shape[1] != len(request.labels):
                raise ModelError(f"{self.path} gave {scores.shape[1]} scores for {len(request.labels)} labels")
        return [ranked(request.labels.names, row)[0] for request, row in zip(requests, scores.split(1), strict=True)]


def _is_address(path: str) -> bool:
    """Whether the name is one of the hub or a folder (`hf_hub:org/name`, `local-dir:...`), where timm reads the config."""
    return ":" in path


def _check_name(path: str) -> None:
    import timm

    if _is_address(path):
        return
    name, dot, tag = path.partition(".")
    if not timm.is_model(name):
        raise UnknownName("timm model", path, timm.list_models(), hint="timm.list_models() has them all")
    tags = timm.list_pretrained(f"{name}.*")
    if dot and path not in tags:
        hint = f"it has {', '.join(tags) or 'none'}"
        raise UnknownName(f"pretrained tag of {name}", tag, [tag.partition(".")[2] for tag in tags], hint)
