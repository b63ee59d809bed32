"""Images, videos and audio of every format become the same pixels and samples, or one line that names the file."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import image_utils

from mill.api.errors import DataError
from mill.api.message import AUDIO, IMAGE, VIDEO, Blob, Media
from mill.models.media.decode import CLIPPED, content_part, even_indices, load_audio, load_image, load_video

COLOURS = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255), "black": (0, 0, 0)}


def noise(width: int = 24, height: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def animation(form: str = "GIF", colours: tuple[str, ...] = tuple(COLOURS)) -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in colours]
    return encoded(frames[0], form, save_all=True, append_images=frames[1:], duration=50, loop=0)


def refusal(load: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as caught:
        load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Images


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_images_have_the_pixels_they_were_written_with(form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    raw = encoded(Image.fromarray(noise()), form, **options)
    assert np.array_equal(pixels(load_image(Media(IMAGE, raw))), noise())


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bit_greys_are_clipped_as_transformers_does_and_said_to_be(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"a.{form}"
    Image.fromarray(np.array([[0, 100, 255, 256, 40_000, 65_535]], dtype=np.uint16)).save(file, form)
    for _ in range(2):
        found = load_image(Media(IMAGE, file))
    assert pixels(found)[0, :, 0].tolist() == [0, 100, 255, 255, 255, 255]
    assert np.array_equal(pixels(found), pixels(image_utils.load_image(str(file))))
    assert caplog.messages == [CLIPPED]


def photo(orientation: int) -> bytes:
    """A red left half and a blue right half as a camera stores them, held in this way."""
    image = Image.new("RGB", (32, 16), "blue")
    image.paste("red", (0, 0, 16, 16))
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, "PNG", exif=exif)


@pytest.mark.parametrize(
    ("orientation", "size", "first", "last"),
    [(1, (32, 16), "red", "blue"), (3, (32, 16), "blue", "red"), (6, (16, 32), "red", "blue"), (8, (16, 32), "blue", "red")],
)
def test_a_photo_is_turned_upright_for_models_and_servers(
    tmp_path: Path, orientation: int, size: tuple[int, int], first: str, last: str
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(photo(orientation))
    found = load_image(Media(IMAGE, file))
    assert found.size == size
    assert (found.getpixel((1, 1)), found.getpixel((-2, -2))) == (COLOURS[first], COLOURS[last])
    assert np.array_equal(pixels(found), pixels(image_utils.load_image(str(file))))
    for media in (Media(IMAGE, file), Media(IMAGE, Image.open(file))):
        assert np.array_equal(pixels(load_image(media)), pixels(found))
        raw = Image.open(io.BytesIO(sent(media)[1]))
        assert np.array_equal(pixels(raw), pixels(found)) and raw.getexif().get(0x0112, 1) == 1


def test_a_cmyk_jpeg_shows_its_colours() -> None:
    inks = {(0, 255, 255, 0): "red", (255, 0, 255, 0): "lime", (255, 255, 0, 0): "blue", (0, 0, 0, 255): "black"}
    image = Image.new("CMYK", (64, 16))
    for index, ink in enumerate(inks):
        image.paste(ink, (16 * index, 0, 16 * index + 16, 16))
    raw = encoded(image, "JPEG", quality=100)
    assert Image.open(io.BytesIO(raw)).mode == "CMYK"
    found = pixels(load_image(Media(IMAGE, raw)))
    for index, colour in enumerate(inks.values()):
        block = found[4:12, 16 * index + 4 : 16 * index + 12].astype(int)
        assert np.abs(block - np.array(COLOURS[colour])).max() <= 4, colour


def test_alpha_is_dropped_and_colours_under_it_stay() -> None:
    alpha = np.random.default_rng(1).integers(0, 256, (16, 24, 1), dtype=np.uint8)
    raw = encoded(Image.fromarray(np.concatenate([noise(), alpha], axis=2)), "PNG")
    assert Image.open(io.BytesIO(raw)).mode == "RGBA"
    assert np.array_equal(pixels(load_image(Media(IMAGE, raw))), noise())


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "depth.tiff"
    Image.fromarray(np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)).save(file)
    message = refusal(lambda: load_image(Media(IMAGE, file)))
    assert message == f"the image {file} has floating-point pixels, whose range is not known"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "WEBP"])
def test_a_file_that_ends_too_early_is_refused_with_its_name(tmp_path: Path, form: str) -> None:
    whole = encoded(Image.fromarray(noise(96, 96)), form)
    file = tmp_path / f"cut.{form.lower()}"
    file.write_bytes(whole[: len(whole) // 2])
    assert refusal(lambda: load_image(Media(IMAGE, file))).startswith(f"the image {file} cannot be read: ")


@pytest.mark.parametrize("raw", [b"", b"hello", bytes(1000)])
def test_what_is_no_image_is_refused_with_its_name(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(raw)
    for media in (Media(IMAGE, file), Media(IMAGE, Blob(str(file), file.read_bytes))):
        assert refusal(partial(load_image, media)).startswith(f"the image {file} cannot be read: ")
    assert refusal(lambda: load_image(Media(IMAGE, raw))).startswith("the image <image> cannot be read: ")


# Videos


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [
        (100, 5, [0, 25, 50, 74, 99]),
        (5, 4, [0, 1, 3, 4]),
        (0, 4, []),
        (1, 1, [0]),
    ],
)
def test_frames_are_evenly_spaced_first_and_last_included(total: int, count: int, expected: list[int]) -> None:
    assert even_indices(total, count) == expected


def evenly(count: int) -> Callable[[int, float | None], list[int]]:
    return lambda total, _: even_indices(total, count)


def frame_colours(frames: list[Image.Image]) -> list[tuple[int, ...]]:
    assert all(frame.mode == "RGB" for frame in frames)
    return [frame.getpixel((4, 4)) for frame in frames]


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_every_frame_of_an_animation_is_its_own(form: str) -> None:
    found = frame_colours(load_video(Media(VIDEO, animation(form)), evenly(5)).frames)
    assert np.abs(np.array(found) - np.array(list(COLOURS.values()))).max() <= 6


def mp4(greys: list[int], rate: int = 10) -> bytes:
    """A video whose frames have these greys."""
    av = pytest.importorskip("av")
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for grey in greys:
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), grey, dtype=np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return out.getvalue()


GREYS = [20, 40, 60, 80, 100, 120, 140, 160, 180, 200]


@pytest.mark.parametrize(("count", "indices"), [(1, [0]), (4, [0, 3, 6, 9]), (10, range(10)), (30, range(10))])
def test_frames_of_an_mp4_come_in_order_at_even_distances(tmp_path: Path, count: int, indices: Any) -> None:
    file = tmp_path / "grey.mp4"
    file.write_bytes(mp4(GREYS))
    for source in (file, file.read_bytes(), Blob("row 0", file.read_bytes)):
        frames = load_video(Media(VIDEO, source), evenly(count)).frames
        found = [pixels(frame).mean() for frame in frames]
        assert found == pytest.approx([GREYS[index] for index in indices], abs=4)
        assert frames[0].size == (32, 32)


@pytest.mark.parametrize("rate", [2, 25])
def test_a_video_has_its_times_and_the_frames_that_are_asked_for(rate: int) -> None:
    asked: list[tuple[int, float | None]] = []

    def choose(*seen: Any) -> list[int]:
        asked.append(seen)
        return [7, 1, 1]

    found = load_video(Media(VIDEO, mp4(GREYS, rate)), choose)
    assert asked == [(10, float(rate))]
    assert (found.indices, found.total, found.fps) == ([7, 1, 1], 10, float(rate))
    assert [pixels(frame).mean() for frame in found.frames] == pytest.approx([160, 40, 40], abs=4)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_the_rate_of_an_animation_is_that_of_its_durations(form: str) -> None:
    images = [Image.new("RGB", (8, 8), colour) for colour in COLOURS]
    raw = encoded(images[0], form, save_all=True, append_images=images[1:], duration=[100, 200, 100, 200, 100])
    found = load_video(Media(VIDEO, raw), evenly(2))
    assert (found.total, found.indices) == (5, [0, 4]) and found.fps == pytest.approx(5 / 0.7)


def wav(samples: np.ndarray, rate: int, subtype: str = "PCM_16") -> bytes:
    soundfile = pytest.importorskip("soundfile")
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format="WAV", subtype=subtype)
    return out.getvalue()


def test_videos_without_frames_are_refused_with_their_names(tmp_path: Path) -> None:
    pytest.importorskip("av")
    audio, cut, empty = tmp_path / "sound.wav", tmp_path / "cut.mp4", tmp_path / "empty.mp4"
    audio.write_bytes(wav(np.zeros(100), 8_000))
    cut.write_bytes(mp4(GREYS)[:40])
    empty.touch()
    for file in (audio, cut, empty):
        assert refusal(partial(load_video, Media(VIDEO, file), evenly(2))).startswith(f"the video {file} ")
    assert refusal(lambda: load_video(Media(VIDEO, []), evenly(2))) == "the video <video> has no frames"


# Audio


def sine(frequency: float, rate: int, seconds: float, loudness: float = 0.5) -> np.ndarray:
    return loudness * np.sin(2 * np.pi * frequency * np.arange(round(rate * seconds)) / rate)


def loudest_frequency(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.fft.rfftfreq(len(samples), 1 / rate)[spectrum.argmax()])


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_a_mono_file_has_the_samples_it_was_written_with(tmp_path: Path, subtype: str) -> None:
    written = sine(440, 8_000, 0.1)
    file = tmp_path / "a.wav"
    file.write_bytes(wav(written, 8_000, subtype))
    for source in (str(file), file, file.read_bytes()):
        found = load_audio(Media(AUDIO, source), 8_000)
        assert (found.dtype, found.shape) == (np.float32, (800,))
        assert np.abs(found - written).max() < 1 / 32_000


def test_channels_are_averaged() -> None:
    left, right = sine(440, 8_000, 0.1), sine(700, 8_000, 0.1, 0.3)
    stereo = np.stack([left, right], axis=1)
    for media in (Media(AUDIO, wav(stereo, 8_000, "FLOAT")), Media(AUDIO, stereo, 8_000)):
        assert np.abs(load_audio(media, 8_000) - (left + right) / 2).max() < 1e-6


@pytest.mark.parametrize(("own", "asked"), [(44_100, 16_000), (8_000, 16_000)])
def test_another_rate_keeps_pitch_length_and_loudness(own: int, asked: int) -> None:
    pytest.importorskip("soxr")
    written = sine(440, own, 1.0)
    for media in (Media(AUDIO, wav(written, own, "FLOAT")), Media(AUDIO, written, own)):
        found = load_audio(media, asked)
        assert abs(len(found) - asked) <= 1
        assert loudest_frequency(found, asked) == pytest.approx(440, abs=1)
        middle = found[asked // 4 : 3 * asked // 4]
        assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.01)


def test_empty_audio_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    file.touch()
    assert refusal(lambda: load_audio(Media(AUDIO, file), 8_000)) == f"the audio {file} is empty"
    file.write_bytes(wav(np.zeros(0), 8_000))
    assert refusal(lambda: load_audio(Media(AUDIO, file), 8_000)) == f"the audio {file} is empty"
    assert refusal(lambda: load_audio(Media(AUDIO, np.zeros(0), 8_000), 8_000)) == "the audio <audio> is empty"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_numbers_are_refused(tmp_path: Path, bad: float) -> None:
    samples = np.zeros(100, dtype=np.float32)
    samples[50] = bad
    file = tmp_path / "a.wav"
    file.write_bytes(wav(samples, 8_000, "FLOAT"))
    for rate in (8_000, 16_000):
        expected = f"the audio {file} has samples that are not numbers"
        assert refusal(partial(load_audio, Media(AUDIO, file), rate)) == expected
    assert "not numbers" in refusal(lambda: load_audio(Media(AUDIO, samples, 8_000), 8_000))


@pytest.mark.parametrize("raw", [b"hello", b"RIFF" + bytes(200)])
def test_what_is_no_audio_is_refused_with_its_name(tmp_path: Path, raw: bytes) -> None:
    pytest.importorskip("soundfile")
    file = tmp_path / "a.wav"
    file.write_bytes(raw)
    assert refusal(lambda: load_audio(Media(AUDIO, file), 8_000)).startswith(f"the audio {file} cannot be read: ")


# What servers are sent


def sent(media: Media) -> tuple[str, bytes]:
    """The type and the bytes inside the data URL of an image or video part."""
    part = content_part(media)
    kind = part["type"]
    assert set(part) == {"type", kind} and set(part[kind]) == {"url"} and kind == f"{media.kind}_url"
    head, _, body = part[kind]["url"].partition(";base64,")
    return head, base64.b64decode(body, validate=True)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("form", "kind"), [("JPEG", "image/jpeg"), ("PNG", "image/png"), ("WEBP", "image/webp")])
def test_images_in_common_formats_are_sent_unchanged(tmp_path: Path, mode: str, form: str, kind: str) -> None:
    raw = encoded(Image.fromarray(noise()).convert(mode), form)
    file = tmp_path / "a"
    file.write_bytes(raw)
    for source in (raw, file, Blob("row", lambda: raw), f"data:;base64,{base64.b64encode(raw).decode()}"):
        assert sent(Media(IMAGE, source)) == (f"data:{kind}", raw)


def other_images() -> dict[str, bytes]:
    grey = np.random.default_rng(0).integers(0, 65536, (8, 8), dtype=np.uint16)
    palette = Image.fromarray(noise()).quantize(16)
    return {
        "CMYK": encoded(Image.fromarray(noise()).convert("CMYK"), "JPEG"),
        "16 bits": encoded(Image.fromarray(grey), "PNG"),
        "palette": encoded(palette, "PNG"),
        "alpha": encoded(Image.fromarray(noise()).convert("RGBA"), "PNG"),
        "animation": animation("GIF"),
        "bitmap": encoded(Image.fromarray(noise()), "BMP"),
        "TIFF": encoded(Image.fromarray(noise()), "TIFF"),
    }


@pytest.mark.parametrize("name", list(other_images()))
def test_other_images_are_sent_as_the_pixels_that_local_models_see(name: str) -> None:
    media = Media(IMAGE, other_images()[name])
    kind, raw = sent(media)
    image = Image.open(io.BytesIO(raw))
    assert (kind, image.format, image.mode) == ("data:image/png", "PNG", "RGB")
    assert np.array_equal(np.asarray(image), pixels(load_image(media)))


def test_frames_are_sent_as_a_row_of_jpegs() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in COLOURS]
    part = content_part(Media(VIDEO, frames))
    head, _, body = part["video_url"]["url"].partition(";base64,")
    images = [Image.open(io.BytesIO(base64.b64decode(one, validate=True))) for one in body.split(",")]
    assert (part["type"], head) == ("video_url", "data:video/jpeg")
    assert [image.format for image in images] == ["JPEG"] * len(COLOURS)
    found = np.array([image.getpixel((8, 8)) for image in images])
    assert np.abs(found - np.array(list(COLOURS.values()))).max() <= 4


def decoded_audio(media: Media) -> tuple[int, np.ndarray]:
    """The rate and the samples of an audio part, which is 16-bit mono WAV."""
    part = content_part(media)
    assert part["type"] == "input_audio" and part["input_audio"]["format"] == "wav"
    with wave.open(io.BytesIO(base64.b64decode(part["input_audio"]["data"], validate=True))) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), dtype="<i2") / 32767


def test_samples_are_sent_as_wav_at_their_rate() -> None:
    samples = sine(440, 8_000, 0.1)
    rate, found = decoded_audio(Media(AUDIO, samples, 8_000))
    assert (rate, found.shape) == (8_000, (800,))
    assert np.abs(found - samples).max() <= 1 / 32767


def test_samples_beyond_full_scale_are_clipped_and_never_wrapped() -> None:
    _, found = decoded_audio(Media(AUDIO, np.array([0.0, 1.0, 1.5, -1.0, -7.0]), 8_000))
    assert found.tolist() == [0, 1, 1, -1, -1]
