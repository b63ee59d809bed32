"""A run file is checked against the option definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mill.api.errors import MillError, UnknownName
from mill.cli.eval import command
from mill.options.definitions import EvalOptions, read_run_file
from mill.options.option import options_of, read_all, shown


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "run.yaml").write_text(text)
    return read_run_file(str(tmp_path / "run.yaml"))


# Of each type of value the options that have it, what is refused and with which words, and what is read.
REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...], str, dict[str, Any]]] = {
    "flag": (
        ("same_shots", "apply_chat_template", "dry_run"),
        ('"false"', '"no"', "0", "1", "[]", "1.5"),
        "must be true or false, not ",
        {"false": False, "yes": True},  # which YAML reads as true
    ),
    "whole number": (
        ("n_shots", "repeats", "seed", "workers"),
        ("true", "1.5", ".nan", ".inf", "'3'", "{}", "2020-01-01"),
        "must be a whole number .*, not ",
        {"3": 3},
    ),
    "below the range": (("n_shots", "wait"), ("-1",), "must be a .*number.*, not -1", {"2": 2}),
    "number": (
        ("wait",),
        (".nan", ".inf", "-.inf", "true", '"5"', "[1]", "1" + "0" * 400),
        "",
        {"2": 2.0},
    ),
    "limit": (
        ("limit", "sample"),
        (".inf", ".nan", "0", "-3", "1.5", "true", "[]", '""', "few", '"5"', '"0.5"'),
        "",
        {"5": 5, "0.5": 0.5, "1.0": 1.0},
    ),
    "batch size": (("batch_size",), ("0", "-1", "1.5", "true", "many", "{}"), "", {"auto": "auto", "4": 4}),
    "list": (
        ("models", "task_paths"),
        ("5", "[5]", "{a: b}", '""', '["a", ""]', "true"),
        "",
        {"'a,b[c=d,e=f]'": ["a", "b[c=d,e=f]"], "[a, 'b,c']": ["a", "b,c"]},
    ),
    "text": (("base_url", "output_dir"), ("5", "true", '""', "[a]"), "", {"a": "a"}),
    "choice": (("sandbox",), ("5", "true", '""', "[a]", "slurm"), "", {}),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_has_the_type_of_its_option(tmp_path: Path, kind: str) -> None:
    names, refused, words, accepted = REFUSED[kind]
    for name in names:
        for value in refused:
            with pytest.raises(MillError, match=rf"{name} in .*run.yaml.*{words}"):
                read(tmp_path, f"{name}: {value}\n")
        for value, wanted in accepted.items():
            assert read(tmp_path, f"{name}: {value}\n") == {name: wanted}


NOT_TEXT = {
    name: option
    for name, option in options_of(EvalOptions).items()
    if option.metavar in ("INTEGER", "NUMBER") or option.is_flag or name in ("limit", "batch_size")
}


@pytest.mark.parametrize("name", NOT_TEXT)
def test_a_quoted_number_or_boolean_is_a_text_and_refused_with_the_type(tmp_path: Path, name: str) -> None:
    value = "true" if NOT_TEXT[name].is_flag else "0.1" if name in ("alpha", "precision") else "1"
    assert read(tmp_path, f"{name}: {value}\n") == {name: yaml.safe_load(value)}
    message = f"must be .*(number|true or false).*, not the text '{value}'"
    with pytest.raises(MillError, match=f"{name} in .*run.yaml {message}"):
        read(tmp_path, f"{name}: '{value}'\n")
    with pytest.raises(MillError, match=f"{name} {message}"):
        read_all({name: value}, options_of(EvalOptions), "argument")


@pytest.mark.parametrize("text", ["1_0", "٥", "0x10", "nan", "inf", "1e400", "", " "])
def test_a_number_on_the_command_line_has_only_digits_and_a_point(text: str) -> None:
    for name in ("limit", "n_shots", "seed", "wait", "batch_size"):
        with pytest.raises(MillError, match=f"--{name} must be"):
            options_of(EvalOptions)[name].read_text(text, f"--{name}")
    assert options_of(EvalOptions)["seed"].read_text("-3", "--seed") == -3
    assert options_of(EvalOptions)["limit"].read_text("1e-1", "--limit") == 0.1


def test_decoding_options_have_names(tmp_path: Path) -> None:
    with pytest.raises(MillError, match=r"gen_kwargs in .*run.yaml: .*1 is not the name of an option"):
        read(tmp_path, "gen_kwargs: {1: 2}\n")
    for text in ("{temperature: '0.7'}", "{max_tokens: '5'}", "'top_k=\"5\"'"):
        with pytest.raises(MillError, match=r"gen_kwargs in .*: the decoding option \w+ must be a number, not the text '"):
            read(tmp_path, f"gen_kwargs: {text}\n")
    assert read(tmp_path, "gen_kwargs: {until: [a]}\n") == {"gen_kwargs": {"until": ["a"]}}
    assert read(tmp_path, "gen_kwargs: until=[a]\n") == {"gen_kwargs": {"until": ["a"]}}


def test_names_are_those_of_options_and_given_once(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean same_shots"):
        read(tmp_path, "same_shot: true\n")
    with pytest.raises(MillError, match=r"n_shots in .*run.yaml is given twice"):
        read(tmp_path, "n-shots: 1\nn_shots: 2\n")
    with pytest.raises(MillError, match=r"reuse was removed, .*: use --sample N"):
        read(tmp_path, "reuse: other\n")
    with pytest.raises(MillError, match="executor was removed with Ray"):
        read(tmp_path, "executor: ray\n")
    with pytest.raises(MillError, match="unknown option in"):
        read(tmp_path, "config: other.yaml\n")
    with pytest.raises(MillError, match="unknown option in"):
        read(tmp_path, "5: 5\n")


@pytest.mark.parametrize(
    "text", ["- a\n", "5\n", "", "[" * 1200, "a: &a [*a]\nlimit: *a\n", "? [a]\n: b\n", "limit: 2020-99-99\n"]
)
def test_what_is_no_mapping_of_options_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(MillError):
        read(tmp_path, text)


def test_a_device_that_never_ends_is_no_run_file() -> None:
    with pytest.raises(MillError, match="it is not a regular file"):
        read_run_file("/dev/zero")


def test_the_command_line_and_run_files_have_the_same_options() -> None:
    assert {parameter.name for parameter in command.params} == {*options_of(EvalOptions), "config"}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("use-chat-template: true", "apply_chat_template", True),
        ("max_new_tokens: 7", "max_tokens", 7),
        ("num_prompts: 3", "limit", 3),
        ("limit: null", None, None),
        ("gen_kwargs: 'until=[a,b]'", "gen_kwargs", {"until": ["a", "b"]}),
        ("gen_kwargs: {until: [a, b], max_tokens: 5}", "gen_kwargs", {"until": ["a", "b"], "max_tokens": 5}),
    ],
)
def test_second_spellings_mean_the_same(tmp_path: Path, text: str, name: str | None, value: Any) -> None:
    assert read(tmp_path, text) == ({name: value} if name else {})


@pytest.mark.parametrize("text", ["limit: 1\nlimit: 2\n", "gen_kwargs: {top_k: 1, top_k: 2}\n", "limit: 1\n'limit': 1\n"])
def test_a_key_that_is_given_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(MillError, match=r"run.yaml: '\w+' is given twice"):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["gen_kwargs: {x: [&a0 [1], &a1 [*a0, *a0]]}\n", "tasks: &a [*a]\n", "models: *m\n"])
def test_aliases_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(MillError, match=r"has an alias \(\*name\)"):
        read(tmp_path, text)


def test_a_huge_value_is_shown_in_short_time() -> None:
    value: Any = 1
    for _ in range(60):
        value = [value, value, value]
    assert (
        len(shown(value)) <= 63
        and shown("x" * 70) == f"'{'x' * 59}..."
        and shown({"a": [1, {"b": 2}]}) == "{'a': [1, {'b': 2}]}"
    )
