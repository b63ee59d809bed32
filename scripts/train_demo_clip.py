"""Train the demo's image-text model on coloured shapes that are drawn here: minutes on a CPU, nothing to download.

python scripts/train_demo_clip.py [STEPS]     (writes mill/models/configs/clip/shapes/)

One image of each colour and shape is paired with its caption in every step, except the pairs in `UNSEEN`: those the model
meets for the first time in `mill eval mill/models/configs/clip/shapes.py shapes_unseen`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import open_clip
import torch
from safetensors.torch import save_file

from mill.tasks.shapes import PAIRS, SIDE, UNSEEN, class_name, draw

FOLDER = Path(__file__).parents[1] / "mill/models/configs/clip/shapes"
CAPTIONS = ("a picture of a {c}.", "a {c}.", "one {c} on a dark ground", "this is a {c}", "{c}", "a drawing of a {c}")
MODEL: dict[str, Any] = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": SIDE, "layers": 4, "width": 64, "head_width": 16, "patch_size": 4},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 2},
}
PREPROCESS = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bilinear", "resize_mode": "squash"}


def write_config() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    config = {"model_cfg": MODEL, "preprocess_cfg": PREPROCESS}
    (FOLDER / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_weights(model: torch.nn.Module) -> None:
    """In half precision, which halves the file and changes no answer that is not a tie."""
    halves = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    save_file({name: value.contiguous() for name, value in halves.items()}, FOLDER / "open_clip_model.safetensors")


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 700
    torch.manual_seed(0)
    chance = random.Random("train")
    write_config()
    model = open_clip.CLIP(**MODEL)
    transform = open_clip.image_transform(SIDE, is_train=False, mean=PREPROCESS["mean"], std=PREPROCESS["std"])
    tokenizer = open_clip.get_tokenizer("ViT-B-32", context_length=MODEL["text_cfg"]["context_length"])
    seen = [pair for pair in PAIRS if pair not in UNSEEN]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    started = time.time()
    for step in range(1, steps + 1):
        images = torch.stack([transform(draw(colour, shape, chance)) for colour, shape in seen])
        captions = [chance.choice(CAPTIONS).replace("{c}", class_name(*pair)) for pair in seen]
        image, text, scale = model(images, tokenizer(captions))
        logits = scale * image @ text.T
        wanted = torch.arange(len(seen))
        loss = (torch.nn.functional.cross_entropy(logits, wanted) + torch.nn.functional.cross_entropy(logits.T, wanted)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.time() - started:.0f} s", flush=True)
    write_weights(model)
    print(f"weights: {FOLDER}")


if __name__ == "__main__":
    main()
