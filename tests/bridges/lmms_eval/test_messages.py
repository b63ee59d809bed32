"""What lmms-eval's tasks show as media of mill's messages; no lmms-eval is needed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mill.api.errors import DataError
from mill.api.message import AUDIO, IMAGE, VIDEO, Media, Message
from mill.bridges.lmms_eval.messages import Messages, deferred, from_lmms_eval, media_of, user_turn

RED = Image.new("RGB", (4, 3), "red")
BLUE = Image.new("RGB", (4, 3), "blue")
WAVE = np.linspace(-1, 1, 50, dtype=np.float32)


class Decoder:
    """Audio as newer versions of `datasets` give it."""

    def get_all_samples(self) -> None:
        raise NotImplementedError

    def __getitem__(self, name: str) -> Any:
        return {"array": WAVE, "sampling_rate": 8000}[name]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (RED, Media(IMAGE, RED)),
        ("a/b.JPG", Media(IMAGE, "a/b.JPG")),
        ("a/b.mp4", Media(VIDEO, "a/b.mp4")),
        ("a/b.wav", Media(AUDIO, "a/b.wav")),
        ({"array": WAVE, "sampling_rate": 8000, "path": "x.wav"}, Media(AUDIO, WAVE, 8000)),
        (Decoder(), Media(AUDIO, WAVE, 8000)),
        ({"type": "video", "url": "clip"}, Media(VIDEO, "clip")),
        ({"type": "audio", "path": "clip.bin"}, Media(AUDIO, "clip.bin")),
        ([RED, BLUE], Media(VIDEO, [RED, BLUE])),
    ],
)
def test_what_a_task_shows(shown: Any, expected: Media) -> None:
    found = media_of(shown)
    assert (found.kind, found.rate, found.digest) == (expected.kind, expected.rate, expected.digest)


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (42, "shows a int"),
        ([42], "shows a list"),
        ({"frames": 3}, "a dictionary with frames"),
        ({"type": "video", "url": "a.mp4", "video_start": 1.0}, "mill sends whole videos"),
    ],
)
def test_what_cannot_be_shown_is_refused(shown: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        media_of(shown)


def test_messages_keep_their_order() -> None:
    content = [
        {"type": "text", "text": "look at "},
        {"type": "image", "url": RED},
        {"type": "text", "text": " and hear "},
        {"type": "audio", "url": {"array": WAVE, "sampling_rate": 8000}},
    ]
    (system, user) = from_lmms_eval([{"role": "system", "content": "be brief"}, {"role": "user", "content": content}])
    assert system == Message("system", "be brief")
    assert user.text == "look at <image> and hear <audio>"
    assert user_turn([RED, BLUE], "what is it ?")[0].text == "<image><image>what is it ?"
    assert user_turn(None, "what is it ?")[0].text == "what is it ?"
    with pytest.raises(DataError, match="mill sends whole videos"):
        from_lmms_eval([{"role": "user", "content": [{"type": "video", "url": "a.mp4", "start_time": 1.0}]}])
    with pytest.raises(DataError, match="'tool'"):
        from_lmms_eval([{"role": "user", "content": [{"type": "tool"}]}])


def rendered(*images: Image.Image) -> Callable[[], Messages]:
    return lambda: user_turn([*images, "a.mp4"], "what is it ?")


def test_media_are_rendered_again_when_they_are_used() -> None:
    render = rendered(RED, BLUE)
    (message,) = deferred(render(), render, "sample 0")
    assert message == render()[0], "equal content"
    red, blue, video = message.media
    assert red.source is RED and blue.source is BLUE and video.source == "a.mp4"
    assert (red.name, red.is_url, red.encoded()) == ("<image>", False, None)
    assert pickle.loads(pickle.dumps(blue)) == Media(IMAGE, BLUE)


def test_a_prompt_that_changes_is_an_error() -> None:
    (message,) = deferred(rendered(RED, BLUE)(), rendered(BLUE, RED), "sample 7 of a task")
    with pytest.raises(DataError, match="sample 7 of a task has another image each time"):
        _ = message.media[0].source
