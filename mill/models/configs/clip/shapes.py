"""The demo's image-text model: it knows coloured shapes, and comes with mill (scripts/train_demo_clip.py made it)."""

from pathlib import Path

model = {
    "type": "clip",
    "path": str(Path(__file__).with_name("shapes")),
    "prompt_template": "a picture of a {c}.",
}
