"""Servers get requests with the same image one after another, and an image is encoded once for all of them."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mill.api.message import IMAGE, Media, Message
from mill.api.request import GENERATE, Request, generation_options
from mill.models.media import decode
from mill.models.spec.open import open_model
from tests.servers import FaultServer

QUESTIONS = ("what is it?", "is it a cat?", "which colour has it?")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Palette images, which are sent as other bytes than those of the file."""
    made = [tmp_path / f"{number}.png" for number in range(4)]
    for number, file in enumerate(made):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).quantize(16).save(file)
    return made


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is encoded in base64 from now on, with an empty cache."""
    calls: list[bytes] = []
    inner = decode._base64

    def counted(raw: bytes) -> str:
        calls.append(raw)
        return inner(raw)

    monkeypatch.setattr(decode, "_base64", counted)
    decode._inline.cache_clear()
    return calls


def answer(*_: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"message": {"role": "assistant", "content": "a cat"}, "finish_reason": "stop"}]}


def about(file: Path, question: str) -> Request:
    content = (Media(IMAGE, file), question)
    return Request(GENERATE, (Message("user", content),), options=generation_options(max_gen_toks=8))


def seen(body: dict[str, Any]) -> tuple[bytes, str]:
    """The pixels of the image in a body, and the question about it."""
    image, question = body["messages"][-1]["content"]
    raw = base64.b64decode(image["image_url"]["url"].partition(";base64,")[2], validate=True)
    return Image.open(io.BytesIO(raw)).convert("RGB").tobytes(), question["text"]


OPENAI = "openai-compat[model=m,base_url={url}/v1,concurrency=1]"
VLLM_MLX = "vllm-mlx[model=m,base_url={url}/v1,concurrency=1]"
LITELLM = "litellm[model=openai/m,api_base={url}/v1,api_key=sk-local,concurrency=1]"


@pytest.mark.parametrize("spec", [OPENAI, VLLM_MLX, pytest.param(LITELLM, marks=pytest.mark.slow)])
def test_questions_about_one_image_follow_each_other_and_share_its_encoding(
    spec: str, files: list[Path], encoded: list[bytes]
) -> None:
    with FaultServer(answer) as server:
        server.gets["/health"] = {"model_loaded": True, "model_name": "m"}
        model = open_model(spec.format(url=server.url))
        model.ready()
        server.calls.clear()
        responses = model.generate_until([about(file, question) for question in QUESTIONS for file in files])
    assert [response.text for response in responses] == ["a cat"] * 12
    sent = [seen(body) for _, body in server.calls]
    pictures = {file: Image.open(file).convert("RGB").tobytes() for file in files}
    order = sorted(files, key=lambda file: Media(IMAGE, file).digest)
    assert sent == [(pictures[file], question) for file in order for question in sorted(QUESTIONS)]
    assert len(encoded) == len(files)


def test_an_unreadable_image_is_an_error_of_its_requests_alone(files: list[Path]) -> None:
    files[1].write_bytes(files[1].read_bytes()[:40])
    with FaultServer(answer) as server:
        model = open_model(OPENAI.format(url=server.url))
        model.ready()
        responses = model.generate_until([about(file, question) for file in files for question in QUESTIONS])
    assert [response.text for response in responses] == ["a cat"] * 3 + [None] * 3 + ["a cat"] * 6
    assert all(str(files[1]) in (response.error or "") for response in responses[3:6])
