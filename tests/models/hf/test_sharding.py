"""Sharded weights give the answers of one process, and no rank waits forever in a pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import SpecError
from mill.models.spec.open import open_model
from tests.launching import (
    ended,
    lines,
    mill_lines,
    run,
    run_ranks,
    start_ranks,
    toy,
)
from tests.outcomes import recorded, samples, sessions

TASKS = "toy_gen,toy_choice,toy_text,toy_uneven,toy_dialog"
N = "6"


def spec(model: Path, more: str, backend: str = "hf") -> str:
    return f"{backend}[path={model},dtype=float32,{more}]"


@pytest.fixture(scope="module")
def alone(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answers of one process without prefix sharing."""
    folder = tmp_path_factory.mktemp("alone")
    assert run(toy(folder, TASKS, model=spec(tiny_model, "exact=true")), TOY_N=N)[0] == 0
    return folder


def same_answers(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> bool:
    assert found.keys() == expected.keys()
    for key, answer in expected.items():
        assert found[key].keys() == answer.keys()
        assert found[key].get("text") == answer.get("text")
        assert found[key].get("score") == pytest.approx(answer.get("score"), abs=1e-5)
        assert found[key].get("output_tokens") == answer.get("output_tokens")
    return True


def test_sharded_weights_give_the_answers_of_one_process(alone: Path, tiny_model: Path, tmp_path: Path) -> None:
    """With one sample rank 1 has only fillers; of the five that are left rank 0 has two, and answers of other lengths."""
    model, answers = spec(tiny_model, "fsdp=true"), 1 + 3 + 1 + 1 + 3
    first = [ended(process) for process in start_ranks(2, toy(tmp_path, TASKS, "--limit", "1", model=model), TOY_N=N)]
    assert [code for code, _ in first] == [0, 0], first
    assert len(recorded(tmp_path)) == answers
    code, stderr = run_ranks(2, toy(tmp_path, TASKS, model=model), TOY_N=N)
    assert code == 0, stderr
    assert same_answers(recorded(tmp_path), recorded(alone))
    for session, samples_left in zip(sessions(tmp_path), (1, 5), strict=True):
        assert (session["computed"], session["failed"]) == (samples_left * answers, 0)
        assert session["padded"] > 0
        assert any("weights sharded over 2 ranks" in warning for warning in session["warnings"])


def test_a_rank_whose_requests_need_no_pass_joins_the_passes_of_the_others(tiny_model: Path, tmp_path: Path) -> None:
    """Rank 1 has only fillers, and those fit no window: it joins the first pass without work."""
    both = start_ranks(2, toy(tmp_path, "toy_overlong", model=spec(tiny_model, "fsdp=true")), TOY_N="3")
    (code, said), _ = [ended(process, 60) for process in both]
    assert code == 1, said
    assert [bool(row["error"]) for row in samples(tmp_path)["toy_overlong.jsonl"]] == [False, False, True]


def test_a_pass_that_fails_on_one_rank_ends_the_run_on_all(tiny_model: Path, tmp_path: Path) -> None:
    """The others wait in the middle of it: a retry would pair this rank's first layer with their second."""
    command = toy(tmp_path, "toy_gen", model=spec(tiny_model, "fsdp=true", "stumbling"))
    both = start_ranks(2, command, TOY_N="8")
    for code, said in [ended(process, 60) for process in both]:
        assert code != 0 and len(mill_lines(said)) == 1, said


def test_fsdp_without_ranks_is_refused(tiny_model: Path) -> None:
    with pytest.raises(SpecError, match="start with torchrun"):
        open_model(spec(tiny_model, "fsdp=true"))


def test_a_backend_in_lock_step_makes_as_many_batches_on_every_rank(tmp_path: Path) -> None:
    """With one sample rank 1 has only fillers; then rank 0 has fewer left than rank 1. Requests with other decoding options
    are other batches."""
    tasks, model = TASKS, f"stepping[path=s,batch_size=2,steps={tmp_path}/steps]"
    made: list[Counter[str]] = [Counter()]
    for limit in ("1", "6"):
        both = [ended(process) for process in start_ranks(2, toy(tmp_path / "out", tasks, "--limit", limit, model=model))]
        assert [code for code, _ in both] == [0, 0], both
        steps = [Counter(lines(tmp_path / f"steps-{rank}")) for rank in range(2)]
        assert steps[0] == steps[1]
        made.append(steps[0])
    assert made[0] < made[1] < made[2]
    assert run(toy(tmp_path / "alone", tasks, "--limit", "6", model="toy[path=s]"))[0] == 0
    assert recorded(tmp_path / "out") == recorded(tmp_path / "alone")
    assert [bool(session["padded"]) for session in sessions(tmp_path / "out")] == [True, True]
