"""A run file is checked against the option definitions, and so is its JSON schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mill.api.errors import MillError, UnknownName
from mill.cli.eval import command
from mill.options.eval_options import EvalOptions, read_run_file, run_file_schema
from mill.options.option import options_of, read_all, shown


def fits_schema(content: Any) -> bool:
    jsonschema = pytest.importorskip("jsonschema")
    return bool(jsonschema.Draft202012Validator(run_file_schema()).is_valid(content))


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "run.yaml").write_text(text)
    return read_run_file(str(tmp_path / "run.yaml"))


FLAGS = (
    "same_shots",
    "cot",
    "shuffle_choices",
    "apply_chat_template",
    "fresh",
    "exact",
    "dry_run",
    "quiet",
    "no_remote_code",
)
WHOLE = {"n_shots": -1, "repeats": 0, "permutations": 0, "workers": 0, "max_tokens": 0}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ['"false"', '"no"', "0", "1", "[]", "1.5"])
def test_a_truth_value_is_true_or_false_and_nothing_else(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(MillError, match=rf"{name} in .*run.yaml must be true or false, not "):
        read(tmp_path, f"{name}: {value}\n")
    assert read(tmp_path, f"{name}: false\n") == {name: False}
    assert read(tmp_path, f"{name}: yes\n") == {name: True}  # which YAML reads as true


@pytest.mark.parametrize("name", [*WHOLE, "seed"])
@pytest.mark.parametrize("value", ["true", "1.5", ".nan", ".inf", "'3'", "{}", "2020-01-01"])
def test_a_whole_number_is_one(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(MillError, match=f"{name} in .*run.yaml must be a whole number .*, not "):
        read(tmp_path, f"{name}: {value}\n")


@pytest.mark.parametrize(("name", "value"), WHOLE.items())
def test_a_whole_number_is_within_its_range(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(MillError, match=f"{name} in .*run.yaml must be a whole number .*, not {value}"):
        read(tmp_path, f"{name}: {value}\n")


@pytest.mark.parametrize("name", ["wait", "gpus_per_worker"])
@pytest.mark.parametrize("value", ["-1", ".nan", ".inf", "-.inf", "true", '"5"', "[1]", "1" + "0" * 400])
def test_a_number_is_finite_and_not_below_zero(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(MillError, match=f"{name} in .*run.yaml"):
        read(tmp_path, f"{name}: {value}\n")
    assert read(tmp_path, f"{name}: 2\n") == {name: 2.0}


@pytest.mark.parametrize("value", [".inf", ".nan", "-.inf", "0", "-3", "1.5", "true", "[]", '""', "few", '"5"', '"0.5"'])
def test_a_limit_is_a_count_or_a_fraction(tmp_path: Path, value: str) -> None:
    with pytest.raises(MillError, match=r"limit in .*run.yaml"):
        read(tmp_path, f"limit: {value}\n")
    assert [read(tmp_path, f"limit: {good}\n")["limit"] for good in ("5", "0.5", "1.0")] == [5, 0.5, 1.0]


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
    assert not fits_schema({name: value})
    with pytest.raises(MillError, match=f"{name} {message}"):
        read_all({name: value}, options_of(EvalOptions), "argument")


@pytest.mark.parametrize("text", ["1_0", "٥", "0x10", "nan", "inf", "1e400", "", " "])
def test_a_number_on_the_command_line_has_only_digits_and_a_point(text: str) -> None:
    for name in ("limit", "n_shots", "seed", "wait", "batch_size"):
        with pytest.raises(MillError, match=f"--{name} must be"):
            options_of(EvalOptions)[name].read_text(text, f"--{name}")
    assert options_of(EvalOptions)["seed"].read_text("-3", "--seed") == -3
    assert options_of(EvalOptions)["limit"].read_text("1e-1", "--limit") == 0.1


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", "many", "{}"])
def test_a_batch_size_is_a_count_or_auto(tmp_path: Path, value: str) -> None:
    with pytest.raises(MillError, match=r"batch_size in .*run.yaml"):
        read(tmp_path, f"batch_size: {value}\n")
    assert read(tmp_path, "batch_size: auto\n") == {"batch_size": "auto"}


@pytest.mark.parametrize("name", ["models", "tasks", "task_paths"])
def test_lists_of_texts(tmp_path: Path, name: str) -> None:
    for value in ("5", "[5]", "{a: b}", '""', '["a", ""]', "true"):
        with pytest.raises(MillError, match=f"{name} in .*run.yaml"):
            read(tmp_path, f"{name}: {value}\n")
    assert read(tmp_path, f"{name}: 'a,b[c=d,e=f]'\n") == {name: ["a", "b[c=d,e=f]"]}
    assert read(tmp_path, f"{name}: [a, 'b,c']\n") == {name: ["a", "b,c"]}


@pytest.mark.parametrize("name", ["base_url", "judge", "address", "output_dir", "engine"])
@pytest.mark.parametrize("value", ["5", "true", '""', "[a]"])
def test_texts(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(MillError, match=f"{name} in .*run.yaml"):
        read(tmp_path, f"{name}: {value}\n")


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
    with pytest.raises(MillError, match="unknown option in"):
        read(tmp_path, "config: other.yaml\n")
    with pytest.raises(MillError, match="unknown option in"):
        read(tmp_path, "5: 5\n")


@pytest.mark.parametrize(
    "text", ["- a\n", "5\n", "", "[" * 5000, "a: &a [*a]\nlimit: *a\n", "? [a]\n: b\n", "limit: 2020-99-99\n"]
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
        ("engine: ray", "executor", "ray"),
        ("engine: here", "executor", "local"),
        ("executor: here", "executor", "local"),
        ("use_chat_template: true", "apply_chat_template", True),
        ("use-chat-template: true", "apply_chat_template", True),
        ("max_gen_toks: 7", "max_tokens", 7),
        ("max_new_tokens: 7", "max_tokens", 7),
        ("num_prompts: 3", "limit", 3),
        ("limit: null", None, None),
        ("gen_kwargs: 'until=[a,b]'", "gen_kwargs", {"until": ["a", "b"]}),
        ("gen_kwargs: {until: [a, b], max_tokens: 5}", "gen_kwargs", {"until": ["a", "b"], "max_tokens": 5}),
    ],
)
def test_second_spellings_mean_the_same_and_fit_the_schema(tmp_path: Path, text: str, name: str | None, value: Any) -> None:
    assert read(tmp_path, text) == ({name: value} if name else {})
    assert fits_schema(yaml.safe_load(text))


@pytest.mark.parametrize(
    "text", ["executor: slurm", "engine: 5", "exact: 'no'", "repeats: 1000000", "limit: few", "limt: 3"]
)
def test_the_schema_refuses_what_mill_refuses(tmp_path: Path, text: str) -> None:
    with pytest.raises(MillError):
        read(tmp_path, text)
    assert not fits_schema(yaml.safe_load(text))


def test_the_schema_describes_every_option_and_allows_no_other() -> None:
    schema = run_file_schema()
    assert list(schema["properties"]) == list(options_of(EvalOptions)) and schema["additionalProperties"] is False
    assert all(entry["description"] for entry in schema["properties"].values())
    pytest.importorskip("jsonschema").Draft202012Validator.check_schema(schema)


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.floats(),
    st.sampled_from(["", "a", "5", "0.5", "auto", "ray", "here", "no"]),
)
VALUES = (
    PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(st.sampled_from(["until", "temperature", "x"]), PLAIN, max_size=2)
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([name for option in options_of(EvalOptions).values() for name in option.names]), VALUES)
def test_every_file_that_mill_accepts_fits_the_schema(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: Any
) -> None:
    folder = tmp_path_factory.getbasetemp()
    text = yaml.safe_dump({name: value})
    try:
        read(folder, text)
    except MillError:
        return
    assert fits_schema(yaml.safe_load(text)), text


@pytest.mark.parametrize("text", ["limit: 1\nlimit: 2\n", "gen_kwargs: {top_k: 1, top_k: 2}\n", "limit: 1\n'limit': 1\n"])
def test_a_key_that_is_given_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(MillError, match=r"run.yaml: '\w+' is given twice"):
        read(tmp_path, text)


def test_an_alias_bomb_is_refused_at_once(tmp_path: Path) -> None:
    levels = [f"&a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
    bomb = f"gen_kwargs: {{x: [&a0 [1], {', '.join(levels)}]}}\n"
    with pytest.raises(MillError, match="aliases expand to more than 100,000 values"):
        read(tmp_path, bomb)
    with pytest.raises(MillError, match="a value contains itself"):
        read(tmp_path, "tasks: &a [*a]\n")
    assert read(tmp_path, "models: &m [a, b]\ntasks: *m\n") == {"models": ["a", "b"], "tasks": ["a", "b"]}


def test_a_huge_value_is_shown_in_short_time() -> None:
    value: Any = 1
    for _ in range(60):
        value = [value, value, value]
    assert (
        len(shown(value)) <= 63
        and shown("x" * 70) == f"'{'x' * 59}..."
        and shown({"a": [1, {"b": 2}]}) == "{'a': [1, {'b': 2}]}"
    )
