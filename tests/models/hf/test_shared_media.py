"""Requests on the same pictures: encoded and computed once, with the scores and answers of plain transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mill.api.model import StreamContext, run_requests
from mill.api.request import Request
from mill.models.hf import media_prefixes
from mill.models.hf.media_prefixes import PrefixEncoder
from mill.models.hf.model import TransformersModel
from mill.models.prefix.paths import Verification
from tests.models.hf.plain_multimodal import (
    CONTINUATIONS,
    IMAGES,
    QUESTIONS,
    VIDEOS,
    Zoo,
    asked,
    assert_same_scores,
    assert_same_texts,
    assert_scores,
    opened,
    scored,
    small_networks,
)

SHARING = [
    *("llava", "idefics3", "qwen3_vl"),
    *(pytest.param(name, marks=pytest.mark.zoo) for name in ("qwen2_vl", "qwen2_5_vl")),
]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    with small_networks():
        yield Zoo(tmp_path_factory.mktemp("zoo"))


def fresh(zoo: Zoo, name: str, **arguments: Any) -> TransformersModel:
    model = opened(zoo.folder(name), **arguments)
    assert isinstance(model, TransformersModel)
    return model


def count_encoded(model: TransformersModel, encoder: str = "get_image_features") -> list[int]:
    """Grows by one with each call of the model's encoder."""
    calls: list[int] = []
    owner = model.model.model
    encode = getattr(owner, encoder)

    def counted(*positional: Any, **named: Any) -> Any:
        calls.append(1)
        return encode(*positional, **named)

    setattr(owner, encoder, counted)
    return calls


def computed(model: TransformersModel, requests: list[Request]) -> int:
    """How many tokens it computes for requests."""
    context = StreamContext()
    assert len(list(run_requests(model, requests[0].kind, requests, context))) == len(requests)
    return context.tokens.computed


def distinct(zoo: Zoo, name: str, contexts: list[tuple[Any, ...]]) -> int:
    """How many tokens the prompts with all continuations have together, each shared prefix counted once."""
    plain, nodes = zoo.plain(name), set()
    for parts in contexts:
        for continuation in CONTINUATIONS:
            text = plain.text(*parts)
            ids = [*map(str, plain.ids(text + continuation, parts))]
            media = [id(part) for part in parts if not isinstance(part, str)]
            nodes |= {(*media, *ids[:end]) for end in range(1, len(ids))}
    return len(nodes)


def paths_of(model: Any) -> dict[str, str]:
    """Without how they were verified."""
    return {stage: path.partition("; verified: ")[0] for stage, path in model.execution_paths().items()}


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is computed again, so that what is computed can be counted."""
    monkeypatch.setattr(Verification, "is_due", lambda *_: False)


@pytest.mark.parametrize("name", SHARING)
def test_a_picture_with_many_questions_and_choices_is_encoded_and_computed_once(
    zoo: Zoo, unverified: None, name: str
) -> None:
    contexts = [(image, question) for image in IMAGES[:2] for question in QUESTIONS]
    pairs = [(parts, continuation) for parts in contexts for continuation in CONTINUATIONS]
    model, plain = fresh(zoo, name), zoo.plain(name)
    encoded = count_encoded(model)
    assert_scores(model.loglikelihood([scored(*pair) for pair in pairs]), [plain.score(*pair) for pair in pairs])
    assert len(encoded) == 3  # each picture once, and one of them to compare both ways of computing
    assert paths_of(model) == {"scoring": f"packed: {len(pairs)} requests"}
    fewest, every = distinct(zoo, name, contexts), sum(len(plain.ids(plain.text(*p[0]) + p[1], p[0])) for p in pairs)
    count = computed(model, [scored(*pair) for pair in pairs])
    assert fewest <= count < 0.5 * every
    assert count < 1.5 * fewest  # a few tokens are cheaper to compute again than to share


@pytest.mark.parametrize("name", SHARING)
def test_examples_with_pictures_are_shared_by_questions_with_their_own(zoo: Zoo, name: str) -> None:
    examples = ("A :", IMAGES[0], "a cat", IMAGES[1], "a dog or a ship")
    contexts = [(*examples, image, QUESTIONS[0]) for image in IMAGES]
    model, plain = fresh(zoo, name), zoo.plain(name)
    assert_same_scores(model, plain, contexts)
    lengths = [len(plain.ids(plain.text(*parts) + " a cat", parts)) for parts in contexts]
    in_common = len(plain.ids(plain.text(*examples), examples)) // 2  # at least
    assert computed(model, [scored(parts, " a cat") for parts in contexts]) < sum(lengths) - 3 * in_common


@pytest.mark.parametrize("name", SHARING)
def test_answers_to_many_questions_equal_plain_generate(zoo: Zoo, unverified: None, name: str) -> None:
    contexts = [(image, question) for image in IMAGES[:2] for question in QUESTIONS]
    model, plain = fresh(zoo, name), zoo.plain(name)
    encoded = count_encoded(model)
    answers = model.generate_until([asked(parts) for parts in contexts])
    assert [answer.text for answer in answers] == [plain.answer(parts) for parts in contexts]
    assert [answer.prompt_tokens for answer in answers] == [len(plain.ids(plain.text(*p), p)) for p in contexts]
    assert len(encoded) == 3
    assert paths_of(model) == {"decoding": "continuous: 8 requests"}


@pytest.mark.parametrize(
    ("name", "options"),
    [("llava", {"repetition_penalty": 1.7}), ("qwen3_vl", {"temperature": 1.0, "seed": 5}), ("llava", {"logprobs": 2})],
)
def test_other_ways_of_decoding_equal_those_without_sharing(zoo: Zoo, name: str, options: dict[str, Any]) -> None:
    requests = [asked((IMAGES[0], question), **options) for question in QUESTIONS]
    shared, alone = fresh(zoo, name).generate_until(requests), fresh(zoo, name, exact="true").generate_until(requests)
    assert [(one.text, one.output_tokens) for one in shared] == [(one.text, one.output_tokens) for one in alone]
    for one, other in zip(shared, alone, strict=True):
        logprobs = [[token.logprob for token in answer.tokens or ()] for answer in (one, other)]
        assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_videos_and_pictures_of_one_request_are_told_apart(zoo: Zoo, name: str) -> None:
    contexts = [(IMAGES[0], VIDEOS[0], question) for question in QUESTIONS] + [(VIDEOS[1], "yes ?"), (VIDEOS[1], "or no ?")]
    model = fresh(zoo, name)
    for either in (model, fresh(zoo, name, exact="true", batch_size=4)):
        assert_same_scores(either, zoo.plain(name), contexts)
    assert_same_texts(model, zoo.plain(name), contexts)
    assert paths_of(model) == {"scoring": "packed: 6 requests", "decoding": "continuous: 6 requests"}


def test_as_many_pictures_are_kept_as_memory_allows(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_prefixes, "MOST_BYTES", 1)
    contexts = [(image, question) for image in IMAGES for question in QUESTIONS]
    assert_same_scores(fresh(zoo, "llava"), zoo.plain("llava"), contexts)


def test_a_model_whose_pictures_see_ahead_computes_each_row_by_itself(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    contexts = [(IMAGES[0], question) for question in QUESTIONS]
    model, plain = fresh(zoo, "gemma3"), zoo.plain("gemma3")
    assert_same_scores(model, plain, contexts)
    assert_same_texts(model, plain, contexts)
    reason = "its language model takes a mask"
    assert paths_of(model) == {
        "scoring": f"padded ({reason}): 4 requests",
        "decoding": f"plain batches ({reason}): 4 requests",
    }
    assert caplog.text.count(f"do not share prefixes: {reason}") == 1


def moved(arguments: dict[str, Any]) -> None:
    length = arguments["inputs_embeds"].shape[1]
    arguments["position_ids"] = torch.arange(length)[None] // 2


def dimmed(arguments: dict[str, Any]) -> None:
    arguments["inputs_embeds"] = arguments["inputs_embeds"] * 0.5


@pytest.mark.parametrize("change", [moved, dimmed])
def test_a_model_that_is_not_understood_computes_each_row_by_itself(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    capture = PrefixEncoder._capture

    def wrong(encoder: PrefixEncoder, inputs: Any) -> dict[str, Any]:
        arguments = capture(encoder, inputs)
        change(arguments)
        return arguments

    monkeypatch.setattr(PrefixEncoder, "_capture", wrong)
    contexts = [(IMAGES[0], question) for question in QUESTIONS]
    model = fresh(zoo, "llava")
    assert_same_scores(model, zoo.plain("llava"), contexts)
    assert model.execution_paths()["scoring"].startswith("padded (")


def test_memory_that_runs_out_while_encoding_leaves_the_requests_to_the_other_path(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, calls = PrefixEncoder._capture, []

    def failing(encoder: PrefixEncoder, inputs: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 2:  # the second picture
            raise torch.OutOfMemoryError("out of memory")
        return capture(encoder, inputs)

    monkeypatch.setattr(PrefixEncoder, "_capture", failing)
    contexts = [(image, question) for image in IMAGES[:3] for question in QUESTIONS]
    model = fresh(zoo, "llava")
    assert_same_scores(model, zoo.plain("llava"), contexts)
    assert paths_of(model) == {"scoring": "padded (out of memory): 4 requests; packed: 8 requests"}
