"""The grammar of a model spec: every form it takes, every form it refuses, and that printing it reads back the same."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mill.api.backend import Backend
from mill.api.errors import MillError, SpecError, UnknownName
from mill.api.registry import models, own_names, register_model, registering
from mill.models.spec.parse import Spec, addresses_of, make_spec, parse_spec, split_list

OLLAMA = "http://127.0.0.1:11434"


@pytest.mark.parametrize(
    ("text", "backend", "arguments"),
    [
        ("hf[]", "hf", {}),
        ("org/name", "hf", {"path": "org/name"}),
        ("org/name[batch-size=4]", "hf", {"path": "org/name", "batch_size": "4"}),
        ("org/name@v2[batch_size=4]", "hf", {"path": "org/name", "revision": "v2", "batch_size": "4"}),
        ("./folder", "hf", {"path": "./folder"}),
        ("mlx-community/name@v2", "mlx-lm", {"path": "mlx-community/name", "revision": "v2"}),
        ("mlx:org/name@v2", "mlx-lm", {"path": "org/name", "revision": "v2"}),
        ("dir/file.gguf[n_ctx=512]", "llama-cpp", {"model": "dir/file.gguf", "n_ctx": "512"}),
        ("hf:org/name@v2", "hf", {"path": "org/name", "revision": "v2"}),
        ("litellm:gpt-4o", "litellm", {"model": "gpt-4o"}),
        ("gguf:org/name@v2", "llama-cpp", {"model": "org/name", "revision": "v2"}),
        ("ollama:llama3.1@sha256", "openai-compat", {"model": "llama3.1@sha256", "base_url": OLLAMA}),
    ],
)
def test_a_spec_is_a_backend_and_its_arguments(text: str, backend: str, arguments: dict[str, str]) -> None:
    assert parse_spec(text) == Spec(backend, arguments)


def test_a_folder_that_exists_may_have_an_at_sign(tmp_path: Path) -> None:
    folder = tmp_path / "model@home"
    folder.mkdir()
    assert parse_spec(str(folder)) == Spec("hf", {"path": str(folder)})


def test_a_backend_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_spec("vllm[path=a]") == Spec("vllm", {"path": "a"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('hf[path="a,b"]', "a,b"),
        ('hf[path="a]b[c"]', "a]b[c"),
        (r'hf[path="say \"hi\""]', 'say "hi"'),
        (r'hf[path="C:\\models"]', r"C:\models"),
        ('hf[path=" a "]', " a "),
        ('hf[path=""]', ""),
        ("hf[path=a=b]", "a=b"),
        ("hf[path=it's]", "it's"),
        (" hf [ path = a , ] ", "a"),
    ],
)
def test_a_value_may_be_quoted_and_space_around_it_does_not_count(text: str, value: str) -> None:
    assert parse_spec(text) == Spec("hf", {"path": value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' names no model; give a backend, a model path or a config file"),
        ("[path=a]", "'[path=a]' names no model; give a backend, a model path or a config file"),
        ("hf[path=a", "'hf[path=a' does not close its bracket; write name[key=value,key=value]"),
        ("hf]", "'hf]' closes a bracket that was never opened"),
        ("hf[org/name]", "'org/name' in 'hf[org/name]' is not key=value"),
        ("hf[path=a,path=b]", "'path' is given twice in 'hf[path=a,path=b]'"),
        ("org/name[path=b]", "'org/name[path=b]' gives path twice: before the brackets and inside them"),
        (
            "hf[kinds=[text,image]]",
            "kinds in 'hf[kinds=[text,image]]' is a list, which brackets cannot contain: set it in a config file (.py)",
        ),
        ("hf[path='a]", "a quoted value in \"hf[path='a]\" has no closing quote at its end: 'a"),
        ("ollama:", "'ollama:' names no model after the colon"),
    ],
)
def test_what_cannot_be_read_is_refused_with_one_line(text: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_spec(text)
    assert str(raised.value) == message


@pytest.mark.parametrize(("name", "near"), [("clp", "did you mean clip? "), ("gpt2", "")])
def test_an_unknown_backend_is_refused_with_the_nearest_name_and_the_spec_of_a_model(name: str, near: str) -> None:
    with pytest.raises(UnknownName) as raised:
        parse_spec(name)
    assert str(raised.value) == f"unknown backend or config {name!r}; {near}for a model of that name write hf[path={name}]"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf[path=a,dtype=b],org/name", ["hf[path=a,dtype=b]", "org/name"]),
        ("", []),
        ('hf[path="a]",dtype=b],c', ['hf[path="a]",dtype=b]', "c"]),
        ("a='x,y',b=1", ["a='x,y'", "b=1"]),
        ("hf[path=it's],b", ["hf[path=it's]", "b"]),
        ("m=[a,b],c", ["m=[a,b]", "c"]),
    ],
)
def test_split_list_cuts_at_commas_outside_brackets_and_quoted_values(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Spec("hf", {"path": "org/name", "batch_size": 4}), "hf[path=org/name,batch_size=4]"),
        (Spec("", {"dtype": "float16"}, config="a.py"), "a.py[dtype=float16]"),
        (Spec("hf", {"path": 'a,"b"\\'}), r'hf[path="a,\"b\"\\"]'),
        (Spec("hf", {"path": ""}), 'hf[path=""]'),
    ],
)
def test_a_spec_prints_in_one_spelling_and_quotes_only_where_needed(spec: Spec, text: str) -> None:
    assert str(spec) == text


KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,8}", fullmatch=True)
VALUES = st.text(max_size=12) | st.text(alphabet=",[]\"'\\= \n\té@", max_size=12)
HEADS = st.sampled_from([("hf", ""), ("openai-compat", ""), ("vllm", ""), ("", "dir/config.py")])
SPECS = st.builds(
    lambda head, arguments: Spec(head[0], arguments, head[1]), HEADS, st.dictionaries(KEYS, VALUES, max_size=4)
)


@given(SPECS)
@example(Spec("hf", {"a": "\\", "b": '"'}))
@example(Spec("hf", {"a": "x='", "b": "],["}))
@example(Spec("hf", {"a": "\u2003wide space\u2003", "b": "\x1f"}))
def test_printing_a_spec_and_parsing_it_gives_it_back(spec: Spec) -> None:
    assert parse_spec(str(spec)) == spec


@given(
    st.lists(
        st.builds(str, SPECS) | st.sampled_from(["org/name", "org/name@v2", "ollama:m:8b", "http://h:1/v1"]), max_size=4
    )
)
def test_specs_joined_by_commas_are_split_into_the_same_specs(texts: list[str]) -> None:
    assert split_list(",".join(texts)) == texts


@pytest.mark.parametrize("text", ["hf[path=a][dtype=b]", 'hf[path="a\\"]', 'hf[path="a"b"]'])
def test_brackets_and_quotes_that_do_not_match_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_spec(text)


@pytest.mark.parametrize(
    ("model", "backend", "url", "spec"),
    [
        ("org/name", "", "http://h:1/v1", Spec("openai-compat", {"model": "org/name", "base_url": "http://h:1/v1"})),
        ("llama3.1:8b", "", "http://h:1", Spec("openai-compat", {"model": "llama3.1:8b", "base_url": "http://h:1"})),
        ("x.gguf", "", "http://h:1", Spec("llama-cpp", {"model": "x.gguf", "base_url": "http://h:1"})),
        ("gpt-4o", "litellm", "http://h:1", Spec("litellm", {"model": "gpt-4o", "api_base": "http://h:1"})),
        ("org/name@main", "vllm", "", Spec("vllm", {"path": "org/name", "revision": "main"})),
        ("name[timeout=5]", "vllm-mlx", "", Spec("vllm-mlx", {"model": "name", "timeout": "5"})),
        ("a[batch_size=2]", "hf[dtype=float32]", "", Spec("hf", {"path": "a", "batch_size": "2", "dtype": "float32"})),
        ("hf[path=a]", "hf[dtype=float32]", "", Spec("hf", {"path": "a", "dtype": "float32"})),
    ],
)
def test_a_backend_and_an_address_may_be_given_separately(model: str, backend: str, url: str, spec: Spec) -> None:
    assert make_spec(model, backend=backend, base_url=url) == spec


@pytest.mark.parametrize(
    ("model", "backend", "url", "message"),
    [
        ("hf[path=a]", "", "http://h", "the backend hf talks to no server"),
        ("hf[path=a]", "vllm", "", "names the backend hf, and --backend vllm"),
        ("a", "vlm[dtype=x]", "", "did you mean vllm"),
        ("a", "hf[dtype=x", "", "does not close its bracket"),
        ("a", "hf[path=b]", "", "gives path twice"),
        ("hf[path=a,dtype=x]", "hf[dtype=y]", "", "gives dtype twice"),
    ],
)
def test_a_backend_or_an_address_that_does_not_fit_is_refused(model: str, backend: str, url: str, message: str) -> None:
    with pytest.raises(MillError, match=message):
        make_spec(model, backend=backend, base_url=url)


DESCRIBED = """
from mill.api.backend import Backend

BACKEND = Backend(
    name="mill-test-engine",
    target="mill_test_engine_class:Engine",
    aliases=("mill-test-alias",),
    prefixes={"mill-test-prefix": {"fast": "true"}},
    model_argument="model",
    address_argument="host",
)
"""


def test_a_backend_of_another_package_has_aliases_a_prefix_and_an_address_and_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mill_test_engine.py").write_text(DESCRIBED)
    (tmp_path / "mill_test_engine_class.py").write_text("class Engine: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("mill-test-engine", "mill_test_engine:BACKEND", "mill.models")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point for point in points if point.group == group])
    monkeypatch.setattr(models, "_plugins_read", False)
    expected = Spec("mill-test-engine", {"model": "m", "fast": "true"})
    assert parse_spec("mill-test-prefix:m") == expected
    assert parse_spec("mill-test-alias:m") == Spec("mill-test-alias", {"model": "m"})
    served = make_spec("m", backend="mill-test-engine", base_url="http://h:1")
    assert served == Spec("mill-test-engine", {"model": "m", "host": "http://h:1"}) and addresses_of(served) == [
        "http://h:1"
    ]
    assert "mill_test_engine_class" not in sys.modules
    assert models.get("mill-test-alias").__name__ == "Engine"


def test_a_class_of_a_file_has_what_its_description_says() -> None:
    with own_names(), registering():

        @register_model(Backend("mill-test-own", aliases=("mill-test-mine",), model_argument="name"))
        class Own:
            pass

        assert models.get("mill-test-mine") is Own
        assert parse_spec("mill-test-mine:m") == Spec("mill-test-mine", {"name": "m"})
