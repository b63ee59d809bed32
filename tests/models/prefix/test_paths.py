"""Which path computes a request is decided by the model and by memory alone, and is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mill.api.errors import ModelBroken
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request, generation_options
from mill.api.task import RenderSettings
from mill.models.hf.model import TransformersModel
from mill.models.prefix import proof, scoring
from mill.models.prefix.attention import Pack
from mill.models.prefix.slots import DecodingStep
from mill.models.prefix.trie import Unsupported
from mill.report.scores import print_plan
from mill.tasks.load import load_files, select
from tests.models.trained import saved
from tests.plans import prepare

ODD = str(Path(__file__).parents[2] / "odd.py")
PREFIX = "the quick brown fox jumps over the lazy dog . what is the answer ? it is 42 , 7 or 1234 ; yes no "


def opened(folder: Path, **arguments: Any) -> TransformersModel:
    return TransformersModel(str(folder), dtype="float32", device_map="cpu", **arguments)


def paths_of(model: TransformersModel) -> dict[str, str]:
    """Without how they were verified."""
    return {stage: path.partition("; verified: ")[0] for stage, path in model.execution_paths().items()}


def choices(contexts: int = 3) -> list[Request]:
    return [Request(LOGLIKELIHOOD, f"{PREFIX}{n}", f" {choice}") for n in range(contexts) for choice in ("yes", "no A")]


def prompts(count: int = 3) -> list[Request]:
    return [Request(GENERATE, f"{PREFIX}{n}", options=generation_options(max_gen_toks=4)) for n in range(count)]


def test_the_fast_paths_are_reported_with_their_numbers_of_requests(tiny_model: Path) -> None:
    model = opened(tiny_model)
    assert model.execution_paths() == {}
    model.loglikelihood(choices())
    model.generate_until(prompts())
    model.loglikelihood_rolling([Request(ROLLING, PREFIX)])
    model.clean()
    found = model.execution_paths()
    assert found["scoring"].startswith("packed: 6 requests; verified: 2 rows, largest difference ")
    assert found["decoding"].startswith("continuous: 3 requests; verified: 2 rows, largest difference ")
    assert found["rolling"] == "padded: 1 request"


def test_exact_computes_every_row_by_itself(tiny_model: Path) -> None:
    model = opened(tiny_model, exact=True)
    assert model.planned_paths() == {"scoring": "row by row (exact=true)", "decoding": "row by row (exact=true)"}
    model.loglikelihood(choices())
    model.generate_until(prompts())
    assert model.execution_paths() == {
        "scoring": "row by row (exact=true): 6 requests",
        "decoding": "row by row (exact=true): 3 requests",
    }


def test_a_dry_run_and_the_manifest_say_which_path_runs_and_why(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    load_files((ODD,))

    def reported(backend: str) -> dict[str, str]:
        spec = f"{backend}[path={tiny_model},dtype=float32,device_map=cpu]"
        run = prepare(spec, select(["toy_choice"]), RenderSettings(), output_dir=tmp_path, limit=2)
        print_plan(run)
        outcome = run.execute(quiet=True)
        assert (outcome.tally.failed, outcome.tally.computed) == (0, 6)
        (session,) = json.loads((outcome.folder.path / "manifest.json").read_text())["sessions"]
        found: dict[str, str] = session["paths"]
        return found

    assert reported("hf")["scoring"].startswith("packed: 6 requests; verified: 2 rows")
    assert "prefix sharing is off" not in caplog.text
    printed = capsys.readouterr().out
    assert "batching: scoring packed, shared prefixes once (if the model supports it)\n" in printed  # nothing is generated
    assert reported("recurrent") == {"scoring": f"row by row ({proof.STATE}): 6 requests"}
    assert "prefix sharing is off: its layers move information between tokens without attention" in caplog.text


UNSUPPORTED = Unsupported("its attention takes sinks")
BROKEN = TypeError("'NoneType' object is not subscriptable")


@pytest.mark.parametrize(
    ("part", "error", "reason"),
    [
        (Pack, UNSUPPORTED, "its attention takes sinks"),
        (Pack, BROKEN, f"a pass failed: TypeError: {BROKEN}"),
        (DecodingStep, BROKEN, f"a pass failed: TypeError: {BROKEN}"),
    ],
)
def test_a_fast_path_that_fails_leaves_its_requests_to_the_plain_one(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, part: Any, error: Exception, reason: str
) -> None:
    def failing(*_: Any) -> Any:
        raise error

    plain, model = opened(tiny_model, exact=True), opened(tiny_model)
    assert not model.fast_path.disabled
    monkeypatch.setattr(part, "attend", failing)
    if part is Pack:
        found, wanted = (one.loglikelihood(choices()) for one in (model, plain))
        assert [answer.score for answer in found] == pytest.approx([answer.score for answer in wanted], abs=1e-4)
    else:
        found, wanted = (one.generate_until(prompts()) for one in (model, plain))
        assert [answer.text for answer in found] == [answer.text for answer in wanted]
    assert not any(answer.failed for answer in found)
    assert model.fast_path.disabled
    ((path),) = model.execution_paths().values()
    assert f"({reason}): " in path


@pytest.mark.parametrize("kind", [LOGLIKELIHOOD, GENERATE])
def test_a_model_that_fails_on_both_paths_is_broken(tiny_model: Path, kind: str) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    model = opened(tiny_model)
    model.model.get_decoder().register_forward_pre_hook(broken)
    with pytest.raises(ModelBroken, match="failed on each of the first 8 requests: RuntimeError: no such kernel"):
        if kind == LOGLIKELIHOOD:
            model.loglikelihood([Request(LOGLIKELIHOOD, f"{n}", " yes") for n in range(20)])
        else:
            model.generate_until(prompts(20))


def test_out_of_memory_in_scoring_switches_the_rows_that_do_not_fit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [*choices(), Request(LOGLIKELIHOOD, "dog", " yes")]
    model = opened(tiny_model)
    wanted = [answer.score for answer in model.loglikelihood(requests)]
    real = scoring.forward

    def short_of_memory(network: Any, pack: Any, positions: Any, tokens: Any) -> Any:
        if len(pack.ids) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(network, pack, positions, tokens)

    model = opened(tiny_model)
    assert not model.fast_path.disabled  # probed before memory is short
    monkeypatch.setattr(scoring, "forward", short_of_memory)
    assert [answer.score for answer in model.loglikelihood(requests)] == pytest.approx(wanted, abs=1e-4)
    assert paths_of(model) == {"scoring": "padded (out of memory): 6 requests; packed: 1 request"}
    assert not model.fast_path.disabled


def test_out_of_memory_in_decoding_switches_to_plain_batches(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(tiny_model)
    wanted = [answer.text for answer in opened(tiny_model, exact=True).generate_until(prompts())]

    def short_of_memory(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(DecodingStep, "attend", short_of_memory)
    assert [answer.text for answer in model.generate_until(prompts())] == wanted
    assert model.execution_paths() == {"decoding": "plain batches (out of memory): 3 requests"}


MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
SPARSE = {
    **MLA,
    **{"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    **{"first_k_dense_replace": 1, "moe_intermediate_size": 32, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
}
MATFORMER = {"head_dim": 16, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 4}


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("deepseek_v32", SPARSE),  # whose sparse attention fails on packed rows
        ("gemma3n_text", {**MATFORMER, "intermediate_size": [64, 64], "vocab_size_per_layer_input": 300}),
        (
            "gemma4_text",
            {"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        ),
    ],
)
def test_sizes_that_vary_and_passes_that_fail_are_no_errors(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    folder = str(saved(family, config, tmp_path, "float32"))
    fast, plain = (TransformersModel(folder, dtype="float32", device_map="cpu", exact=exact) for exact in (False, True))
    found, wanted = (model.loglikelihood(choices()) for model in (fast, plain))
    assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=1e-3)
    texts, wanted_texts = (model.generate_until(prompts()) for model in (fast, plain))
    assert [one.failed for one in texts] == [one.failed for one in wanted_texts] == [False] * 3
