"""A key reaches its server, is never stored or printed, and is refused on a command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mill import evaluate
from mill.api.errors import SpecError
from mill.cli.main import run
from mill.models.spec.open import open_model
from mill.models.spec.parse import Spec, parse_spec
from mill.support.secrets import redact
from mill.tasks.load import load_files
from tests.servers import Fault, FaultServer, status

ROOT = Path(__file__).parents[2]
TOY = str(ROOT / "tests/toy.py")
KEY = "sk-4f9c02d7a1b3e85866c07e1d2f3a4b5c"
CHUNK = 12  # characters of a key that count as a leak
Mill = Callable[..., tuple[int, str]]


def leaks(text: str | bytes) -> bool:
    """Whether a text has a substring of the key of this length."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return any(KEY[start : start + CHUNK] in text for start in range(len(KEY) - CHUNK + 1))


def leaking_files(folder: Path) -> list[str]:
    return [str(file) for file in folder.rglob("*") if file.is_file() and (leaks(file.read_bytes()) or leaks(file.name))]


def plain(code: int, text: str) -> Fault:
    return Fault(lambda handler: handler.reply(code, text.encode()))


@pytest.fixture
def echo() -> Iterator[FaultServer]:
    """A server that repeats the key in its responses, in another way for each prompt."""

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        key = server.headers[-1].get("Authorization", "")
        question = json.dumps(body)
        if "toy_gen 0" in question:
            return status(401, f"the key {key} is not known")
        if "toy_gen 1" in question:
            return status(500, f"{key} made me fail")
        if "toy_gen 2" in question:
            return {"error": {"message": f"no answer for {key}"}}
        if "toy_gen 3" in question:
            return plain(400, f"what is {key}?")
        if "toy_gen 4" in question:
            return plain(200, f"<html>{key}</html>")
        if "toy_gen 5" in question:
            return {"choices": [{"message": {"content": None}, "finish_reason": key}]}
        content = f"you sent {key}, so" if "toy_gen 6" in question else "answer 1"
        return {"choices": [{"message": {"content": content}, "finish_reason": key if "toy_gen 7" in question else "stop"}]}

    with FaultServer(answer) as server:
        yield server


@pytest.fixture(params=["by name", "OPENAI_API_KEY"])
def spec(request: pytest.FixtureRequest, mill: Mill, echo: FaultServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server's model, with a key from each possible source."""
    inner = ",api_key=$SOME_NAME" if request.param == "by name" else ""
    monkeypatch.setenv("SOME_NAME" if inner else request.param, KEY)
    return f"openai-compat[model=m,base_url={echo.url},chat=true{inner}]"


def test_a_key_reaches_the_server_and_nothing_else(mill: Mill, spec: str, echo: FaultServer, tmp_path: Path) -> None:
    """Not the files of runs and checks, the cache, the home folder, reports, tables or output."""
    options = ("--task_paths", TOY, "--limit", "8", "--output_dir", "out")
    output = [
        mill("eval", spec, "toy_gen", *options),
        mill("--debug", "eval", spec, "toy_gen", *options, "--quiet", "--fresh"),
        mill("determinism", "--model", spec, "--runs", "2", "--tasks", "toy_gen", *options),
        mill("report", "out"),
        mill("report", "out", "--format", "md", "--output", "-"),
        mill("collect", "--output_dir", "out"),
        mill("collect", "--check", "--output_dir", "out"),
        mill("ls", "runs", "--output_dir", "out"),
        mill("score", str(next((tmp_path / "out").glob("*/*/manifest.json")).parent), "--task_paths", TOY),
    ]
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in echo.headers)
    assert [code for code, _ in output[:2]] == [1, 1] and (tmp_path / "out/report.html").is_file()
    assert "***" in output[0][1] and "7 of 8 samples failed" in output[0][1]
    assert not [text for _, text in output if leaks(text)]
    assert leaking_files(tmp_path) == []


@pytest.mark.parametrize(
    "wrap",
    [
        lambda padding, key: status(400, padding + key),
        lambda padding, key: plain(400, padding + key),
        lambda padding, key: plain(200, padding + key),
        lambda padding, key: {"error": padding + key},
    ],
    ids=["json error", "text error", "no json", "no choices"],
)
def test_a_key_is_redacted_before_a_message_is_cut(mill: Mill, tmp_path: Path, wrap: Callable[[str, str], Any]) -> None:
    """At some of these lengths, a cut goes through the middle of the key."""

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        number = int(json.dumps(body).partition("toy_gen ")[2].partition('"')[0])
        return wrap("x" * 10 * number, KEY)

    with FaultServer(answer) as server:
        spec = f"openai-compat[model=m,base_url={server.url},chat=true,api_key=$SOME_NAME]"
        mill("eval", spec, "toy_gen", "--task_paths", TOY, "--output_dir", "out")
    assert leaking_files(tmp_path) == []


@pytest.mark.parametrize("name", ["auth_token", "aws_secret_access_key", "azure_ad_token", "extra_headers"])
def test_secrets_in_other_parameters_are_not_stored(mill: Mill, name: str) -> None:
    """A manifest has the arguments and the identity. The names are LiteLLM's for other clouds; other servers refuse them."""
    spec = parse_spec(f"litellm[model=openai/m,{name}={KEY}]")
    assert not leaks(json.dumps([redact(spec.arguments), open_model(spec).identity()]))
    with pytest.raises(SpecError, match="did you mean api_key") as raised:
        open_model(f"openai-compat[model=m,{name}={KEY}]")
    assert not leaks(str(raised.value))


@pytest.mark.parametrize("login", ["me:$SOME_NAME@", "$SOME_NAME@"])
def test_a_login_in_an_address_is_not_stored(mill: Mill, tmp_path: Path, echo: FaultServer, login: str) -> None:
    """A name with a password, and a token alone; also where a check uses the address as a label."""
    spec = f"{echo.url.replace('http://', f'http://{login}')}[chat=true]"
    options = ("--task_paths", TOY, "--output_dir", "out", "--limit", "8")
    output = [
        mill("eval", spec, "toy_gen", *options),
        mill("compare", spec, "toy[path=a]", "--tasks", "toy_gen", *options),
        mill("schedule", spec, "toy_gen", "--dry_run", "--task_paths", TOY, "--output_dir", "out"),
        mill("eval", spec.replace("[", "/nowhere["), "toy_gen", *options),
    ]
    assert echo.headers[-1]["Authorization"].startswith("Basic ")
    assert not [text for _, text in output if leaks(text)] and leaking_files(tmp_path) == []


@pytest.mark.parametrize("query", [f"?api_key={KEY}", f"?x=1&key={KEY}"])
def test_a_key_in_the_query_of_an_address_is_refused_and_not_printed(
    mill: Mill, tmp_path: Path, echo: FaultServer, query: str
) -> None:
    spec = f"openai-compat[base_url={echo.url}/v1{query},model=m]"
    code, output = mill("--debug", "eval", spec, "toy_gen", "--task_paths", TOY, "--output_dir", "out")
    assert code == 2 and "in single quotes" in output and not leaks(output) and leaking_files(tmp_path) == []
    with pytest.raises(SpecError, match="a key is given as api_key=") as raised:
        open_model(spec)
    assert not leaks(str(raised.value))


def test_a_login_is_not_part_of_the_identity_of_a_custom_backend() -> None:
    spec = f"toy[path=http://{KEY}@host]"
    load_files((TOY,))
    assert not leaks(json.dumps(open_model(parse_spec(spec)).identity()["arguments"]))


@pytest.mark.parametrize(
    "address",
    ["me:{key}@127.0.0.1:9", "htp://me:{key}@127.0.0.1:9", "http:/me:{key}@127.0.0.1:9",
     "http://me:x#{key}@127.0.0.1:9", "http://me:{key} x@127.0.0.1:9", "http://127.0.0.1:9/v1#{key}"],
)  # fmt: skip
def test_a_malformed_address_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(SpecError) as raised:
        open_model(Spec("openai-compat", {"model": "m", "base_url": address.format(key=KEY)}))
    assert not leaks(str(raised.value))


RUN_FILES = [
    "models: [{{api_key: {key}}}]\ntasks: [toy_gen]\n",
    "models: [m]\ngen_kwargs: {{temperature: {{api_key: {key}}}}}\n",
    "limit: http://me:{key}@host\n",
    "api_key: '{key}\n",
    "api_key: !{key} x\n",
    "models: 'openai-compat[model=m,nonsense,api_key={key}]'\ntasks: toy_gen\n",
]


@pytest.mark.parametrize("content", RUN_FILES)
def test_a_refused_run_file_is_reported_without_its_key(mill: Mill, content: str) -> None:
    Path("run.yaml").write_text(content.format(key=KEY))
    code, output = mill("--debug", "eval", "--config", "run.yaml")
    assert code == 2 and "mill: " in output and not leaks(output)


@pytest.mark.parametrize(
    "target", ["mlflow:http://me:pa/{key}@127.0.0.1:9", "trackio:me:{key}@x", "wandb:http://me:{key}@x"]
)
def test_a_refused_target_is_reported_without_its_password(mill: Mill, tmp_path: Path, target: str) -> None:
    assert mill("eval", "toy[path=a]", "toy_gen", "--task_paths", TOY, "--limit", "1")[0] == 0
    code, output = mill("export", "results", "--to", target.format(key=KEY))
    assert code == 2 and output.startswith("mill: ") and not leaks(output)


def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
    if "toy_gen 1" in json.dumps(body):
        return status(400, f"bad header {server.headers[-1]['Authorization']}")
    return {"choices": [{"message": {"content": "answer 1"}, "finish_reason": "stop"}]}


INLINE = [
    ("openai-compat[model=m,api_key={key}]", "openai-compat[model=m,api_key=$NAME]"),
    ('openai-compat[model=m,api_key="{key}, b"]', "openai-compat[model=m,api_key=$NAME]"),
    ("--judge=openai-compat[model=m,api_key={key}]", "--judge=openai-compat[model=m,api_key=$NAME]"),
    ("http://me:{key}@host/v1", "http://me:$NAME@host/v1"),
    ("openai-compat[model=m,base_url=HTTP://{key}@host]", "openai-compat[model=m,base_url=HTTP://$NAME@host]"),
    ("mlflow:postgresql://me:{key}@host/runs", "mlflow:postgresql://me:$NAME@host/runs"),
]


@pytest.mark.parametrize(("word", "wanted"), INLINE)
def test_a_key_on_the_command_line_is_refused_with_the_form_that_works(mill: Mill, word: str, wanted: str) -> None:
    code, output = mill("eval", word.format(key=KEY), "gsm8k")
    assert code == 2 and f"write '{wanted}', in single quotes" in output and not leaks(output)


def test_a_key_is_allowed_in_python_and_a_prompt_may_look_like_one(mill: Mill, echo: FaultServer, tmp_path: Path) -> None:
    spec = f"openai-compat[model=m,base_url={echo.url},chat=true,api_key=first {KEY}]"
    evaluate(spec, "toy_gen", task_paths=[TOY], limit=8, output_dir=tmp_path / "out")
    assert echo.headers[-1]["Authorization"] == f"Bearer first {KEY}" and leaking_files(tmp_path) == []
    prompt = "Write [key=value,token=3]."
    assert mill("eval", "toy[path=a]", "toy_gen", "--task_paths", TOY, "--system-prompt", prompt)[0] == 0
    (manifest,) = (tmp_path / "results").glob("*/*/manifest.json")
    assert json.loads(manifest.read_text())["settings"]["system_prompt"] == prompt


BROKEN = ["api_key=a]{key}", 'api_key="a"{key}', "api_key=a {key},=", "api_key=a {key},api_key=b"]


@pytest.mark.parametrize("argument", BROKEN)
def test_a_refused_spec_is_reported_without_its_key(argument: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_spec(f"http://host[model=m,{argument.format(key=KEY)}]")
    assert not leaks(str(raised.value))


def test_a_redirect_does_not_forward_the_key(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILL_API_KEY", KEY)
    with FaultServer(answer) as other:

        def elsewhere(server: FaultServer, path: str, body: dict[str, Any]) -> Fault:
            return Fault(lambda handler: handler.reply(307, b"", {"Location": other.url + path}))

        with FaultServer(elsewhere) as server:
            spec = f"openai-compat[model=m,base_url={server.url},chat=true]"
            code, output = mill("eval", spec, "toy_gen", "--task_paths", TOY, "--limit", "1")
            assert code == 1 and f"redirects to {other.url}" in output
            assert server.headers[-1]["Authorization"] == f"Bearer {KEY}"
        assert other.headers == []


@pytest.mark.parametrize(("name", "key"), [("a newline", f"{KEY}\n"), ("signs", "p%40ss"), ("signs", "p@ss")])
def test_keys_are_normalized_before_they_are_sent(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, echo: FaultServer, name: str, key: str
) -> None:
    """A trailing newline is removed, and percent escapes of an address are decoded. The last @ ends a password."""
    address = echo.url
    if name == "signs":
        address = address.replace("://", f"://me:{key}@")
    else:
        monkeypatch.setenv("MILL_API_KEY", key)
    evaluate(f"openai-compat[model=m,base_url={address},chat=true]", "toy_gen", task_paths=[TOY], limit=1)
    expected = {"signs": "Basic bWU6cEBzcw==", "a newline": f"Bearer {KEY}"}[name]  # me:p@ss
    assert echo.headers and echo.headers[-1].get("Authorization") == expected


def test_a_key_in_the_model_name_of_a_response_is_not_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning about another model names the key, which is redacted in messages, records and reports."""

    def echo(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path != "/v1/completions" or "echo" in body or "prompt_logprobs" in body:
            return {"choices": []}
        return {"choices": [{"text": "x", "finish_reason": "stop"}], "model": server.headers[-1].get("Authorization")}

    with FaultServer(echo) as server:
        monkeypatch.setenv("SOME_NAME", KEY)
        spec = f"openai-compat[model=m,base_url={server.url},api_key=$SOME_NAME]"
        argv = ["--task_paths", TOY, "--limit", "3", "--quiet", "--output_dir", str(tmp_path)]
        assert run(["eval", spec, "toy_gen", *argv]) == 0
        assert run(["compare", "toy[path=a]", spec, "--tasks", "toy_gen", *argv]) == 0
    out, err = capsys.readouterr()
    assert "another model" in out + err or "same model" in out + err
    assert not leaks(out + err) and leaking_files(tmp_path) == []
