"""Backends and tasks for tests of several processes, in addition to those of toy.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mill.api.registry import register_model, register_task
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample
from mill.models.hf.model import TransformersModel
from mill.support.processes import rank
from tests.toy import ToyChoice, ToyGeneration, ToyModel


def add_line(file: str, text: str) -> int:
    """Append a line to a file that several processes share; returns its number of lines."""
    with Path(file).open("a") as handle:
        handle.write(text + "\n")
    return len(Path(file).read_text().splitlines())


@register_model("stepping")
class SteppingModel(ToyModel):
    """Computes every batch together with all ranks; each batch is a line in the file <steps>-<rank>."""

    lock_step = True

    def __init__(self, path: str, steps: str, batch_size: int = 4) -> None:
        super().__init__(path, batch_size)
        self.steps = steps

    def _step(self, kind: str) -> None:
        add_line(f"{self.steps}-{rank()}", kind)

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        self._step("generate")
        return super()._generate_batch(batch, gen_kwargs)

    def _loglikelihood_batch(self, batch: list[Request]) -> list[tuple[float, bool]]:
        self._step("choose")
        return super()._loglikelihood_batch(batch)

    def _loglikelihood_rolling_single(self, request: Request) -> float:
        self._step("read")
        return super()._loglikelihood_rolling_single(request)


@register_model("stumbling")
class StumblingModel(TransformersModel):
    """On rank 1 the second pass through its second layer fails, as when memory runs out in the middle of a pass."""

    passes = 0

    @property
    def model(self) -> Any:
        fresh, model = self._model is None, super().model
        if fresh and rank() == 1:
            model.model.layers[1].register_forward_pre_hook(self._stumble)
        return model

    def _stumble(self, *_: Any) -> None:
        self.passes += 1
        if self.passes == 2:
            raise RuntimeError("out of memory")


@register_model("recurrent")
class RecurrentModel(TransformersModel):
    """A transformer whose first layer adds the mean of all tokens so far: state that a packed row carries between
    segments."""

    @property
    def model(self) -> Any:
        fresh, model = self._model is None, super().model
        if fresh:
            model.model.layers[0].register_forward_hook(self._carry)
        return model

    @staticmethod
    def _carry(module: Any, inputs: Any, hidden: Any) -> Any:
        import torch

        counts = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[None, :, None]
        return hidden + hidden.cumsum(dim=1) / counts


@register_task("toy_uneven")
class ToyUneven(ToyGeneration):
    """Answers of very different lengths."""

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        options = generation_options(max_gen_toks=3 + 9 * (int(sample.id) % 4))
        return [Request(GENERATE, sample.doc["question"], options=options)]


@register_task("toy_overlong")
class ToyOverlong(ToyChoice):
    """The first two samples are equal; the choices of the last do not fit the window, so nothing is computed for them."""

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        length = 900 if sample.id == "2" else 1
        return [Request(LOGLIKELIHOOD, "which?", f" {choice}" + " zq" * length) for choice in range(3)]
