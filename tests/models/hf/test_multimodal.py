"""Images, videos and audio on the HF backend against plain transformers, on tiny random models of five families."""

from __future__ import annotations

import io
import json
import math
import shutil
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soxr
import torch

from mill.api.errors import CannotServe
from mill.api.message import AUDIO, IMAGE, VIDEO, Media, Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, Request, generation_options
from mill.api.task import RenderSettings
from mill.cli.main import run
from mill.models.media.inputs import MediaInputs
from mill.models.token_model import UNTEMPLATED
from mill.tasks.load import select
from tests.models.hf.plain_multimodal import (
    CLIPS,
    CONTINUATIONS,
    IMAGES,
    NEW_TOKENS,
    QUESTIONS,
    VIDEOS,
    Zoo,
    asked,
    assert_same_scores,
    assert_same_texts,
    assert_scores,
    cases,
    frames,
    make_audio,
    make_image,
    message,
    opened,
    pairs,
    scored,
    small_networks,
    write_film,
)
from tests.models.media.test_decode import encoded
from tests.plans import prepare
from tests.vlm import AUDIO_RATE, AUDIO_WINDOW_S, MAKERS

MODALITIES = {
    "qwen3_vl": {"text", "image", "video"},
    "llava": {"text", "image"},
    "idefics3": {"text", "image"},
    "qwen2_vl": {"text", "image", "video"},
    "qwen2_5_vl": {"text", "image", "video"},
    "qwen2_audio": {"text", "audio"},
}
WATCHING = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    with small_networks():
        yield Zoo(tmp_path_factory.mktemp("zoo"))


def wav(samples: np.ndarray, rate: int) -> bytes:
    """16-bit PCM; a column for each channel."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return out.getvalue()


@pytest.mark.parametrize("name", MAKERS)
def test_modalities_are_read_from_the_processor_without_weights(zoo: Zoo, tmp_path: Path, name: str) -> None:
    folder = zoo.copy(name, tmp_path / name)
    (folder / "model.safetensors").write_bytes(b"")  # which cannot be loaded
    model = opened(folder)
    assert model.capabilities.modalities == MODALITIES[name]
    assert model.capabilities.supports_logprobs and model.has_chat_template()


@pytest.mark.parametrize(("name", "batch_size"), [("llava", 1), *((name, 4) for name in MAKERS)])
def test_loglikelihoods_equal_plain_transformers_in_any_batch(zoo: Zoo, name: str, batch_size: int) -> None:
    answers = zoo.open(name, batch_size=batch_size).loglikelihood([scored(*pair) for pair in pairs(name)])
    assert_scores(answers, zoo.scores(name))
    lengths = {tokens for _, _, tokens in zoo.scores(name)}
    assert max(lengths) > 2 and (1 in lengths or name.startswith("qwen"))  # whose template ends with a line break
    plain = zoo.plain(name)
    before = [len(plain.ids(plain.text(*parts).rstrip(), parts)) for parts in cases(name) for _ in CONTINUATIONS]
    assert [(answer.prompt_tokens, answer.truncated_tokens) for answer in answers] == [(length, 0) for length in before]


@pytest.mark.parametrize(("name", "batch_size"), [("llava", 1), *((name, 4) for name in MAKERS)])
def test_greedy_answers_equal_plain_generate_in_any_batch(zoo: Zoo, name: str, batch_size: int) -> None:
    plain = zoo.plain(name)
    answers = zoo.open(name, batch_size=batch_size).generate_until([asked(parts) for parts in cases(name)])
    assert [answer.text for answer in answers] == [plain.answer(parts) for parts in cases(name)]
    assert [answer.prompt_tokens for answer in answers] == [len(plain.ids(plain.text(*p), p)) for p in cases(name)]
    assert len({answer.text for answer in answers}) == len(answers)


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_requests_with_different_numbers_of_images_go_together(zoo: Zoo, name: str) -> None:
    one, two, three = IMAGES[:3]
    several = [(one, "yes ?"), (two, "or", three, "no ?"), (three, "it is"), (one, two, three, "what")]
    model = zoo.open(name, batch_size=4)
    assert_same_scores(model, zoo.plain(name), several)
    assert_same_texts(model, zoo.plain(name), several)


@pytest.mark.parametrize("name", ["llava", "qwen2_audio"])
def test_texts_alone_are_answered_beside_media_in_the_order_of_requests(zoo: Zoo, name: str) -> None:
    with_media = cases(name)
    several: list[Any] = [("yes or no ?",), with_media[0], ("the quick brown fox jumps",), with_media[1], ("it is",)]
    model, plain = zoo.open(name, batch_size=4), zoo.plain(name)
    assert_same_scores(model, plain, several)
    assert_same_texts(model, plain, several)


@pytest.mark.parametrize(("name", "as_parts"), [("llava", False), ("qwen2_vl", True)])
def test_a_dialog_without_media_reaches_the_template_with_its_text(zoo: Zoo, name: str, as_parts: bool) -> None:
    model, plain = zoo.open(name), zoo.plain(name)
    questions = [*QUESTIONS[:2], "is this text an image , a video or audio ?"]
    contexts = [(Message("user", (text,) if as_parts else text),) for text in questions]
    answers = model.loglikelihood([Request(LOGLIKELIHOOD, context, " a cat") for context in contexts])
    assert_scores(answers, [plain.score((text,), " a cat") for text in questions])
    wanted = generation_options(max_gen_toks=NEW_TOKENS)
    texts = model.generate_until([Request(GENERATE, context, options=wanted) for context in contexts])
    assert [answer.text for answer in texts] == [plain.answer((text,)) for text in questions]


@pytest.mark.parametrize("name", ["llava", "idefics3"])
def test_a_context_of_text_alone_goes_to_the_model_as_it_is(zoo: Zoo, name: str) -> None:
    """Also after media, which some models remember the positions of."""
    model, plain = zoo.open(name), zoo.plain(name)
    model.generate_until([asked(parts) for parts in cases(name)])
    expected = [plain.score((), " a cat", text) for text in QUESTIONS]
    answers = model.loglikelihood([Request(LOGLIKELIHOOD, text, " a cat") for text in QUESTIONS])
    assert_scores(answers, expected)
    wanted = generation_options(max_gen_toks=NEW_TOKENS)
    texts = model.generate_until([Request(GENERATE, text, options=wanted) for text in QUESTIONS])
    assert [answer.text for answer in texts] == [plain.answer((), text) for text in QUESTIONS]


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen2_audio"])
def test_a_dialog_of_several_turns_keeps_its_media_in_their_turns(zoo: Zoo, name: str) -> None:
    (first, question), (second, other) = cases(name)[:2]
    turns: list[Any] = [("system", ["yes or no"]), ("user", [first, question]), ("assistant", ["a cat"])]
    turns.append(("user", [other, second]))
    context = tuple(message(*parts, role=role) for role, parts in turns)
    media = [first, second]
    plain = zoo.plain(name)
    text, model = plain.render(turns), zoo.open(name)
    (answer,) = model.generate_until_multi_round(
        [Request(MULTI_ROUND, context, options=generation_options(max_gen_toks=NEW_TOKENS))]
    )
    assert answer.text == plain.answer(media, text)
    assert_scores(model.loglikelihood([Request(LOGLIKELIHOOD, context, " a dog")]), [plain.score(media, " a dog", text)])


def test_stop_strings_and_token_logprobs_work_beside_images(zoo: Zoo) -> None:
    model, plain = zoo.open("llava", batch_size=4), zoo.plain("llava")
    parts = next(parts for parts in cases("llava") if len(set(plain.answer(parts))) > 3)
    (free,) = model.generate_until([asked(parts, logprobs=3)])
    ids = plain.answer_ids(parts)
    assert [token.id for token in free.tokens or ()] == ids
    inputs = plain.inputs(plain.text(*parts), parts)
    with torch.inference_mode():
        first = plain.model(**inputs).logits[0, -1].log_softmax(-1)
    assert free.tokens is not None and free.tokens[0].logprob == pytest.approx(float(first[ids[0]]), abs=1e-4)
    stop = (free.text or "")[2:4]
    (stopped,) = model.generate_until([asked(parts, until=[stop])])
    assert (stopped.text, stopped.finish_reason) == ((free.text or "").partition(stop)[0], "stop")


def test_without_a_chat_template_the_placeholders_are_between_the_texts(zoo: Zoo, tmp_path: Path) -> None:
    folder = zoo.copy("llava", tmp_path / "untemplated", without="chat_template.jinja")
    plain, (one, two) = zoo.plain("llava"), IMAGES[:2]
    parts = ("A :", one, "or B :", two, "?")
    model = opened(folder)
    assert not model.has_chat_template()
    (answer,) = model.loglikelihood([scored(parts, " a cat")])
    assert_scores([answer], [plain.score(parts, " a cat", "A :<image>or B :<image>?")])


def test_one_text_split_at_two_positions_is_scored_from_each(zoo: Zoo, tmp_path: Path) -> None:
    folder = zoo.copy("llava", tmp_path / "untemplated", without="chat_template.jinja")
    cuts = [
        (" it is", " a cat , a dog"),
        (" it is a cat ,", " a dog"),
        (" it is a cat , a", " dog"),
        (" it is a cat , a dog", " A"),
    ]
    parts = [(IMAGES[0], before) for before, _ in cuts]
    answers = opened(folder, batch_size=4).loglikelihood(
        [scored(p, after) for p, (_, after) in zip(parts, cuts, strict=True)]
    )
    plain = zoo.plain("llava")
    expected = [plain.score(p, after, "<image>" + before) for p, (before, after) in zip(parts, cuts, strict=True)]
    assert_scores(answers, expected)


def test_a_continuation_that_is_merged_into_the_last_token_is_scored_with_it(zoo: Zoo, tmp_path: Path) -> None:
    folder, plain = zoo.copy("llava", tmp_path / "untemplated", without="chat_template.jinja"), zoo.plain("llava")
    cut, whole = plain.ids("<image> it is 4", IMAGES[:1]), plain.ids("<image> it is 42", IMAGES[:1])
    assert cut[: len(whole) - 1] == whole[:-1] and cut[len(whole) - 1] != whole[-1]
    (answer,) = opened(folder).loglikelihood([scored((IMAGES[0], " it is 4"), "2")])
    assert_scores([answer], [plain.score(IMAGES[:1], " 42", "<image> it is")])


def test_a_chat_template_in_the_processors_file_serves_texts_and_media(zoo: Zoo, tmp_path: Path) -> None:
    """Older checkpoints keep it in chat_template.json, which tokenizers do not read."""
    folder = zoo.copy("llava", tmp_path / "older", without="chat_template.jinja")
    template = (zoo.folder("llava") / "chat_template.jinja").read_text()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    model, plain = opened(folder), zoo.plain("llava")
    assert model.has_chat_template()
    several: list[Any] = [cases("llava")[0], ("yes or no ?",)]
    assert_same_scores(model, plain, several)


@pytest.mark.parametrize("value", ["true", "false"])
def test_add_bos_token_holds_for_requests_with_images(zoo: Zoo, value: str) -> None:
    plain, parts = zoo.plain("llava"), cases("llava")[0]
    (answer,) = zoo.open("llava", add_bos_token=value).loglikelihood([scored(parts, " a cat")])
    inputs = plain.processor(
        text=[plain.text(*parts) + " a cat"], images=[parts[0]], return_tensors="pt", add_special_tokens=value == "true"
    )
    ids = inputs["input_ids"][0]
    n_cat = len(plain.processor.tokenizer(" a cat", add_special_tokens=False)["input_ids"])
    with torch.inference_mode():
        logprobs = plain.model(**inputs).logits[0, :-1].log_softmax(-1)
    score = logprobs.gather(1, ids[1:, None])[-n_cat:].double().sum()
    assert answer.prompt_tokens == len(ids) - n_cat
    assert answer.score == pytest.approx(float(score), abs=1e-4)


@pytest.mark.parametrize("name", WATCHING)
def test_videos_of_frames_equal_plain_transformers(zoo: Zoo, name: str) -> None:
    model, plain = zoo.open(name, batch_size=4), zoo.plain(name)
    watched = list(zip(VIDEOS, QUESTIONS, strict=True))
    pairs = [(parts, continuation) for parts in watched for continuation in CONTINUATIONS[1:3]]
    answers = model.loglikelihood([scored(*pair) for pair in pairs])
    assert_scores(answers, [plain.score(*pair) for pair in pairs])
    assert_same_texts(model, plain, watched)


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [({}, [0, 1, 3, 4, 6, 7, 9, 10]), ({"video_frames": 3}, [0, 6, 11]), ({"video_frames": 40}, range(12))],
)
def test_a_long_video_is_sampled_as_its_processor_does(zoo: Zoo, arguments: dict[str, int], kept: Sequence[int]) -> None:
    film = frames(5, 12)
    (answer,) = zoo.open("qwen2_vl", **arguments).loglikelihood([scored((film, "what ?"), " a cat")])
    assert_scores([answer], [zoo.plain("qwen2_vl").score(([film[index] for index in kept], "what ?"), " a cat")])


@pytest.mark.filterwarnings("ignore::UserWarning")  # transformers' own reader is deprecated in torchvision
@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_scores_and_answers_to_video_files_equal_those_of_transformers_on_the_files(
    zoo: Zoo, tmp_path: Path, name: str
) -> None:
    """The same 20 frames at two rates, which models with times tell apart."""
    films = [write_film(tmp_path / f"{rate}.mp4", frames(6, 20, 32, 16), rate) for rate in (2, 20)]
    watched = [(film, "what ?") for film in films]
    model, plain = zoo.open(name, batch_size=2), zoo.plain(name)
    expected = [plain.score(parts, " a cat") for parts in watched]
    assert_scores(model.loglikelihood([scored(parts, " a cat") for parts in watched]), expected)
    assert_same_texts(model, plain, watched)
    assert abs(expected[0][0] - expected[1][0]) > 0.1
    if name == "qwen2_5_vl":
        seconds = [plain.inputs(plain.text(*parts), parts)["second_per_grid_ts"].item() for parts in watched]
        assert seconds == [2.5, 0.25]


@pytest.mark.parametrize(
    ("name", "fps", "kept"),
    [
        ("LlavaOnevision", 30.0, [0, 37, 75, 112, 150, 187, 225, 262]),  # the starts of eight parts of 37.5 frames
        ("InternVL", 30.0, [18, 56, 93, 131, 168, 206, 243, 281]),  # their middles
        ("Qwen3VL", None, [0, 43, 85, 128, 171, 214, 256, 299]),
        ("Glm4v", 30.0, [0, 43, 85, 128, 171, 214, 256, 299]),  # takes no number of frames: it would be 20
        ("Glm4v", 120.0, [0, 60, 120, 180, 240, 240]),  # 2.5 seconds at 2 a second, and one more to make pairs
        ("SmolVLM", None, [0, 43, 85, 128, 171, 214, 256, 299]),  # needs the rate
    ],
)
def test_each_video_processor_samples_its_own_frames(name: str, fps: float | None, kept: list[int]) -> None:
    import transformers

    processor = SimpleNamespace(video_processor=getattr(transformers, f"{name}VideoProcessor")())
    media = MediaInputs(processor, None, video_frames=8)  # type: ignore[arg-type]
    assert media.sampled_frames(300, fps) == kept


def test_audio_at_another_rate_is_resampled_to_the_models(zoo: Zoo) -> None:
    samples = make_audio(8, 0.6, 44_100)
    heard = np.asarray(soxr.resample(samples, 44_100, AUDIO_RATE), dtype=np.float32)
    request = scored((Media(AUDIO, samples, rate=44_100), "what do you hear ?"), " a cat")
    expected = zoo.plain("qwen2_audio").score((heard, "what do you hear ?"), " a cat")
    assert_scores(zoo.open("qwen2_audio", batch_size=3).loglikelihood([request]), [expected])


def test_audio_longer_than_the_model_takes_is_an_error_and_never_truncated(zoo: Zoo) -> None:
    long = make_audio(1, 2.5 * AUDIO_WINDOW_S)
    model = zoo.open("qwen2_audio", batch_size=2)
    requests = [(long, "what do you hear ?"), (CLIPS[0], "what do you hear ?")]
    for cut, whole in (
        model.loglikelihood([scored(parts, " a cat") for parts in requests]),
        model.generate_until([asked(parts) for parts in requests]),
    ):
        assert cut.failed and not whole.failed


def bad_images(folder: Path) -> dict[str, Media]:
    """By what the error must contain."""
    (folder / "cut.jpg").write_bytes(encoded(make_image(1, 200, 200), "JPEG")[:900])
    (folder / "empty.png").write_bytes(b"")
    (folder / "words.png").write_text("no picture at all")
    names = ("cut.jpg", "empty.png", "words.png", "missing.png")
    bad = {str(folder / name): Media(IMAGE, folder / name) for name in names}
    return bad | {"cannot read 'a\\x00b.png'": Media(IMAGE, "a\0b.png")}


def bad_videos(folder: Path) -> dict[str, Media]:
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "words.mp4").write_text("no video at all")
    (folder / "sound.mp4").write_bytes(wav(make_audio(1), AUDIO_RATE))
    names = ("empty.mp4", "words.mp4", "sound.mp4", "missing.mp4")
    return {str(folder / name): Media(VIDEO, folder / name) for name in names} | {"no frames": Media(VIDEO, [])}


def bad_audio(folder: Path) -> dict[str, Media]:
    (folder / "empty.wav").write_bytes(b"")
    (folder / "silent.wav").write_bytes(wav(np.zeros(0), AUDIO_RATE))
    (folder / "words.wav").write_text("no sound at all")
    names = ("empty.wav", "silent.wav", "words.wav", "missing.wav")
    bad = {str(folder / name): Media(AUDIO, folder / name) for name in names}
    return bad | {"empty": Media(AUDIO, np.zeros(0, np.float32)), "not numbers": Media(AUDIO, np.full(4000, np.nan))}


@pytest.mark.parametrize(
    ("name", "make_bad", "good"),
    [("llava", bad_images, IMAGES), ("qwen2_vl", bad_videos, VIDEOS), ("qwen2_audio", bad_audio, CLIPS)],
)
def test_media_that_cannot_be_read_are_errors_of_their_requests_alone(
    zoo: Zoo, tmp_path: Path, name: str, make_bad: Any, good: list[Any]
) -> None:
    bad = make_bad(tmp_path)
    mixed: list[tuple[Any, str]] = [(good[0], QUESTIONS[0])]
    for index, media in enumerate(bad.values()):
        mixed += [(media, f"{QUESTIONS[index % 4]} {index}"), (good[index % 4], QUESTIONS[(index + 1) % 4])]
    model, plain = zoo.open(name, batch_size=4), zoo.plain(name)
    scores = model.loglikelihood([scored(parts, " a cat") for parts in mixed])
    assert_scores(scores[::2], [plain.score(parts, " a cat") for parts in mixed[::2]])
    texts = model.generate_until([asked(parts) for parts in mixed])
    assert [answer.text for answer in texts[::2]] == [plain.answer(parts) for parts in mixed[::2]]
    for words, score, text in zip(bad, scores[1::2], texts[1::2], strict=True):
        for answer in (score, text):
            assert words in (answer.error or "")
            assert answer.score is None and answer.text is None


@pytest.mark.parametrize("name", ["llava", "qwen2_audio"])
def test_a_prompt_that_does_not_fit_with_its_media_is_an_error_and_never_truncated(zoo: Zoo, name: str) -> None:
    plain = zoo.plain(name)
    short, other = cases(name)[2], cases(name)[0]
    long = (short[0], " ".join(["the lazy dog"] * 40))
    several = [short, long, other]
    lengths = [len(plain.ids(plain.text(*parts), parts)) for parts in several]
    room = max(lengths[0], lengths[2]) + NEW_TOKENS
    assert lengths[1] > room
    model = zoo.open(name, max_context_length=room, batch_size=4)
    texts = model.generate_until([asked(parts) for parts in several])
    assert (texts[0].text, texts[2].text) == (plain.answer(short), plain.answer(other))
    scores = model.loglikelihood([scored(parts, cont) for parts in several for cont in (" yes", " a cat")])
    assert_scores(scores[:2] + scores[4:], [plain.score(p, cont) for p in (short, other) for cont in (" yes", " a cat")])
    for answer in (texts[1], *scores[2:4]):
        assert f"the context has {room}" in (answer.error or "") and "never truncated" in (answer.error or "")
        assert answer.text is None and answer.score is None


def test_scores_that_are_not_numbers_are_errors(zoo: Zoo, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = zoo.copy("llava", tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    head = next(key for key in weights if key.endswith("lm_head.weight"))
    weights[head][0, 0] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model = opened(folder)
    for parts in (("yes or no ?",), cases("llava")[0]):
        (answer,) = model.loglikelihood([scored(parts, " a cat")])
        assert answer.error == "the score is NaN"


def test_an_image_that_the_processor_refuses_is_an_error_of_its_request_alone(zoo: Zoo) -> None:
    several = [(IMAGES[0], "it is"), (make_image(1, 2, 900), "what ?"), (IMAGES[2], "yes or no ?")]
    model, plain = zoo.open("qwen2_vl", batch_size=4), zoo.plain("qwen2_vl")
    answers = model.loglikelihood([scored(parts, " a cat") for parts in several])
    assert_scores(answers[::2], [plain.score(parts, " a cat") for parts in several[::2]])
    assert "aspect ratio" in (answers[1].error or "")
    texts = model.generate_until([asked(parts) for parts in several])
    assert [answer.text for answer in texts[::2]] == [plain.answer(parts) for parts in several[::2]]
    assert "aspect ratio" in (texts[1].error or "")


def test_a_sampled_answer_to_an_image_does_not_depend_on_its_batch(zoo: Zoo) -> None:
    requests = [asked(parts, temperature=1.0, seed=3) for parts in cases("llava")]
    together = [answer.text for answer in zoo.open("llava", batch_size=4).generate_until(requests)]
    alone = [zoo.open("llava", batch_size=4).generate_until([request])[0].text for request in requests]
    assert together == alone
    assert together != [zoo.plain("llava").answer(parts) for parts in cases("llava")]


def test_half_precision_takes_media(zoo: Zoo) -> None:
    model = opened(zoo.folder("llava"), dtype="bfloat16", batch_size=2)
    answers = model.loglikelihood([scored(parts, " a cat") for parts in cases("llava")])
    assert [answer.error for answer in answers] == [None] * 4
    exact = zoo.scores("llava")[CONTINUATIONS.index(" a cat") :: len(CONTINUATIONS)]
    assert [answer.score for answer in answers] == pytest.approx([score for score, _, _ in exact], rel=0.1)
    assert all(answer.error is None for answer in model.generate_until([asked(parts) for parts in cases("llava")]))


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A made-up test split: the files in the order in which the task has them."""
    root, files = tmp_path / "data", []
    for index, label in enumerate(("airplane", "cat", "dog", "frog", "ship", "truck")):
        folder = root / "uoft-cs/cifar10/plain_text/test" / label
        folder.mkdir(parents=True)
        for number in range(2):
            files.append(folder / f"{number}.png")
            make_image(10 * index + number, 32, 32).save(files[-1])
    monkeypatch.setenv("MILL_DATA", str(root))
    return sorted(files, key=lambda file: (file.name, file))  # classes take turns


def test_a_text_only_model_is_refused_images_before_it_loads(tiny_model: Path, cifar10: list[Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "weightless"))
    (folder / "model.safetensors").write_bytes(b"")  # which cannot be loaded
    chat = ["hf", "vllm", "litellm", "openai-compat", "vllm-mlx"]
    for task, backends in (("cifar10", ["clip", "timm", *chat]), ("cifar10_mcq", chat)):
        with pytest.raises(CannotServe, match="takes image") as refused:
            prepare(f"hf[path={folder},dtype=float32]", select([task]), RenderSettings(), output_dir=tmp_path / "out")
        reported = str(refused.value)
        assert "weightless" in reported and "takes text" in reported
        offered = reported.partition("backends that do: ")[2].split(", ")
        assert set(backends) == set(offered)


def test_a_missing_chat_template_is_a_warning_beside_the_score_of_media_alone(
    zoo: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = zoo.copy("llava", tmp_path / "untemplated", without="chat_template.jinja")
    IMAGES[0].save(tmp_path / "a.png")
    text = {"prompt": "it is", "choices": ["a cat", "42"], "answer": "42"}
    shown = text | {"prompt": "what ?", "image": "a.png"}
    (tmp_path / "text.jsonl").write_text(json.dumps(text))
    (tmp_path / "mixed.jsonl").write_text(f"{json.dumps(text)}\n{json.dumps(shown)}")
    files = [str(tmp_path / name) for name in ("text.jsonl", "mixed.jsonl")]
    for model, told in ((folder, True), (zoo.folder("llava"), False)):
        out = tmp_path / f"out-{model.name}"
        spec = f"hf[path={model},dtype=float32,device_map=cpu]"
        assert run(["eval", spec, ",".join(files), "--output_dir", str(out)]) == 0
        (results,) = (json.loads(file.read_text())["tasks"] for file in out.rglob("results.json"))
        (manifest,) = (json.loads(file.read_text())["tasks"] for file in out.rglob("manifest.json"))
        for stored in (results, manifest):
            assert [UNTEMPLATED in stored[file]["warnings"] for file in files] == [False, told]
        assert (UNTEMPLATED in capsys.readouterr().out.replace("\n", " ")) == told
    wanted = zoo.plain("llava").score((IMAGES[0], "what ?"), "a cat", "<image>what ?")[0]
    (file,) = (tmp_path / "out-untemplated").rglob("samples/*mixed*.jsonl")
    assert json.loads(file.read_text().splitlines()[1])["choice_logprobs"][0] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(("kind", "name", "other"), [(VIDEO, "qwen2_5_vl", "llava"), (AUDIO, "qwen2_audio", "qwen2_vl")])
def test_a_file_with_videos_or_audio_runs_or_is_refused_before_weights_load(
    zoo: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str, other: str
) -> None:
    parts: dict[str, Any] = {}
    for number in (1, 2):
        if kind == VIDEO:
            parts[f"{number}.mp4"] = write_film(tmp_path / f"{number}.mp4", frames(number, 10, 32, 16), rate=number)
        else:
            (tmp_path / f"{number}.wav").write_bytes(wav(make_audio(number), AUDIO_RATE))
            parts[f"{number}.wav"] = np.round(make_audio(number) * 32767) / 32768  # as 16-bit samples are read
    rows = [{"prompt": "what ?", kind: file, "choices": ["a cat", "42"], "answer": "42"} for file in parts]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    spec = f"hf[path={zoo.folder(name)},dtype=float32,device_map=cpu]"
    assert run(["eval", spec, str(tmp_path / "qa.jsonl"), "--output_dir", str(out)]) == 0
    (file,) = out.rglob("samples/*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    for sample, part in zip(samples, parts.values(), strict=True):
        wanted = [zoo.plain(name).score((part, "what ?"), choice)[0] for choice in ("a cat", "42")]
        assert sample["choice_logprobs"] == pytest.approx(wanted, abs=1e-3)
    folder = zoo.copy(other, tmp_path / "weightless")
    (folder / "model.safetensors").write_bytes(b"")  # which cannot be loaded
    capsys.readouterr()
    assert run(["eval", f"hf[path={folder}]", str(tmp_path / "qa.jsonl"), "--output_dir", str(out)]) == 2
    assert f"takes {kind}" in capsys.readouterr().err


def test_a_dry_run_of_images_loads_no_weights(
    zoo: Zoo, cifar10: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = zoo.copy("qwen2_vl", tmp_path / "weightless")
    (folder / "model.safetensors").write_bytes(b"")  # which cannot be loaded
    assert run(["eval", f"hf[path={folder}]", "cifar10", "--dry_run", "--output_dir", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "cifar10_mcq" in shown and "12/12" in shown and "48" in shown


def test_media_that_the_model_does_not_take_are_refused(zoo: Zoo) -> None:
    model, plain = zoo.open("llava"), zoo.plain("llava")
    several = [(VIDEOS[0], "what ?"), (IMAGES[0], "it is"), (IMAGES[0], VIDEOS[0], "yes ?")]
    refused = "the request has video; llava takes image, text"
    with pytest.raises(CannotServe, match=refused):
        model.check(scored(several[0], " a cat"))
    for answers in (
        model.loglikelihood([scored(parts, " a cat") for parts in several]),
        model.generate_until([asked(parts) for parts in several]),
    ):
        assert [answer.error for answer in answers] == [refused, None, refused]
    assert model.generate_until([asked(several[1])])[0].text == plain.answer(several[1])


def test_media_that_the_chat_template_leaves_out_are_errors_of_their_requests(zoo: Zoo, tmp_path: Path) -> None:
    folder = zoo.copy("llava", tmp_path / "llava")
    shown = "{% for c in m['content'] %}{{ c['text'] }}{% endfor %}"
    several = [(IMAGES[0], "it is"), (IMAGES[0], IMAGES[1], "it is")]
    placed = "the prompt has the placeholder <image> 1 times for 2 media of the kind image"
    left_out = "the chat template leaves out the image of the prompt"
    for start, errors in (("<image>", [None, placed]), ("", [left_out, left_out])):
        (folder / "chat_template.jinja").write_text(f"{{% for m in messages %}}{start}{shown}{{% endfor %}}")
        model = opened(folder)
        for answers in (
            model.loglikelihood([scored(parts, " a cat") for parts in several]),
            model.generate_until([asked(parts) for parts in several]),
        ):
            assert [answer.error for answer in answers] == errors


@pytest.mark.parametrize(("name", "token"), [("llava", "<image>"), ("qwen2_vl", "<|video_pad|>")])
def test_a_text_that_spells_a_placeholder_has_the_same_error_in_any_company(zoo: Zoo, name: str, token: str) -> None:
    spelled = [(IMAGES[0], f"what {token} is it ?"), (f"{token} what", IMAGES[0], "is it ?")]
    others = [(IMAGES[0], f"{question} {number}") for question in QUESTIONS for number in range(3)]
    for model in (zoo.open(name), zoo.open(name, exact="true")):
        for company in ([], others):
            answers = model.loglikelihood([scored(parts, " a cat") for parts in [*spelled, *company]])
            for answer in answers[:2]:
                assert answer.error is not None and f"the placeholder {token}" in answer.error
            assert [answer.error for answer in answers[2:]] == [None] * len(company)
    (answer,) = zoo.open(name).loglikelihood([scored((IMAGES[0], "it is"), f" {token}")])
    assert answer.error is not None and f"the placeholder {token}" in answer.error


def test_requests_that_are_all_too_long_say_nothing_about_the_model(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    model = opened(zoo.folder("llava"), max_context_length=48)
    long = [(IMAGES[0], " ".join(["the lazy dog"] * count)) for count in (12, 14)]
    answers = model.loglikelihood([scored(parts, " a cat") for parts in long])
    assert all("never truncated" in (answer.error or "") for answer in answers)
    (short,) = model.loglikelihood([scored((IMAGES[0], "it is"), " a cat")])
    assert_scores([short], [zoo.plain("llava").score((IMAGES[0], "it is"), " a cat")])
    assert "do not share prefixes" not in caplog.text


def test_an_image_that_changes_during_a_run_is_an_error(zoo: Zoo, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    IMAGES[0].save(file)
    before = scored((Media(IMAGE, file), "it is"), " a cat")
    (score,) = zoo.open("llava").loglikelihood([before])
    assert before.key and score.error is None
    IMAGES[1].save(file)
    (changed,) = zoo.open("llava").loglikelihood([before])
    assert changed.error == f"{file} was changed during the run"
    (other,) = zoo.open("llava").loglikelihood([scored((Media(IMAGE, file), "it is"), " a cat")])
    assert other.error is None and other.score != score.score
