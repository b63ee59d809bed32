"""From a spec to a model: config files, argument types, and one clear line for each bad argument."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mill.api import registry
from mill.api.errors import MillError, SpecError, UnknownName
from mill.api.model import MillModel
from mill.api.registry import models
from mill.models.spec.open import load_model_from_file, open_model, resolve_spec
from mill.models.spec.parse import Spec, make_spec, parse_spec
from tests.waiting import until

SEED_NAMES = ["hf", "huggingface", "transformers", "vllm", "litellm", "openai", "api", "clip", "open_clip", "openclip"]
SEED_NAMES += ["timm", "pytorch-image-models"]

MY_BACKEND = """
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model

@register_model("my-backend")
class MyModel(MillModel):
    def __init__(self, path: str, **kwargs):
        self._path = path
        self.kwargs = kwargs

    @property
    def model_name(self) -> str:
        return self._path
"""


class Typed(MillModel):
    """A backend whose arguments have types; it keeps what it was given."""

    def __init__(
        self,
        path: str,
        batch_size: int | None = None,
        temperature: float = 0.0,
        trust: bool = True,
        length: int = 10,
        modalities: list[str] | None = None,
        revision: str | None = None,
        utilization: int | float = 0,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.given: dict[str, Any] = given

    @property
    def model_name(self) -> str:
        return str(self.given["path"])


class Loose(MillModel):
    """A backend that passes on all its arguments."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        self.path, self.kwargs = path, kwargs

    @property
    def model_name(self) -> str:
        return self.path


class Fussy(Loose):
    """A backend that fails while it is made."""

    def __init__(self, path: str) -> None:
        raise (SpecError if path == "spec" else ValueError)(f"bad {path}")


class NotAModel:
    """A class that knows nothing of mill."""


@pytest.fixture(autouse=True)
def backends() -> None:
    """The fake backends by name."""
    fakes = {"typed": Typed, "loose": Loose, "fussy": Fussy, "not-a-model": NotAModel, "function": len}
    for name, fake in fakes.items():
        models.add(name, fake)


def given_to(spec: str, argument: str) -> Any:
    model = open_model(spec)
    assert isinstance(model, Typed)
    return model.given[argument]


def write(folder: Path, text: str) -> Path:
    path = folder / "config.py"
    path.write_text(text, encoding="utf-8")
    return path


# Names.


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("not-a-model", "not-a-model made a NotAModel, not a MillModel"),
        ("function", "the backend function is registered as <built-in function len>, which is not a class"),
        ("fussy[path=a]", "fussy could not be opened: ValueError: bad a"),
        ("fussy[path=spec]", "bad spec"),
    ],
)
def test_what_makes_no_model_is_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(MillError) as raised:
        open_model(spec)
    assert str(raised.value) == message


# Arguments.


@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("path", "123", "123"),
        ("path", "none", "none"),
        ("temperature", "1e-3", 0.001),
        ("batch_size", "4", 4),
        ("batch_size", "auto", None),
        ("batch_size", "None", None),
        ("trust", "true", True),
        ("trust", "0", False),
        ("revision", "007", "007"),
        ("utilization", "0.9", 0.9),
    ],
)
def test_an_inline_value_gets_the_type_of_its_annotation(argument: str, text: str, value: Any) -> None:
    arguments = {"path": "a", argument: text}
    found = given_to(str(Spec("typed", arguments)), argument)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("argument", "text", "message"),
    [
        ("length", "1.5", "typed[length=1.5]: '1.5' is not int"),
        ("batch_size", "big", "typed[batch_size=big]: give a count or auto"),
        ("temperature", "hot", "typed[temperature=hot]: 'hot' is not float"),
        ("temperature", "nan", "typed[temperature=nan]: 'nan' is not a number"),
        ("batch_size", "0", "typed[batch_size=0]: give a count of at least 1; leave it out for auto"),
        ("trust", "maybe", "typed[trust=maybe]: 'maybe' is not bool"),
        ("modalities", "text", "typed[modalities=text]: a list cannot be given in brackets, set it in a config file (.py)"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_argument(argument: str, text: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        open_model(f"typed[path=a,{argument}={text}]")
    assert str(raised.value) == message


@pytest.mark.parametrize("name", ["use_chat_template", "apply_chat_template"])
def test_the_chat_template_has_two_names(name: str) -> None:
    assert open_model(f"llama-cpp[{name}=true]").use_chat_template is True
    assert open_model(f"openai-compat[model=m,{name}=true]").chat is True  # type: ignore[attr-defined]


def test_the_chat_template_is_given_once() -> None:
    with pytest.raises(SpecError, match="gives use_chat_template twice: use_chat_template and apply_chat_template"):
        open_model("llama-cpp[use_chat_template=true,apply_chat_template=false]")


def test_an_automatic_dtype_is_the_default(tiny_model: Path) -> None:
    automatic, default = (open_model(f"hf[path={tiny_model}{more}]") for more in (",dtype=auto", ""))
    assert automatic.identity() == default.identity()
    assert open_model("clip[path=ViT-B-32,dtype=auto]").dtype == "float32"  # type: ignore[attr-defined]


def test_a_packaged_config_is_found_by_name_and_a_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    by_name = resolve_spec(parse_spec("smollm2_135m_instruct[apply_chat_template=true,batch_size=2]"))
    assert by_name.backend == "hf" and "SmolLM2-135M-Instruct" in str(by_name.arguments["path"])
    assert (by_name.arguments["use_chat_template"], by_name.arguments["batch_size"]) == ("true", "2")
    assert parse_spec(str(parse_spec("shapes[dtype=float32]"))) == parse_spec("shapes[dtype=float32]")
    (tmp_path / "shapes").mkdir()
    assert parse_spec("shapes") == parse_spec("hf[path=shapes]")
    assert make_spec("shapes", base_url="http://h") == parse_spec("openai-compat[model=shapes,base_url=http://h]")


def test_a_config_of_the_current_folder_is_read_instead_of_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = "mill/models/configs/clip/shapes.py"
    assert parse_spec(config).config == config and resolve_spec(parse_spec(config)).backend == "clip"
    (tmp_path / config).parent.mkdir(parents=True)
    (tmp_path / config).write_text('model = {"type": "timm", "path": "mine"}')
    assert resolve_spec(parse_spec(config)).backend == "timm"


def test_an_unknown_argument_is_refused_with_the_nearest_and_with_all() -> None:
    with pytest.raises(UnknownName) as raised:
        open_model("typed[path=a,batchsize=4]")
    assert raised.value.nearest == ["batch_size"]
    assert str(raised.value) == (
        "unknown argument of typed 'batchsize'; did you mean batch_size? "
        "it takes path, batch_size, temperature, trust, length, modalities, revision, utilization"
    )


def test_a_missing_required_argument_is_refused_with_its_syntax() -> None:
    with pytest.raises(SpecError) as raised:
        open_model("typed[length=7]")
    assert str(raised.value) == "typed needs path: write typed[path=...]"


def test_undeclared_arguments_are_read_as_what_they_look_like() -> None:
    model = open_model("loose[path=12,n=3,t=0.5,stream=true,user=ann,off=no]")
    assert isinstance(model, Loose)
    assert model.path == "12"
    assert model.kwargs == {"n": 3, "t": 0.5, "stream": True, "user": "ann", "off": "no"}


def test_the_commands_batch_size_applies_if_the_spec_gives_none() -> None:
    assert open_model("typed[path=a]", batch_size=8).batch_size == 8
    assert open_model("loose[path=a]", batch_size=8).batch_size == 8
    assert open_model("loose[path=a,batch_size=4]", batch_size=8).batch_size == 4
    assert open_model("typed[path=a]").batch_size is None


# Config files.


def test_what_is_given_inline_wins_over_the_config_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = {"type": "typed", "path": "a", "batch_size": 4, "length": 5}\n')
    model = open_model(f"{path}[batch_size=8]")
    assert isinstance(model, Typed)
    assert (model.given["path"], model.given["batch_size"], model.given["length"]) == ("a", 8, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0\n", "raised ZeroDivisionError: division by zero"),
        ("raise SystemExit('stop')\n", "raised SystemExit: stop"),
        ("x = 1\n", 'has no top-level dict `model`; write model = {"type": "hf", "path": "org/name"}'),
        ("model = 'hf'\n", 'has a `model` of type str; write model = {"type": "hf", "path": "org/name"}'),
    ],
)
def test_a_config_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError) as raised:
        load_model_from_file(path)
    assert str(raised.value) == f"config file {path} {message}"


@pytest.mark.parametrize("text", ['model = {"path": "a"}\n', 'model = {"type": 3, "path": "a"}\n'])
def test_a_config_without_a_type_is_refused_with_the_backends(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError) as raised:
        load_model_from_file(path)
    message, _, names = str(raised.value).partition(", one of ")
    assert message == f'config file {path} names no backend: add a "type" to its `model`'
    assert set(SEED_NAMES) <= set(names.split(", "))


def test_threads_that_open_one_file_import_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is still importing it when the others come."""
    opened: list[str] = []
    monkeypatch.setattr(registry, "check_path", opened.append)
    monkeypatch.setattr(registry, "await_others", lambda: until(lambda: len(opened) == 4, "four threads"), raising=False)
    path = write(tmp_path, 'from mill.api import registry\n\nregistry.await_others()\nmodel = {"type": "hf", "path": "a"}\n')
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(load_model_from_file, [path] * 4)) == [{"type": "hf", "path": "a"}] * 4


def test_a_file_that_fails_is_run_again_after_it_is_fixed(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        load_model_from_file(write(tmp_path, "1 / 0\n"))
    assert load_model_from_file(write(tmp_path, 'model = {"type": "typed"}\n')) == {"type": "typed"}


def test_a_file_that_only_registers_a_backend_means_that_backend(tmp_path: Path) -> None:
    path = write(tmp_path, MY_BACKEND)
    assert load_model_from_file(path) == {"type": "my-backend"}
    model: Any = open_model(f"{path}[path=org/name,layers=3]")
    assert (type(model).__name__, model.model_name, model.kwargs) == ("MyModel", "org/name", {"layers": 3})


def test_a_file_that_registers_two_backends_is_ambiguous(tmp_path: Path) -> None:
    path = write(tmp_path, MY_BACKEND + '\n@register_model("other")\nclass Other(MyModel):\n    pass\n')
    with pytest.raises(SpecError, match="has no top-level dict `model`"):
        load_model_from_file(path)
