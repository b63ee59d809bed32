"""The demo's image-text model, for images of coloured shapes. Its weights come with mill (scripts/train_demo_clip.py)."""

from pathlib import Path

needs = "weights are included"
model = {
    "type": "clip",
    "path": str(Path(__file__).with_name("shapes")),
    "prompt_template": "a picture of a {c}.",
}
