"""Tokens from tokenizer.json alone: those of transformers, or none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mill.api.message import Message
from mill.api.model import InputTokens, run_requests
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.models.hf.checkpoint import read_tokens
from mill.models.hf.model import TransformersModel
from mill.models.tokens.tokenizer import Tokens

TEXTS = ["", " ", "the quick\n\nbrown fox", "日本語 🎉", "<s> the", "a</s>b", "42 , 7\n" * 30, "x\u0000y\r\n"]


@pytest.mark.parametrize("fixture", ["tiny_model", "tiny_model_without_bos"])
@pytest.mark.parametrize("add_bos", [None, True, False])
def test_tokens_are_those_of_transformers(fixture: str, add_bos: bool | None, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(fixture)
    found = read_tokens(folder, most=64, add_bos=add_bos)
    wanted = Tokens(AutoTokenizer.from_pretrained(folder), window=64, add_bos=add_bos)
    assert found is not None
    assert (found.bos, found.prefix, found.adds_bos, found.window) == (wanted.bos, wanted.prefix, wanted.adds_bos, 64)
    assert found.encode_all(TEXTS) == wanted.encode_all(TEXTS)


def counted() -> list[Request]:
    choices = [Request(LOGLIKELIHOOD, f"{text}\nAnswer:", f" {letter}") for text in TEXTS for letter in "ABCD"]
    return [*choices, *(Request(GENERATE, text, options=generation_options()) for text in TEXTS)]


@pytest.mark.parametrize("fixture", ["tiny_model", "tiny_model_without_bos"])
def test_counts_are_the_lengths_of_whole_texts(fixture: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(fixture)
    tokenizer, bos = AutoTokenizer.from_pretrained(folder), fixture == "tiny_model"
    lengths = []
    for one in counted():
        ids = tokenizer(one.text + one.continuation, add_special_tokens=False)["input_ids"]
        lengths.append(len(ids) + (bos and ids[:1] != [tokenizer.bos_token_id]))
    model = TransformersModel(str(folder))
    groups = [counted()[:9], [], counted()[9:]]
    assert model.input_tokens(groups) == [InputTokens(sum(lengths[:9])), InputTokens(0), InputTokens(sum(lengths[9:]))]
    assert model.input_tokens([counted()]) == [InputTokens(sum(lengths))]
    assert "tokens" not in model.__dict__
    _ = model.tokens
    assert model.input_tokens([counted()]) == [InputTokens(sum(lengths))]


def test_what_does_not_fit_the_context_is_not_counted(tiny_model: Path) -> None:
    """As much as the model computes: of a scored request one token more than the context has, of a prompt what an answer
    leaves."""
    model = TransformersModel(str(tiny_model), dtype="float32", device_map="cpu", max_context_length=16)
    text = "the quick brown fox jumps over the lazy dog . " * 3
    scored = Request(LOGLIKELIHOOD, text, " it is 42")
    asked = Request(GENERATE, text, options=generation_options(max_gen_toks=6))
    short = Request(LOGLIKELIHOOD, "the", " dog")
    (counted,) = model.input_tokens([[scored, asked, short]])
    computed = [
        response
        for kind in (LOGLIKELIHOOD, GENERATE)
        for _, response in run_requests(model, kind, [one for one in (scored, asked, short) if one.kind == kind])
    ]
    assert counted is not None and counted.truncated == 2 == sum(one.truncated_tokens > 0 for one in computed)
    given = sum(response.output_tokens or 0 for response in computed if response.score is not None)
    assert counted.count == given + sum(response.prompt_tokens or 0 for response in computed)


def test_messages_are_counted_through_the_chat_template(tiny_model: Path) -> None:
    model = TransformersModel(str(tiny_model))
    model.tokens.tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    asked = Request(GENERATE, (Message("user", "the fox"),), options=generation_options())
    assert model.input_tokens([[asked]]) == [InputTokens(len(model.tokens.encode("[the fox]")))]


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **values}))


EDITS: dict[str, tuple[str, dict[str, Any]]] = {
    "another class": ("tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"}),
    "a prefix space": ("tokenizer_config.json", {"add_prefix_space": True}),
    "a named token": ("tokenizer_config.json", {"pad_token": "<new>"}),
    "an added token": ("tokenizer_config.json", {"added_tokens_decoder": {"900": {"content": "<new>"}}}),
    "special tokens": ("tokenizer_config.json", {"extra_special_tokens": {"image_token": "<new>"}}),
    "listed tokens": ("tokenizer_config.json", {"additional_special_tokens": ["<new>"]}),
    "split tokens": ("tokenizer_config.json", {"split_special_tokens": True}),
    "something new": ("tokenizer_config.json", {"what_a_later_version_may_have": 1}),
    "mapped tokens": ("special_tokens_map.json", {"mask_token": {"content": "<new>"}}),
    "a file of tokens": ("added_tokens.json", {"<new>": 900}),
    "no positions": ("config.json", {"max_position_embeddings": None}),
    "code": ("config.json", {"auto_map": {"AutoConfig": "x.y"}}),
    "damage": ("tokenizer.json", {"model": None}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_tokenizer_that_transformers_would_change_is_left_to_it(tiny_model: Path, tmp_path: Path, edit: str) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    assert read_tokens(folder, most=64, add_bos=None) is not None
    name, values = EDITS[edit]
    change(folder / name, **values)
    assert read_tokens(folder, most=64, add_bos=None) is None


def test_truncation_and_padding_of_the_file_have_no_effect(tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    padding: dict[str, Any] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=truncation, padding=padding)
    found = read_tokens(folder, most=64, add_bos=None)
    wanted = read_tokens(tiny_model, most=64, add_bos=None)
    assert found is not None and wanted is not None
    assert found.encode_all(TEXTS) == wanted.encode_all(TEXTS)


def test_a_dry_run_needs_neither_torch_nor_transformers(tiny_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(40)))
    code = (
        "import sys; from mill.cli.main import run; code = run(sys.argv[1:]); "
        "print([name for name in ('torch', 'transformers') if name in sys.modules]); sys.exit(code)"
    )
    spec = f"hf[path={tiny_model},dtype=float32]"
    command = [sys.executable, "-c", code, "eval", spec, str(data), "--dry_run", "--output_dir", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert " input and " in done.stdout
