"""The HF backend against plain transformers, on a tiny random model."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mill.api.errors import ModelError, SpecError, UnknownName
from mill.api.message import Message
from mill.api.model import run_requests
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request, generation_options
from mill.cli.main import run
from mill.models import files
from mill.models.hf import checkpoint
from mill.models.hf.checkpoint import Checkpoint
from mill.models.hf.model import TransformersModel
from mill.models.hf.startup import Startup
from mill.models.spec.open import open_model
from mill.models.tokens.rows import make_pair
from tests.waiting import DEADLINE_S

PAIRS = [
    ("the quick brown", " fox"),
    ("what is the answer ?", " it is 42"),
    ("the", " dog . what is the answer"),
    ("it is 42 , 7 or ", "1234"),
    ("", "yes no"),
]
PROMPTS = ["the quick", "what is the answer ? it is", "A B C", "yes"]


def hf(folder: Path, **arguments: Any) -> TransformersModel:
    return TransformersModel(str(folder), **{"dtype": "float32", "device_map": "cpu", **arguments})


def pairs(*pairs: tuple[str, str]) -> list[Request]:
    return [Request(LOGLIKELIHOOD, context=context, continuation=continuation) for context, continuation in pairs]


def prompts(*texts: str, **options: Any) -> list[Request]:
    return [Request(GENERATE, context=text, options=generation_options(**options)) for text in texts]


def reference(folder: Path, ids: list[int], n_context: int) -> tuple[float, bool]:
    """One sequence through plain transformers, without batch or padding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    target = torch.tensor(ids[1:])
    found = logits.gather(1, target[:, None])[:, 0][n_context - 1 :]
    greedy = (logits.argmax(-1) == target)[n_context - 1 :].all()
    return float(found.double().sum()), bool(greedy)


@pytest.mark.parametrize("batch_size", [None, 1, 2, 5])
def test_loglikelihoods_equal_plain_transformers_in_any_batch(tiny_model: Path, batch_size: int | None) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    answers = hf(tiny_model, batch_size=batch_size).loglikelihood(pairs(*PAIRS))
    for (context, continuation), answer in zip(PAIRS, answers, strict=True):
        ids = tokenizer(context + continuation)["input_ids"]
        n_context = len(tokenizer(context.rstrip())["input_ids"])
        score, greedy = reference(tiny_model, ids, n_context)
        assert answer.score == pytest.approx(score, abs=2e-5)
        assert answer.is_greedy is greedy
        assert answer.output_tokens == len(ids) - n_context


def test_the_argmax_continuation_is_greedy(tiny_model: Path) -> None:
    model = hf(tiny_model)
    contexts = ["the quick", "A", "what is", "it is 42 ,", "yes", "fox jumps", "no A B", "lazy dog"]
    answers = model.generate_until(prompts(*contexts, max_gen_toks=1))
    # A random model may answer with a byte of a character, which does not survive decoding; take one that does.
    whole = []
    for context, answer in zip(contexts, answers, strict=True):
        assert answer.text is not None
        if answer.text.strip("\ufffd "):
            whole.append((context, answer.text))
    context, text = whole[0]
    likeliest, other = model.loglikelihood(pairs((context, text), (context, " zzz")))
    assert likeliest.is_greedy and not other.is_greedy


def test_bos_is_added_once_if_the_tokenizer_has_it(tiny_model: Path, tiny_model_without_bos: Path) -> None:
    with_bos, without = hf(tiny_model).tokens, hf(tiny_model_without_bos).tokens
    assert with_bos.encode("the dog")[:2].count(0) == 1
    assert with_bos.encode("<s>the dog") == with_bos.encode("the dog")
    assert 0 not in without.encode("the dog")
    assert hf(tiny_model_without_bos, add_bos_token=True).tokens.encode("the dog")[0] == 0


def test_an_empty_context_is_bos_alone(tiny_model: Path, tiny_model_without_bos: Path) -> None:
    for folder in (tiny_model, tiny_model_without_bos):
        (pair,) = hf(folder).tokens.pairs(pairs(("", "the dog")))
        assert (pair.ids[0], pair.n_context, pair.ids.count(0)) == (0, 1, 1)


def test_spaces_at_the_end_of_a_context_belong_to_the_continuation(tiny_model: Path) -> None:
    tokens = hf(tiny_model).tokens
    assert tokens.pairs(pairs(("it is ", "42"))) == tokens.pairs(pairs(("it is", " 42")))


def test_a_long_context_is_truncated_on_the_left_and_counted(tiny_model: Path) -> None:
    context = "the dog " * 40
    (answer,) = hf(tiny_model, max_context_length=20).loglikelihood(pairs((context, "fox")))
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ids = tokenizer(context + "fox")["input_ids"]
    n_context = len(tokenizer(context.rstrip())["input_ids"])
    cut = len(ids) - 1 - 20
    assert answer.truncated_tokens == cut
    assert answer.score == pytest.approx(reference(tiny_model, ids[cut:], n_context - cut)[0], abs=2e-5)


def test_a_continuation_longer_than_the_context_is_an_error_of_that_request_alone(tiny_model: Path) -> None:
    long, short = hf(tiny_model, max_context_length=8).loglikelihood(pairs(("the", " dog" * 30), ("the", " dog")))
    assert "longer than the context of 8 tokens" in (long.error or "")
    assert short.score is not None


def test_rolling_loglikelihood_is_the_loss_of_transformers_on_one_window(tiny_model: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog . what is the answer ?"
    (answer,) = hf(tiny_model).loglikelihood_rolling([Request(ROLLING, context=text)])
    ids = torch.tensor([AutoTokenizer.from_pretrained(tiny_model)(text)["input_ids"]])
    with torch.inference_mode():
        loss = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)(ids, labels=ids).loss
    n = ids.shape[1] - 1
    assert answer.prompt_tokens == n
    assert -(answer.score or 0) / n == pytest.approx(float(loss), abs=1e-5)
    assert math.exp(-(answer.score or 0) / n) == pytest.approx(math.exp(float(loss)), rel=1e-5)


def test_windows_score_every_token_once_and_the_last_one_has_full_context(tiny_model: Path) -> None:
    model = hf(tiny_model, max_context_length=16)
    text = "the quick brown fox jumps over the lazy dog . " * 3
    rows = model.tokens.windows(Request(ROLLING, context=text))
    ids = model.tokens.encode(text)
    assert [token for row in rows for token in row.spans[0].tokens] == ids[1:]
    assert [len(row.ids) for row in rows] == [16] * len(rows)
    assert len(rows) == math.ceil((len(ids) - 1) / 16)
    (answer,) = model.loglikelihood_rolling([Request(ROLLING, context=text)])
    parts = [reference(tiny_model, [*row.ids, row.spans[0].tokens[-1]], row.spans[0].start + 1)[0] for row in rows]
    assert answer.score == pytest.approx(sum(parts), abs=1e-4)


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_greedy_answers_equal_plain_generate(tiny_model: Path, batch_size: int | None) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    answers = hf(tiny_model, batch_size=batch_size).generate_until(prompts(*PROMPTS, max_gen_toks=12))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        out = plain.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=1)[0, ids.shape[1] :]
        assert answer.text == tokenizer.decode(out, skip_special_tokens=True)


def test_an_answer_ends_before_its_stop_string_and_has_a_finish_reason(tiny_model: Path) -> None:
    model = hf(tiny_model)
    (free,) = model.generate_until(prompts("the quick", max_gen_toks=24))
    assert free.finish_reason == "length" and free.text and len(free.text) > 6
    stop = free.text[4:7]
    (stopped,) = model.generate_until(prompts("the quick", max_gen_toks=24, until=[stop]))
    assert stopped.text == free.text[: free.text.find(stop)]
    assert stopped.finish_reason == "stop"
    assert (stopped.output_tokens or 0) < (free.output_tokens or 0)


def test_the_models_generation_defaults_do_not_reach_a_greedy_answer(tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "penalized"))
    config = json.loads((folder / "generation_config.json").read_text())
    config |= {"repetition_penalty": 5.0, "do_sample": True, "temperature": 3.0}
    (folder / "generation_config.json").write_text(json.dumps(config))
    plain, penalized = (hf(path).generate_until(prompts("the", max_gen_toks=16))[0] for path in (tiny_model, folder))
    assert plain.text == penalized.text


def test_a_sampled_answer_depends_on_seed_and_draw_but_not_on_its_batch(tiny_model: Path) -> None:
    model = hf(tiny_model)
    (request,) = prompts("the quick", max_gen_toks=12, temperature=1.0, seed=3)
    clones = Request(GENERATE, request.context, options=request.options, repeats=4).clones()
    together = [answer.text for answer in model.generate_until(clones)]
    alone = [model.generate_until([clone])[0].text for clone in clones]
    assert together == alone
    assert len(set(together)) > 1
    (other_seed,) = prompts("the quick", max_gen_toks=12, temperature=1.0, seed=4)
    assert model.generate_until([other_seed])[0].text != together[0]


def test_samples_follow_the_models_distribution(tiny_model: Path) -> None:
    from scipy.stats import chisquare  # type: ignore[import-untyped]

    model = hf(tiny_model, batch_size=64)
    n = 600
    draws = Request(
        GENERATE, "the quick", options=generation_options(max_gen_toks=1, temperature=1.0, top_k=4), repeats=n
    ).clones()
    seen = Counter(answer.text for answer in model.generate_until(draws))
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    with torch.inference_mode():
        logits = model.model(tokenizer("the quick", return_tensors="pt")["input_ids"]).logits[0, -1]
    best = logits.topk(4)
    expected: Counter[str] = Counter()  # two tokens may have the same text
    for token, p in zip(best.indices.tolist(), best.values.double().softmax(0).tolist(), strict=True):
        expected[tokenizer.decode([token])] += p * n
    assert set(seen) <= set(expected)
    assert chisquare([seen[text] for text in expected], list(expected.values())).pvalue > 1e-4


def test_messages_go_through_the_chat_template(tiny_model: Path) -> None:
    tokens = hf(tiny_model).tokens
    dialog = (Message("system", "be brief"), Message("user", "yes ?"))
    assert tokens.render(dialog) == "<|system|>be brief</s><|user|>yes ?</s><|assistant|>"
    assert hf(tiny_model, use_chat_template=True).tokens.render("yes ?") == "<|user|>yes ?</s><|assistant|>"
    assert tokens.render("yes ?") == "yes ?"


def test_a_dialog_without_a_chat_template_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    model = hf(folder)
    request = Request(MULTI_ROUND, context=(Message("user", "hi"),), options=generation_options(max_gen_toks=2))
    with pytest.raises(ModelError, match="no chat template"):
        model.generate_until_multi_round([request])


def test_max_gen_toks_that_leaves_no_room_for_a_prompt_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match=r"of 64 tokens leaves no room.*context of 32 tokens: lower --max_tokens"):
        hf(tiny_model, max_context_length=32).generate_until(prompts("the", max_gen_toks=64))


def test_identity_is_the_weights_content_and_what_reaches_the_logits(tiny_model: Path, tmp_path: Path) -> None:
    base = hf(tiny_model).identity()
    copied = Path(shutil.copytree(tiny_model, tmp_path / "elsewhere"))
    assert hf(copied, batch_size=3).identity() == base
    assert hf(tiny_model, dtype="float16").identity() != base
    assert hf(tiny_model, use_chat_template=True).identity() != base
    weights = copied / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    assert hf(copied).identity() != base


def test_clean_frees_the_weights_and_the_next_request_loads_them_again(tiny_model: Path) -> None:
    model = hf(tiny_model)
    before = model.loglikelihood(pairs(*PAIRS))[0].score
    model.clean()
    assert model._model is None
    assert model.loglikelihood(pairs(*PAIRS))[0].score == before


def test_a_cpu_without_bfloat16_is_reported_once(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "cpu_has_bfloat16", lambda: False)
    for _ in range(2):
        assert hf(tiny_model, dtype="bfloat16").loglikelihood(pairs(("the", " dog")))[0].score is not None
    assert caplog.text.count("dtype=float32 is several times faster") == 1
    caplog.clear()
    assert hf(tiny_model, dtype="float32").model.dtype == torch.float32
    assert "bfloat16" not in caplog.text


def test_a_cpu_without_bfloat16_uses_float32_with_a_warning_unless_a_dtype_is_given(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mill.models.hf.checkpoint.cpu_has_bfloat16", lambda: False)
    model = TransformersModel(str(tiny_model), device_map="cpu")
    assert (model.identity()["dtype"], model.model.dtype) == ("float32", torch.float32)
    assert caplog.text.count("so dtype=float32 is taken") == 1
    assert any("dtype=float32 is taken" in warning for warning in model.warnings())
    given = hf(tiny_model, dtype="bfloat16")
    assert (given.identity()["dtype"], given.model.dtype) == ("bfloat16", torch.bfloat16)
    assert not any("float32 is taken" in warning for warning in given.warnings())


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("hf[path=./missing.gguf]", ModelError, "missing.gguf does not exist"),
        ("hf[path=org/name,dtype=float23]", UnknownName, "did you mean float32"),
        ("hf[path=org/name,batch_size=0]", SpecError, "at least 1"),
    ],
)
def test_bad_arguments_are_refused_when_the_model_is_opened(spec: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_model(spec)


def test_a_model_that_the_hub_does_not_have_is_one_line() -> None:
    reason = "no such local folder, and it is not in the hub's cache, and HF_HUB_OFFLINE is set: unset it"
    with pytest.raises(ModelError, match=f"cannot load the config of nobody/nothing: {reason}"):
        open_model("nobody/nothing").identity()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_hidden_layers", 10**9, "num_hidden_layers of {} is 1000000000, not a number from 0 to 10,000"),
        ("num_hidden_layers", -1, "num_hidden_layers of {} is -1, not"),
        ("sliding_window", "x", "sliding_window of {} is 'x', not a whole number"),
        ("auto_map", 3, "cannot load the config of {}: TypeError"),
    ],
)
def test_values_of_a_config_that_transformers_does_not_check(
    tiny_model: Path, tmp_path: Path, name: str, value: Any, message: str
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(ModelError, match=message.format("changed")):
        _ = hf(folder).checkpoint.config


def test_a_folder_without_config_and_a_damaged_one_are_one_line(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"empty has no config\.json"):
        hf(tmp_path / "empty")
    folder = Path(shutil.copytree(tiny_model, tmp_path / "damaged"))
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="cannot load the weights of damaged"):
        hf(folder).loglikelihood(pairs(("the", " dog")))


@pytest.mark.parametrize("trust", [True, False])
def test_identity_reads_a_hub_config_with_the_models_trust_remote_code(monkeypatch: pytest.MonkeyPatch, trust: bool) -> None:
    received: list[bool] = []

    def load_config(source: Any, *, trust_remote_code: bool) -> Any:
        received.append(trust_remote_code)
        return type("Config", (), {"_commit_hash": "abc", "to_dict": dict})()

    monkeypatch.setattr(files, "load_config", load_config)
    identity = TransformersModel("org/name", trust_remote_code=trust).identity()
    assert (identity["weights"], set(received)) == ("org/name@abc", {trust})


def test_a_folder_without_weights_is_refused_before_anything_is_loaded(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ModelError, match="bare has no weights"):
        open_model(f"hf[path={tmp_path / 'bare'}]")


KNOWN = """
import sys
from mill.cli.main import run
assert run(sys.argv[1:]) == 0
print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""


def test_a_run_whose_responses_are_known_imports_no_framework(tiny_model: Path, tmp_path: Path) -> None:
    toy = Path(__file__).parents[2] / "toy.py"
    words = ["eval", f"hf[path={tiny_model},dtype=float32]", "toy_choice", "--limit", "3", "--task_paths", str(toy)]
    words += ["--output_dir", str(tmp_path), "--quiet"]
    assert run(words) == 0
    known = subprocess.run([sys.executable, "-c", KNOWN, *words], capture_output=True, text=True, check=True).stdout
    assert known.splitlines()[-1] == "[]"


@pytest.fixture
def loads_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing the weights takes until a thread loads them."""
    began, weights = threading.Event(), Startup.weights

    def noted(startup: Startup) -> Any:
        began.set()
        return weights(startup)

    def fingerprint(_: Checkpoint) -> str:
        assert began.wait(DEADLINE_S), "no thread loads the weights"
        return "digest"

    monkeypatch.setattr("mill.models.hf.checkpoint.LOADED_IN_A_THREAD", ("cpu",))
    monkeypatch.setattr(Startup, "weights", noted)
    monkeypatch.setattr(Checkpoint, "fingerprint", fingerprint)


@pytest.mark.usefixtures("loads_meanwhile")
def test_weights_that_are_hashed_for_the_first_time_load_meanwhile(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILL_CACHE", str(tmp_path))
    early, plain = hf(tiny_model), hf(tiny_model)
    requests = pairs(*PAIRS)
    early.ready()
    early.startup.expect(requests)
    assert early.identity()["weights"] == "digest"
    assert early.startup._weights is not None and early.startup.ahead.scored is not None
    early.load()
    assert early.startup._weights is None and early._model is not None and "fast_path" in early.__dict__
    found = dict(run_requests(early, LOGLIKELIHOOD, requests[1:]))  # the first one is recorded
    assert [found[one].score for one in requests[1:]] == [one.score for one in plain.loglikelihood(requests[1:])]


@pytest.mark.usefixtures("loads_meanwhile")
def test_weights_that_loaded_for_nothing_are_freed(tiny_model: Path) -> None:
    model = hf(tiny_model)
    model.ready()
    model.startup.expect([])
    model.identity()
    assert model.startup._weights is not None
    model.clean()
    assert model.startup._weights is None and model._model is None and "fast_path" not in model.__dict__


@pytest.mark.usefixtures("loads_meanwhile")
def test_weights_that_failed_to_load_meanwhile_are_an_error_of_loading(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any, **named: Any) -> None:
        raise ModelError("cannot load the weights")

    monkeypatch.setattr("mill.models.hf.checkpoint.Checkpoint.load", fails)
    model = hf(tiny_model)
    model.ready()
    model.startup.expect([])
    assert model.identity()["weights"] == "digest"
    with pytest.raises(ModelError, match="cannot load the weights"):
        model.load()
    model.clean()


def test_the_tokens_of_an_answer_that_a_stop_string_ends_do_not_depend_on_its_batch(tiny_model: Path) -> None:
    model = TransformersModel(str(tiny_model), dtype="float32", device_map="cpu", exact=True)
    options = generation_options(max_gen_toks=12, until=["e", "A", "t", "o"])
    requests = [Request(GENERATE, text, options=options) for text in ("the quick brown", "A B", "yes no 42", "dog fox", "7")]
    together = model.generate_until(requests)
    alone = [model.generate_until([request])[0] for request in requests]
    assert [(one.text, one.output_tokens) for one in together] == [(one.text, one.output_tokens) for one in alone]
    assert {one.finish_reason for one in together} == {"stop", "length"}


def edited(model: Path, tmp_path: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """A copy of a model with other weights."""
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(model, tmp_path / "edited"))
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_weights_that_no_file_has_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    """transformers would fill them with random numbers."""
    name = "model.layers.0.mlp.up_proj.weight"
    model = hf(edited(tiny_model, tmp_path, lambda weights: weights.pop(name)))
    with pytest.raises(ModelError, match=f"none of its files has {name}$"):
        model.load()


def test_weights_of_another_shape_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    model = hf(edited(tiny_model, tmp_path, lambda weights: weights.update({name: weights[name][:3].clone()})))
    with pytest.raises(ModelError, match=rf"{name} has the shape \(3, \d+\) in its files and"):
        model.load()


def test_weights_that_the_model_does_not_use_are_reported(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr("mill.models.hf.checkpoint.warn", found.append)
    hf(edited(tiny_model, tmp_path, lambda weights: weights.update(more=torch.zeros(2)))).load()
    assert found == ["edited: 1 tensors of its files are not used by the model, such as more"]


@pytest.mark.parametrize("change", ["overwritten", "replaced", "removed"])
def test_files_that_change_while_the_model_computes_change_no_response(
    tiny_model: Path, tmp_path: Path, change: str
) -> None:
    """transformers maps weights on a CPU from their files."""
    folder = edited(tiny_model, tmp_path, lambda weights: None)
    other = edited(tiny_model, tmp_path / "other", lambda weights: weights.update({one: -weights[one] for one in weights}))
    requests, file, changed = pairs(*PAIRS), folder / "model.safetensors", other / "model.safetensors"
    expected = {one: response.score for one, response in zip(requests, hf(folder).loglikelihood(requests), strict=True)}
    stream = run_requests(hf(folder), LOGLIKELIHOOD, requests)
    found = dict([next(stream)])
    if change == "overwritten":
        with file.open("r+b") as handle:
            handle.write(changed.read_bytes())
    elif change == "replaced":
        changed.replace(file)
    else:
        file.unlink()
    found |= dict(stream)
    assert {one: response.score for one, response in found.items()} == expected


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_files_that_change_before_they_are_loaded_are_refused(
    tiny_model: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILL_CACHE", str(tmp_path / "cache"))
    folder = edited(tiny_model, tmp_path, lambda weights: None)
    model = hf(folder)
    model.ready()
    model.identity()
    other = edited(
        tiny_model, tmp_path / "other", lambda weights: weights.update({one: weights[one] * 2 for one in weights})
    )
    (other / "config.json").write_text((folder / "config.json").read_text() + " ")
    shutil.copy(other / name, folder / name)
    with pytest.raises(ModelError, match="changed while the model was loaded"):
        model.load()
    again = hf(folder)
    again.ready()
    again.identity()
    again.load()


@pytest.mark.parametrize(("value", "window"), [(-5, None), (0, None), (-1, 64), (32, 32), (100, 64)])
def test_the_context_is_limited_by_positions_that_make_sense(
    tiny_model: Path, tmp_path: Path, value: int, window: int | None
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "positions"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": value}))
    model = hf(folder, max_context_length=64)
    if window is None:
        with pytest.raises(
            ModelError, match=f"max_position_embeddings of positions is {value}, not a positive whole number"
        ):
            _ = model.tokens
    else:
        assert model.tokens.window == window


def test_a_lone_surrogate_is_named(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match=re.escape(r"a text has a lone surrogate, which no tokenizer takes: 'the \ud800'")):
        hf(tiny_model).loglikelihood(pairs(("the quick", " brown"), ("the \ud800", " fox")))


def test_a_damaged_generation_config_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """transformers ignores it, and with it the tokens that end an answer."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "damaged"))
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json is not valid JSON"):
        hf(folder)


def test_a_continuation_without_tokens_has_no_score(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer may drop characters which are not in its vocabulary."""
    model = hf(tiny_model)
    dropped = make_pair([], 0, window=64, prefix=model.tokens.prefix)
    monkeypatch.setattr(model.tokens, "pairs", lambda requests: [dropped for _ in requests])
    (answer,) = model.loglikelihood(pairs(("", "\u4e2d")))
    assert answer.error == "the continuation has no tokens in the vocabulary of this model"


@pytest.mark.parametrize(
    ("value", "exact", "options"),
    [
        (math.nan, False, {}),
        (math.inf, False, {"temperature": 1.0}),
        (math.nan, True, {"logprobs": 2}),
        (math.inf, True, {}),
    ],
)
def test_logits_that_are_not_numbers_are_no_answer(
    tiny_model: Path, tmp_path: Path, exact: bool, options: dict[str, Any], value: float
) -> None:
    def break_token(weights: dict[str, torch.Tensor]) -> None:
        weights[next(name for name in weights if "embed_tokens" in name)][7] = value  # of one token of the vocabulary

    model = hf(edited(tiny_model, tmp_path, break_token), exact=exact)
    token = model.tokens.tokenizer.decode([7])
    with_token, without = model.generate_until(prompts(f"the {token}", "the quick", max_gen_toks=3, **options))
    assert "not numbers" in (with_token.error or "") and with_token.text is None
    assert without.error is None or "not numbers" in without.error  # where the head has that weight, too
