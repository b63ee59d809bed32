"""Another build of torchvision, since none exists for vLLM's CPU torch: its transforms need no compiled operators."""

from pathlib import Path

import torch

library = torch.library.Library("torchvision", "DEF")  # operators end with it
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
__path__ = [str(Path(__file__).parents[4] / ".engines/vllm/torchvision/torchvision")]
exec((Path(__path__[0]) / "__init__.py").read_text())
