"""What of the vllm backend needs no vLLM: refusals before the engine starts, the order of images, and the form of videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mill.api.batching import BatchLimits
from mill.api.errors import CannotServe, SpecError
from mill.api.message import IMAGE, VIDEO, Media, Message
from mill.api.model import StreamContext
from mill.api.request import GENERATE, Request, generation_options
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.models.hf.model import TransformersModel
from mill.models.media.decode import Video
from mill.models.media.inputs import MediaRow
from mill.models.vllm import VLLMModel, media_by_kind
from tests.models.hf.test_reasoning import SWITCH, with_template
from tests.vlm import make_llava

QUESTIONS = ("what is it ?", "a cat or a dog ?", "what is in this picture ? a cat , a dog or a ship ; yes no A B C D")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("vllm") / "llava")


@pytest.mark.parametrize("batch", [2, 512])
def test_rows_with_one_image_follow_each_other(folder: Path, tmp_path: Path, batch: int) -> None:
    files = [tmp_path / f"{number}.png" for number in range(5)]
    for number, file in enumerate(files[:4]):
        Image.new("RGB", (32, 32), (50 * number, 0, 0)).save(file)
    model = VLLMModel(str(folder))
    model.media = TransformersModel(str(folder)).media  # vLLM's tokenizer is that of its running engine
    requests = [
        Request(
            GENERATE, (Message("user", (Media(IMAGE, file), question)),), options=generation_options(max_gen_toks=length)
        )
        for question, length in zip(QUESTIONS, (8, 16, 8), strict=True)
        for file in files
    ]
    seen: list[tuple[MediaRow, Image.Image]] = []

    def answer(rows: list[MediaRow], media: list[Any]) -> list[list[Response]]:
        seen.extend((row, images[0]) for row, images in zip(rows, media, strict=True))
        return [[Response(text=row.text)] for row in rows]

    rows = [MediaRow(request, model.media.rendered(request)) for request in requests]
    stream = model._media_responses(GENERATE, rows, answer, BatchLimits(requests=batch), StreamContext())
    answers = {request.key: response for request, response in stream}
    order = sorted(files[:4], key=lambda file: Media(IMAGE, file).digest)
    expected = [(str(file), question) for file in order for question in sorted(QUESTIONS)]
    assert [(row.request.media[0].name, row.request.context[0].content[1]) for row, _ in seen] == expected  # type: ignore[union-attr]
    for row in rows:
        response = answers[row.request.key]
        if row.request.media[0].source == files[4]:
            assert str(files[4]) in (response.error or "")
        else:
            assert response.text == row.text


def test_a_video_is_given_with_its_times() -> None:
    """In the form that vLLM's own reader of video files has; models such as Qwen2.5-VL are refused frames alone."""
    images = [Image.new("RGB", (4, 2), colour) for colour in ("red", "blue")]
    request = Request(GENERATE, (Message("user", (Media(VIDEO, b""), "what ?")),))
    for fps, timed in ((5.0, {"fps": 5.0, "duration": 4.0}), (None, {})):
        given = media_by_kind(MediaRow(request, ""), [Video(images, [0, 10], total=20, fps=fps)])
        ((frames, times),) = given.pop("video")
        assert frames.shape == (2, 2, 4, 3) and frames[:, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]
        still = {"total_num_frames": 20, "frames_indices": [0, 10], "width": 4, "height": 2, "do_sample_frames": False}
        assert times == still | timed and not given


def request(**settings: object) -> Request:
    made = Request(GENERATE, (Message("user", "Hello"),), options=generation_options())
    return RenderSettings(**settings).served(made)  # type: ignore[arg-type]


def test_a_check_starts_no_engine(tiny_model: Path, tmp_path: Path) -> None:
    with_template(tiny_model, tmp_path / "switch", SWITCH)
    model = VLLMModel(str(tmp_path / "switch/model"))
    model.check(request())
    model.check(request(reasoning_effort="none"))
    with pytest.raises(CannotServe, match="only switches reasoning on and off"):
        model.check(request(reasoning_effort="low"))
    assert model.has_chat_template() and model._llm is None


def test_the_number_of_video_frames_changes_the_identity(tiny_model: Path) -> None:
    default, fewer = VLLMModel(str(tiny_model)), VLLMModel(str(tiny_model), video_frames=4)
    assert default.identity() != fewer.identity()


def test_parsers_of_vllm_are_refused_with_the_server_that_has_them() -> None:
    with pytest.raises(SpecError, match=r"run `vllm serve org/m --tool-call-parser ...` and evaluate the server"):
        VLLMModel("org/m", tool_call_parser="hermes")
