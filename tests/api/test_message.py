"""Media are equal when their content is, whatever the source, and so are requests with them."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mill.api.errors import DataError
from mill.api.message import AUDIO, IMAGE, MEDIA_KINDS, VIDEO, Blob, Media, Message
from mill.api.request import GENERATE, Request


def noise_image() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8))


def encoded(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


RAW = encoded(noise_image())


def sources(raw: bytes, file: Path) -> dict[str, Any]:
    """The same bytes as every kind of source."""
    file.write_bytes(raw)
    return {
        "text path": str(file),
        "path": file,
        "bytes": raw,
        "data URL": f"data:image/png;base64,{base64.b64encode(raw).decode()}",
        "other data URL": f"data:application/octet-stream;base64,{base64.b64encode(raw).decode()}",
        "blob": Blob("row 3", lambda: raw),
    }


@pytest.mark.parametrize("kind", MEDIA_KINDS)
def test_the_same_bytes_are_equal_as_path_bytes_data_url_and_blob(tmp_path: Path, kind: str) -> None:
    media = [Media(kind, source) for source in sources(RAW, tmp_path / "a.png").values()]
    assert len({item.digest for item in media}) == 1
    assert len(set(media)) == 1
    assert all(item == media[0] and hash(item) == hash(media[0]) for item in media)
    assert [item.encoded() for item in media] == [RAW] * len(media)


def test_images_are_equal_by_their_pixels() -> None:
    assert Media(IMAGE, noise_image()) == Media(IMAGE, noise_image().copy())
    assert Media(IMAGE, noise_image()) == Media(IMAGE, Image.open(io.BytesIO(RAW)))
    changed = noise_image()
    changed.putpixel((8, 6), tuple(255 - part for part in changed.getpixel((8, 6))))
    assert Media(IMAGE, changed) != Media(IMAGE, noise_image())


def test_palette_images_with_other_colours_are_different() -> None:
    def painted(*colour: int) -> Image.Image:
        image = Image.new("P", (4, 4), 0)
        image.putpalette([*colour, *[0] * 765])
        return image

    red, blue = painted(255, 0, 0), painted(0, 0, 255)
    assert red.convert("RGB").tobytes() != blue.convert("RGB").tobytes()
    assert Media(IMAGE, red) == Media(IMAGE, painted(255, 0, 0))
    assert Media(IMAGE, red) != Media(IMAGE, blue)


def test_audio_is_equal_by_samples_and_rate() -> None:
    samples = np.linspace(-1, 1, 50, dtype=np.float32)
    audio = Media(AUDIO, samples, 16_000)
    assert audio == Media(AUDIO, samples.copy(), 16_000)
    assert audio != Media(AUDIO, samples, 8_000)
    assert audio != Media(AUDIO, samples)
    assert audio != Media(AUDIO, samples[::-1], 16_000)
    assert audio != Media(AUDIO, samples.reshape(25, 2), 16_000)
    assert audio != Media(AUDIO, samples[:-1], 16_000)


def test_a_missing_file_has_a_digest_of_its_name(tmp_path: Path) -> None:
    missing = Media(IMAGE, tmp_path / "a.png")
    assert missing == Media(IMAGE, str(tmp_path / "a.png"))
    assert missing != Media(IMAGE, tmp_path / "b.png")
    assert missing != Media(IMAGE, b"")
    assert missing != Media(IMAGE, tmp_path)
    with pytest.raises(DataError, match=r"cannot read .*a\.png: No such file or directory"):
        missing.encoded()


@pytest.mark.parametrize("url", ["data:image/png,plain", "data:image/png;base64,@@@@", "data:image/png;base64"])
def test_a_data_url_without_base64_is_refused_when_read_and_has_a_digest(url: str) -> None:
    media = Media(IMAGE, url)
    assert media.digest != Media(IMAGE, RAW).digest
    with pytest.raises(DataError):
        media.encoded()


def content_hash_of(*parts: str | Media) -> str:
    return Request(GENERATE, (Message("user", parts),)).content_hash


def test_content_hashes_depend_on_the_media(tmp_path: Path) -> None:
    hashes = {content_hash_of(Media(IMAGE, source), "What is it?") for source in sources(RAW, tmp_path / "a.png").values()}
    assert len(hashes) == 1
    assert content_hash_of(Media(IMAGE, RAW + b"\0"), "What is it?") not in hashes
    assert content_hash_of(Media(VIDEO, RAW), "What is it?") not in hashes
    assert content_hash_of(Media(IMAGE, RAW), "What is that?") not in hashes
    assert content_hash_of("What is it?", Media(IMAGE, RAW)) not in hashes
    assert content_hash_of(Media(IMAGE, RAW), Media(IMAGE, RAW), "What is it?") not in hashes
    assert content_hash_of("<image>", "What is it?") not in hashes


def test_message_text_has_placeholders_for_media() -> None:
    audio = Media(AUDIO, np.zeros(3), 8_000)
    message = Message("user", (Media(IMAGE, RAW), "What is it", audio, "?"))
    assert message.text == "<image>What is it<audio>?"
    assert message.media == [Media(IMAGE, RAW), audio]
    assert message.to_dict() == {
        "role": "user",
        "content": [
            {"kind": "image", "digest": Media(IMAGE, RAW).digest},
            "What is it",
            {"kind": "audio", "digest": audio.digest},
            "?",
        ],
    }
    assert Message("user", "hello").to_dict() == {"role": "user", "content": "hello"}
