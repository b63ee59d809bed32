"""Media are equal when their content is, wherever it comes from, and requests follow them."""

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


def picture(seed: int = 0, size: tuple[int, int] = (9, 7)) -> Image.Image:
    """A picture of noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


RAW = encoded(picture())


def sources(raw: bytes, file: Path) -> dict[str, Any]:
    """The same bytes in every form that has bytes."""
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
    assert len({one.digest for one in media}) == 1
    assert len(set(media)) == 1
    assert all(one == media[0] and hash(one) == hash(media[0]) for one in media)
    assert [one.encoded() for one in media] == [RAW] * len(media)


@pytest.mark.parametrize("changed", [RAW + b"\0", RAW[:-1], RAW[:40] + bytes([RAW[40] ^ 1]) + RAW[41:], b""])
def test_another_byte_is_another_digest_in_every_form(tmp_path: Path, changed: bytes) -> None:
    first = {name: Media(IMAGE, source).digest for name, source in sources(RAW, tmp_path / "a.png").items()}
    other = {name: Media(IMAGE, source).digest for name, source in sources(changed, tmp_path / "b.png").items()}
    assert set(first.values()).isdisjoint(other.values())


def test_the_kind_is_part_of_the_digest() -> None:
    assert len({Media(kind, RAW).digest for kind in MEDIA_KINDS}) == 3


def test_a_file_is_equal_to_its_copy_under_another_name_and_not_to_its_name_with_other_bytes(tmp_path: Path) -> None:
    one, copy = tmp_path / "one.png", tmp_path / "copy.png"
    one.write_bytes(RAW)
    copy.write_bytes(RAW)
    before = Media(IMAGE, one)
    assert before == Media(IMAGE, copy)
    one.write_bytes(RAW + b"\n")
    assert Media(IMAGE, one) != before


def test_an_address_stands_for_itself() -> None:
    one, other = Media(IMAGE, "https://example.org/a.png"), Media(IMAGE, "https://example.org/b.png")
    assert one.is_url and one.encoded() is None
    assert one == Media(IMAGE, "https://example.org/a.png")
    assert one != other
    assert one != Media(IMAGE, b"https://example.org/a.png")


def test_pictures_are_equal_by_their_pixels() -> None:
    assert Media(IMAGE, picture()) == Media(IMAGE, picture().copy())
    assert Media(IMAGE, picture()) == Media(IMAGE, Image.open(io.BytesIO(RAW)))
    changed = picture()
    changed.putpixel((8, 6), tuple(255 - part for part in changed.getpixel((8, 6))))
    assert Media(IMAGE, changed) != Media(IMAGE, picture())


def test_pictures_of_the_same_bytes_and_another_shape_are_different() -> None:
    wide = Image.frombytes("RGB", (6, 2), bytes(range(36)))
    assert Media(IMAGE, wide) != Media(IMAGE, Image.frombytes("RGB", (2, 6), bytes(range(36))))


def test_pictures_of_the_same_bytes_and_another_mode_are_different() -> None:
    modes = {"RGB": (4, 4), "L": (12, 4), "HSV": (4, 4), "YCbCr": (4, 4), "CMYK": (3, 4), "RGBA": (3, 4)}
    found = {Media(IMAGE, Image.frombytes(mode, size, bytes(range(48)))).digest for mode, size in modes.items()}
    assert len(found) == len(modes)


def test_palette_pictures_with_other_colours_are_different() -> None:
    def painted(*colour: int) -> Image.Image:
        image = Image.new("P", (4, 4), 0)
        image.putpalette([*colour, *[0] * 765])
        return image

    red, blue = painted(255, 0, 0), painted(0, 0, 255)
    assert red.convert("RGB").tobytes() != blue.convert("RGB").tobytes()
    assert Media(IMAGE, red) == Media(IMAGE, painted(255, 0, 0))
    assert Media(IMAGE, red) != Media(IMAGE, blue)


def test_the_order_of_frames_matters() -> None:
    frames = [picture(seed) for seed in range(3)]
    assert Media(VIDEO, frames) == Media(VIDEO, tuple(frame.copy() for frame in frames))
    assert Media(VIDEO, frames) != Media(VIDEO, frames[::-1])
    assert Media(VIDEO, frames) != Media(VIDEO, [frames[0], frames[2], frames[1]])
    assert Media(VIDEO, frames) != Media(VIDEO, frames[:2])
    assert Media(VIDEO, frames) != Media(VIDEO, [*frames, frames[-1]])


def test_where_one_frame_ends_matters() -> None:
    raw = bytes(range(24))
    two = [Image.frombytes("L", (4, 3), raw[:12]), Image.frombytes("L", (4, 3), raw[12:])]
    assert Media(VIDEO, two) != Media(VIDEO, [Image.frombytes("L", (4, 6), raw)])


def test_samples_and_their_rate_both_matter() -> None:
    samples = np.linspace(-1, 1, 50, dtype=np.float32)
    sound = Media(AUDIO, samples, 16_000)
    assert sound == Media(AUDIO, samples.copy(), 16_000)
    assert sound != Media(AUDIO, samples, 8_000)
    assert sound != Media(AUDIO, samples)
    assert sound != Media(AUDIO, samples[::-1], 16_000)
    assert sound != Media(AUDIO, samples.reshape(25, 2), 16_000)
    assert sound != Media(AUDIO, samples[:-1], 16_000)


@pytest.mark.parametrize("form", ["list", "tensor"])
def test_samples_that_are_no_numpy_array_are_told_apart_too(form: str) -> None:
    from mill.models.media.decode import load_audio

    def sound(values: list[float]) -> Media:
        if form == "list":
            return Media(AUDIO, values, 8_000)
        torch = pytest.importorskip("torch")
        return Media(AUDIO, torch.tensor(values), 8_000)

    one, other = sound([0.0, 0.5, 0.25]), sound([0.0, -0.5, 0.75])
    assert not np.array_equal(load_audio(one, 8_000), load_audio(other, 8_000))
    assert one != other


def test_a_missing_file_has_a_digest_by_its_name(tmp_path: Path) -> None:
    missing = Media(IMAGE, tmp_path / "a.png")
    assert missing == Media(IMAGE, str(tmp_path / "a.png"))
    assert missing != Media(IMAGE, tmp_path / "b.png")
    assert missing != Media(IMAGE, b"")
    assert missing != Media(IMAGE, tmp_path)
    with pytest.raises(DataError, match=r"cannot read .*a\.png: No such file or directory"):
        missing.encoded()


def test_a_missing_file_and_the_file_that_is_there_later_are_different(tmp_path: Path) -> None:
    missing = Media(IMAGE, tmp_path / "a.png").digest
    (tmp_path / "a.png").write_bytes(RAW)
    assert Media(IMAGE, tmp_path / "a.png").digest != missing


def test_a_blob_that_cannot_be_read_has_a_digest_by_its_name() -> None:
    def gone() -> bytes:
        raise DataError("row 3 is missing")

    assert Media(IMAGE, Blob("row 3", gone)) == Media(IMAGE, Blob("row 3", gone))
    assert Media(IMAGE, Blob("row 3", gone)) != Media(IMAGE, Blob("row 4", gone))


def test_an_opened_picture_whose_file_ends_too_early_has_a_digest() -> None:
    whole = encoded(picture(size=(64, 64)), "JPEG")
    opened = Image.open(io.BytesIO(whole[: len(whole) // 2]))
    digest = Media(IMAGE, opened).digest
    assert digest != Media(IMAGE, Image.open(io.BytesIO(whole))).digest


@pytest.mark.parametrize("url", ["data:image/png,plain", "data:image/png;base64,@@@@", "data:image/png;base64"])
def test_a_data_url_without_base64_is_refused_when_read_and_has_a_digest(url: str) -> None:
    media = Media(IMAGE, url)
    assert media.digest != Media(IMAGE, RAW).digest
    with pytest.raises(DataError):
        media.encoded()


def test_a_data_url_is_not_shown_in_messages() -> None:
    url = f"data:image/png;base64,{base64.b64encode(RAW).decode()}"
    assert (Media(IMAGE, url).name, Media(VIDEO, [picture()]).name) == ("<image>", "<video>")
    assert (Media(IMAGE, "a/b.png").name, Media(IMAGE, Blob("row 3", bytes)).name) == ("a/b.png", "row 3")


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="media are image, video, audio, not 'smell'"):
        Media("smell", RAW)


def ask(*parts: str | Media) -> str:
    return Request(GENERATE, (Message("user", parts),)).content_hash


def test_content_hashes_follow_the_media(tmp_path: Path) -> None:
    hashes = {ask(Media(IMAGE, source), "What is it?") for source in sources(RAW, tmp_path / "a.png").values()}
    assert len(hashes) == 1
    assert ask(Media(IMAGE, RAW + b"\0"), "What is it?") not in hashes
    assert ask(Media(VIDEO, RAW), "What is it?") not in hashes
    assert ask(Media(IMAGE, RAW), "What is that?") not in hashes
    assert ask("What is it?", Media(IMAGE, RAW)) not in hashes
    assert ask(Media(IMAGE, RAW), Media(IMAGE, RAW), "What is it?") not in hashes
    assert ask("<image>", "What is it?") not in hashes


def test_a_request_about_a_missing_file_has_a_hash_of_its_own(tmp_path: Path) -> None:
    one, other = (ask(Media(IMAGE, tmp_path / name), "?") for name in ("a.png", "b.png"))
    assert one != other


def test_a_message_reads_as_text_with_the_kinds_of_its_media() -> None:
    sound = Media(AUDIO, np.zeros(3), 8_000)
    message = Message("user", (Media(IMAGE, RAW), "What is it", sound, "?"))
    assert message.text == "<image>What is it<audio>?"
    assert message.media == [Media(IMAGE, RAW), sound]
    assert message.to_dict() == {
        "role": "user",
        "content": [
            {"kind": "image", "digest": Media(IMAGE, RAW).digest},
            "What is it",
            {"kind": "audio", "digest": sound.digest},
            "?",
        ],
    }
    assert Message("user", "hello").to_dict() == {"role": "user", "content": "hello"}
