"""What `mill view` shows of media without a file is what the model got."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
from PIL import Image

from mill.api.message import AUDIO, IMAGE, Media
from mill.store.folder import RunFolder
from mill.store.samples import store_unnamed


def test_a_photo_is_stored_upright_and_stereo_as_the_mean_of_its_channels(tmp_path: Path) -> None:
    stored, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # the camera's left is the top
    photo = Image.new("RGB", (4, 2), "blue")
    photo.paste("red", (0, 0, 2, 2))
    photo.save(stored, "PNG", exif=exif)
    image = Media(IMAGE, Image.open(stored))
    sound = Media(AUDIO, np.array([[0.5, 0.0], [0.0, 0.5], [-0.5, -0.5]], dtype=np.float32), 8_000)
    undated = Media(AUDIO, np.zeros(3, dtype=np.float32))
    store_unnamed(RunFolder(tmp_path), [image, sound, undated])
    shown = Image.open(tmp_path / "media" / image.digest)
    assert (shown.size, shown.getpixel((0, 0)), shown.getpixel((1, 3))) == ((2, 4), (255, 0, 0), (0, 0, 255))
    with wave.open(str(tmp_path / "media" / sound.digest)) as file:
        assert (file.getframerate(), file.getnchannels()) == (8_000, 1)
        assert np.frombuffer(file.readframes(3), dtype="<i2").tolist() == [8191, 8191, -16383]
    assert len(list((tmp_path / "media").iterdir())) == 2
