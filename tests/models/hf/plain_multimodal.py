"""Requests with media, and plain transformers to compare their answers with, on tiny random models."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoProcessor

from mill.api.message import AUDIO, IMAGE, VIDEO, Media, Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.api.response import Response
from mill.models.hf.model import TransformersModel
from mill.models.media.inputs import DEFAULT_VIDEO_FRAMES
from mill.models.spec.open import open_model
from tests.vlm import AUDIO_RATE, MAKERS, MORE_MAKERS

CONTINUATIONS = ["A", " yes", " a cat", " it is 42 , 7 or 1234"]
QUESTIONS = [
    "what is in this picture ?",
    "the quick brown fox jumps over the lazy dog . yes or no ? A B C D",
    "it is",
    "a cat , a dog or a ship ; what do you hear ?",
]
NEW_TOKENS = 8
Part = Any
"""A text, an image, the frames or the file of a video, Media of frames with their rate, or the samples of audio at the
model's rate."""


def make_image(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """Patches of random colours."""
    colours = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST)


def make_audio(seed: int, seconds: float = 0.5, rate: int = AUDIO_RATE) -> np.ndarray:
    """A chord of three random tones."""
    times = np.arange(int(seconds * rate)) / rate
    tones = np.random.default_rng(seed).uniform(100, 3000, 3)
    return (0.25 * np.sin(2 * np.pi * np.outer(tones, times)).sum(axis=0)).astype(np.float32)


def frames(seed: int, count: int, width: int = 24, height: int = 16) -> list[Image.Image]:
    return [make_image(1000 * seed + index, width, height) for index in range(count)]


def write_film(file: Path, shown: Sequence[Image.Image], rate: int) -> Path:
    """A video file of these frames, at `rate` a second."""
    import av

    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        (stream.width, stream.height), stream.pix_fmt = shown[0].size, "yuv420p"
        for image in shown:
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return file


IMAGES = [make_image(1, 40, 30), make_image(2, 24, 48), make_image(3, 80, 64), make_image(4, 32, 32)]
CLIPS = [make_audio(1, 0.5), make_audio(2, 0.9), make_audio(3, 0.25), make_audio(4, 0.7)]
VIDEOS = [frames(1, 4), frames(2, 7), frames(3, 1, 16, 32), frames(4, 6)]


def cases(name: str) -> list[tuple[Part, str]]:
    """Requests of one shape with media of different sizes and texts of different lengths."""
    return list(zip(CLIPS if name == "qwen2_audio" else IMAGES, QUESTIONS, strict=True))


def pairs(name: str) -> list[tuple[tuple[Part, str], str]]:
    """Those requests with every continuation."""
    return [(parts, continuation) for parts in cases(name) for continuation in CONTINUATIONS]


class Plain:
    """Plain transformers on one request at a time: no batch, no padding."""

    def __init__(self, folder: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        auto = AutoModelForMultimodalLM if "audio" in folder.name else AutoModelForImageTextToText
        self.model = auto.from_pretrained(folder, dtype=torch.float32).eval()

    def text(self, *parts: Part) -> str:
        return self.render([("user", parts)])

    def render(self, turns: Sequence[tuple[str, Sequence[Part]]]) -> str:
        shown = [{"role": role, "content": [self._shown(part) for part in parts]} for role, parts in turns]
        return str(self.processor.apply_chat_template(shown, tokenize=False, add_generation_prompt=True))

    def _shown(self, part: Part) -> dict[str, str]:
        return {"type": "text", "text": part} if isinstance(part, str) else {"type": kind_of(part)}

    def inputs(self, text: str, parts: Sequence[Part]) -> Any:
        given = {kind: [part for part in parts if not isinstance(part, str) and kind_of(part) == kind] for kind in KINDS}
        arguments: dict[str, Any] = {
            KINDS[kind]: [found] if kind == IMAGE else found for kind, found in given.items() if found
        }
        if AUDIO in arguments:
            arguments["sampling_rate"] = AUDIO_RATE
        if any(isinstance(part, Path) for part in parts):
            files = [str(part) for part in given[VIDEO]]
            arguments |= {"videos": files, "do_sample_frames": True, "num_frames": DEFAULT_VIDEO_FRAMES, "fps": None}
        if any(isinstance(part, Media) for part in parts):
            arguments["videos"] = [film.source for film in given[VIDEO]]
            arguments["video_metadata"] = [
                {"total_num_frames": len(film.source), "fps": film.rate, "frames_indices": [*range(len(film.source))]}
                for film in given[VIDEO]
            ]
        own_bos = text.startswith("<s>")
        return self.processor(text=[text], return_tensors="pt", add_special_tokens=not own_bos, **arguments)

    def ids(self, text: str, parts: Sequence[Part]) -> list[int]:
        return self.inputs(text, parts)["input_ids"][0].tolist()

    def score(self, parts: Sequence[Part], continuation: str, text: str | None = None) -> tuple[float, bool, int]:
        """(log-probability, is greedy, tokens) of a continuation, to which the white space that ends the prompt belongs."""
        text = self.text(*parts) if text is None else text
        whole = self.inputs(text + continuation, parts)
        ids, before = whole["input_ids"][0], self.ids(text.rstrip(), parts)
        assert ids[: len(before)].tolist() == before
        with torch.inference_mode():
            logprobs = self.model(**whole).logits[0, :-1].float().log_softmax(-1)[len(before) - 1 :]
        targets = ids[len(before) :]
        found = logprobs.gather(1, targets[:, None])[:, 0]
        return float(found.double().sum()), bool((logprobs.argmax(-1) == targets).all()), len(targets)

    def answer_ids(self, parts: Sequence[Part], text: str | None = None, count: int = NEW_TOKENS) -> list[int]:
        inputs = self.inputs(self.text(*parts) if text is None else text, parts)
        out = self.model.generate(**inputs, max_new_tokens=count, do_sample=False, pad_token_id=2)
        return out[0, inputs["input_ids"].shape[1] :].tolist()

    def answer(self, parts: Sequence[Part], text: str | None = None) -> str:
        return str(self.processor.tokenizer.decode(self.answer_ids(parts, text), skip_special_tokens=True))


KINDS = {IMAGE: "images", VIDEO: "videos", AUDIO: "audio"}


def kind_of(part: Part) -> str:
    if isinstance(part, Media):
        return part.kind
    return IMAGE if isinstance(part, Image.Image) else (VIDEO if isinstance(part, (list, Path)) else AUDIO)


class Zoo:
    """Models are made at first use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = cache(self._folder)
        self.plain = cache(lambda name: Plain(self.folder(name)))
        self.open = cache(lambda name, **arguments: opened(self.folder(name), **arguments))
        self.scores = cache(self._scores)

    def _folder(self, name: str) -> Path:
        (self.root / name).mkdir()
        return (MAKERS | MORE_MAKERS)[name](self.root / name)

    def _scores(self, name: str) -> list[tuple[float, bool, int]]:
        return [self.plain(name).score(*pair) for pair in pairs(name)]

    def copy(self, name: str, to: Path, *, without: str = "") -> Path:
        """A copy that a test may change."""
        folder = Path(shutil.copytree(self.folder(name), to))
        if without:
            (folder / without).unlink()
        return folder


@contextmanager
def small_networks() -> Iterator[None]:
    """On one thread and without oneDNN, whose preparations take most of the time of networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    torch.set_num_threads(threads)


def opened(folder: Path, **arguments: Any) -> TransformersModel:
    given = {"dtype": "float32", "device_map": "cpu", **arguments}
    model = open_model(f"hf[path={folder},{','.join(f'{name}={value}' for name, value in given.items())}]")
    assert isinstance(model, TransformersModel)
    return model


def message(*parts: Part, role: str = "user") -> Message:
    """A text alone is passed as it is."""
    content = tuple(part if isinstance(part, (str, Media)) else Media(kind_of(part), part) for part in parts)
    return Message(role, parts[0] if len(parts) == 1 and isinstance(parts[0], str) else content)


def scored(parts: Sequence[Part], continuation: str) -> Request:
    return Request(LOGLIKELIHOOD, (message(*parts),), continuation)


def asked(parts: Sequence[Part], **options: Any) -> Request:
    return Request(GENERATE, (message(*parts),), options=generation_options(**{"max_gen_toks": NEW_TOKENS, **options}))


def assert_scores(answers: Sequence[Response], expected: Sequence[tuple[float, bool, int]]) -> None:
    assert [answer.error for answer in answers] == [None] * len(answers)
    for answer, (score, greedy, tokens) in zip(answers, expected, strict=True):
        assert answer.score == pytest.approx(score, abs=1e-4)
        assert answer.is_greedy is greedy
        assert answer.output_tokens == tokens


def assert_same_scores(model: TransformersModel, plain: Plain, contexts: Sequence[Sequence[Part]]) -> None:
    answers = model.loglikelihood([scored(parts, " a cat") for parts in contexts])
    assert_scores(answers, [plain.score(parts, " a cat") for parts in contexts])


def assert_same_texts(model: TransformersModel, plain: Plain, contexts: Sequence[Sequence[Part]]) -> None:
    texts = [answer.text for answer in model.generate_until([asked(parts) for parts in contexts])]
    assert texts == [plain.answer(parts) for parts in contexts]
