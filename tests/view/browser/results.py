"""A result folder that real commands made: tiny models with random weights, compared, measured under load and repeated."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run
from tests.conftest import make_tiny_model
from tests.vlm import make_llava

TESTS = Path(__file__).parents[2]
CHOICES, TEXTS, IMAGES = "quiz.jsonl", "stories.jsonl", "images.jsonl"
TEXT = "the quick brown fox jumps over the lazy dog what is the answer it is yes no"
CATEGORIES = ("animals", "numbers", "colours & light")
LONG = "quiz-long"
NOISE, WEIGHTS = 0.03, "model.safetensors"
N_CHOICES, N_TEXTS = 45, 12
COMPARE_LOGPROBS = 10  # that `mill compare` requests


@dataclass(frozen=True)
class RunFiles:
    """A run, read from its files."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "manifest.json").read_text()))

    @cached_property
    def results(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "results.json").read_text()))

    @property
    def name(self) -> str:
        """The last part of the model's path, and "compared" for the run that `mill compare` made of it."""
        compared = self.manifest["settings"].get("gen_kwargs", {}).get("logprobs") == COMPARE_LOGPROBS
        return Path(self.manifest["model"]["name"]).name + (" compared" if compared else "")

    def task(self, name: str) -> str:
        """The whole name of a task, which for a data file has its folder."""
        return next(task for task in self.manifest["tasks"] if task.endswith(name))

    def samples(self, task: str) -> list[dict[str, Any]]:
        files = sorted((self.path / "samples").glob("*.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [line for line in lines if line["task"].endswith(task)]


@dataclass(frozen=True)
class ResultFiles:
    """The folder, its runs by the name of their model, and its checks by their command."""

    root: Path
    runs: dict[str, RunFiles]
    checks: dict[str, Path]

    def check(self, command: str) -> dict[str, Any]:
        return dict(json.loads(self.checks[command].read_text()))


def make_results(folder: Path) -> ResultFiles:
    root, models = folder / "results", {name: folder / "models" / name for name in ("base", "other", "sight")}
    make_tiny_model(models["base"], bos=True)
    make_noisy(make_tiny_model(models["other"], bos=True))
    make_llava(models["sight"])
    write_data(folder)
    specs = {name: f"hf[path={path},dtype=float32]" for name, path in models.items()}
    choices, texts, images = (str(folder / name) for name in (CHOICES, TEXTS, IMAGES))
    out = ["--output_dir", str(root), "--quiet"]
    generated = ["--gen_kwargs", "logprobs=5,max_gen_toks=12"]
    for name in ("base", "other"):
        expect(["eval", specs[name], f"{choices},{texts}", *generated, *out])
    expect(["eval", specs["sight"], images, "--gen_kwargs", "max_gen_toks=4", *out])
    compared = ["--tasks", texts, "--max_tokens", "12", "--forced_tokens", "8", "--no_chat"]
    expect(["compare", specs["base"], specs["other"], *compared, *out])
    loaded = ["--tasks", texts, "--limit", "3", "--max_tokens", "4", "--no_chat"]
    expect(["stress", "--model", specs["base"], "--concurrency", "1,2", "--repetitions", "1", *loaded, *out])
    expect(["determinism", "--model", specs["base"], "--runs", "2", *loaded, *out])
    toy = ["--task_paths", f"{TESTS / 'toy.py'},{TESTS / 'toy_agent.py'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_N", "12")
        patch.setenv("TOY_FAILS", "toy_gen 7")
        expect(["eval", "toy[path=failing]", "toy_gen,toy_dialog", *toy, *out], code=1)
        patch.setenv("TOY_N", "4")
        expect(["eval", "toy-agent[path=agent]", "toy_agent", *toy, *out])
    return read_results(root)


def expect(arguments: list[str], *, code: int = 0) -> None:
    assert run(arguments) == code, arguments


def read_results(root: Path) -> ResultFiles:
    found = [RunFiles(manifest.parent) for manifest in sorted(root.rglob("manifest.json"))]
    runs = {one.name: one for one in found if not one.manifest.get("condition")}
    checks = {json.loads(file.read_text())["command"]: file for file in root.rglob("check.json")}
    return ResultFiles(root, runs, checks)


def make_noisy(folder: Path) -> None:
    """Noise on the weights, such as that of quantization: many answers stay the same, and texts diverge after a while."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(4)
    weights = {name: value + NOISE * torch.randn_like(value) for name, value in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def write_data(folder: Path) -> None:
    draw = random.Random(7)

    def words(count: int) -> str:
        return " ".join(draw.choices(TEXT.split(), k=count))

    quiz = [
        {
            "id": f"quiz-{number}",
            "question": f"{words(8)} number {number} ?",
            "choices": ["yes", "no", "the fox", "42"],
            "answer": "ABCD"[draw.randrange(4)],
            "category": CATEGORIES[number % 3],
        }
        for number in range(N_CHOICES - 1)
    ]
    quiz.append({**quiz[0], "id": LONG, "question": f"{words(360)} long ?"})
    stories = [
        {"id": f"story-{number}", "prompt": f"{words(6)} story {number}", "answer": words(3)} for number in range(N_TEXTS)
    ]
    pictures = [
        {
            "id": f"image-{number}",
            "prompt": "what is in this picture ?",
            "answer": "a dog",
            "image": draw_image(folder, number),
        }
        for number in range(3)
    ]
    for name, rows in ((CHOICES, quiz), (TEXTS, stories), (IMAGES, pictures)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def draw_image(folder: Path, number: int) -> str:
    from PIL import Image

    Image.new("RGB", (40, 30), (80 * number, 255 - 80 * number, 40)).save(folder / f"image-{number}.png")
    return f"image-{number}.png"
