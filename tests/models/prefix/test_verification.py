"""Every run verifies its fast path: rows are computed again, and where it was wrong, everything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mill
from mill.api.errors import FastPathFailed
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.models.hf.model import TransformersModel
from mill.models.prefix import fast_path
from mill.models.prefix.paths import ENOUGH, Verification
from mill.store.folder import WRONG_PATH, RunFolder
from tests.models.trained import DELTA_NET, saved

TEXT = "the quick brown fox jumps over the lazy dog . what is the answer ? it is 42 , 7 or 1234 ; yes no "


def identity(values: list[float]) -> Any:
    return lambda: values


def checked(verification: Verification, difference: float, noise: float = 1.0) -> None:
    verification.check(torch.nn.Embedding(2, 2), 5, [difference], identity([0.0]), noise)


@pytest.fixture
def plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding otherwise changes nothing of a list of numbers."""
    from contextlib import nullcontext

    from mill.models.prefix import paths

    monkeypatch.setattr(paths, "rounded_otherwise", lambda model: nullcontext())


def test_a_row_beyond_four_times_the_noise_fails(plain_model: None) -> None:
    verification = Verification()
    checked(verification, 3.9)
    assert str(verification) == "verified: 1 row, largest difference 3.9 nats (noise 1)"
    with pytest.raises(FastPathFailed, match=r"differs by 4\.1 nats, and rounding explains 1"):
        checked(verification, 4.1)


def test_a_median_beyond_twice_the_noise_fails_once_there_are_enough_rows(plain_model: None) -> None:
    verification = Verification()
    for _ in range(ENOUGH - 1):
        assert verification.is_due(5, 9)  # the next rows are computed again, too
        checked(verification, 2.1)
    with pytest.raises(FastPathFailed):
        checked(verification, 2.1)


def test_what_is_not_a_number_on_one_path_alone_fails(plain_model: None) -> None:
    nan = float("nan")
    Verification().check(None, 5, [nan], identity([nan]), 1.0)
    for found, wanted in ((nan, -1.0), (-1.0, nan)):
        with pytest.raises(FastPathFailed):
            Verification().check(None, 5, [found], identity([wanted]), 1.0)


def test_the_first_rows_the_longest_and_one_in_500_are_computed_again(plain_model: None) -> None:
    verification = Verification()
    for _ in range(2):
        assert verification.is_due(5, 9)
        checked(verification, 0.0)
    assert not verification.is_due(5, 9) and verification.is_due(9, 9)
    assert sum(verification.samples(f"{n:012x}{'0' * 20}") for n in range(5000)) == 10
    verification.restart()
    assert verification.is_due(5, 9)


def test_rows_that_are_sampled_are_compared_with_the_plain_path(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verification, "samples", lambda *_: True)
    model = TransformersModel(str(tiny_model), dtype="float32", device_map="cpu")
    requests = [Request(LOGLIKELIHOOD, f"{TEXT * (1 + n % 3)}{n}", " the lazy dog") for n in range(12)]
    model.loglikelihood(requests)
    assert model.execution_paths()["scoring"].startswith("packed: 12 requests; verified: 12 rows, largest difference ")


@pytest.fixture
def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that sees nothing."""
    monkeypatch.setattr(fast_path, "sharing_obstacle", lambda model: "")


@pytest.mark.parametrize("kind", [LOGLIKELIHOOD, GENERATE])
def test_answers_of_a_model_whose_rows_mix_are_computed_again(unproved: None, tmp_path: Path, kind: str) -> None:
    folder = str(saved("qwen3_5_text", {**DELTA_NET, "initializer_range": 0.3}, tmp_path, "float32"))
    fast, plain = (TransformersModel(folder, dtype="float32", device_map="cpu", exact=exact) for exact in (False, True))
    if kind == LOGLIKELIHOOD:
        requests = [Request(kind, f"{TEXT}{n}", f" {choice}") for n in range(4) for choice in ("yes", "no A")]
        found, wanted = ([one.score for one in model.loglikelihood(requests)] for model in (fast, plain))
        assert found == pytest.approx(wanted, abs=1e-4)
    else:
        requests = [Request(kind, f"{TEXT}{n}", options=generation_options(max_gen_toks=8)) for n in range(4)]
        texts, wanted_texts = ([one.text for one in model.generate_until(requests)] for model in (fast, plain))
        assert texts == wanted_texts
    assert fast.fast_path.disabled
    (warning,) = fast.warnings()
    assert warning.startswith("the fast path was wrong: a row computed again by itself differs by ")


def questions(file: Path, count: int, words: str) -> Path:
    rows = [
        {"question": f"{TEXT} {words} {n} ?", "choices": ["yes", "no", "42", "7"], "answer": n % 4} for n in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def scores_of(folder: Path) -> dict[str, list[list[float]]]:
    files = sorted((folder / "samples").glob("*.jsonl"))
    return {file.stem: [json.loads(line)["choice_logprobs"] for line in file.read_text().splitlines()] for file in files}


def test_all_answers_of_a_run_are_superseded_also_those_of_earlier_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first session sees nothing, the second one does: what the first recorded is set aside."""
    model = saved("qwen3_5_text", {**DELTA_NET, "initializer_range": 0.3}, tmp_path / "model", "float32")
    one, two = questions(tmp_path / "one.jsonl", 3, "a"), questions(tmp_path / "two.jsonl", 3, "b")
    spec, output = f"hf[path={model},dtype=float32,device_map=cpu]", tmp_path / "results"
    with monkeypatch.context() as blind:
        blind.setattr(fast_path, "sharing_obstacle", lambda model: "")
        blind.setattr(Verification, "is_due", lambda *_: False)
        mill.evaluate(spec, str(one), output_dir=output)
    (folder,) = (manifest.parent for manifest in output.rglob("manifest.json"))
    exact = mill.evaluate(spec.replace("]", ",exact=true]"), [str(one), str(two)], output_dir=tmp_path / "exact")
    (wanted_folder,) = (manifest.parent for manifest in (tmp_path / "exact").rglob("manifest.json"))
    wanted = scores_of(wanted_folder)
    first = next(name for name in wanted if "one" in name)
    assert exact is not None
    assert scores_of(folder)[first] != wanted[first]

    with monkeypatch.context() as unproved:
        unproved.setattr(fast_path, "sharing_obstacle", lambda model: "")
        mill.evaluate(spec, str(two), output_dir=output)
    assert list((folder / "record").glob("*.superseded"))
    results = RunFolder(folder).results().tasks
    flagged = {name: WRONG_PATH in result.warnings for name, result in results.items()}
    assert flagged == {str(one): True, str(two): False} or sorted(flagged.values()) == [False, True]

    mill.evaluate(spec, [str(one), str(two)], output_dir=output)
    found = scores_of(folder)
    for name in wanted:
        for row, other in zip(found[name], wanted[name], strict=True):
            assert row == pytest.approx(other, abs=1e-4)
    assert not any(WRONG_PATH in result.warnings for result in RunFolder(folder).results().tasks.values())


def test_what_is_not_a_number_fails_alone(tiny_model: Path) -> None:
    """In a slot beside others: the plain path says which texts fail."""
    model = TransformersModel(str(tiny_model), dtype="float32", device_map="cpu")
    poison = model.tokens.encode("zq")[-1]
    with torch.no_grad():
        model.model.get_input_embeddings().weight[poison] = float("nan")
    options = generation_options(max_gen_toks=6)
    requests = [Request(GENERATE, f"{TEXT}{word}", options=options) for word in ("zq", "fox", "dog", "7", "zq zq", "yes")]
    found = model.generate_until(requests)
    assert [answer.failed for answer in found] == [True, False, False, False, True, False]
