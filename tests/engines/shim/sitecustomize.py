"""Allows torchvision to be imported with a torch it was not compiled for: its transforms need no compiled operators."""

import torch

library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
