"""A key reaches its server, and is never stored, printed or visible to other users."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import SpecError
from mill.api.secrets import hide, redact
from mill.cli.main import run
from mill.models.spec.open import open_model
from mill.models.spec.parse import parse_spec
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


@pytest.fixture(params=["inline", "by name", "MILL_API_KEY", "OPENAI_API_KEY"])
def spec(request: pytest.FixtureRequest, mill: Mill, echo: FaultServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server's model, with a key from each possible source."""
    inner = {"inline": f",api_key={KEY}", "by name": ",api_key=$SOME_NAME"}.get(request.param, "")
    if request.param != "inline":
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


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_a_refused_key_is_not_printed(mill: Mill, tmp_path: Path, debug: tuple[str, ...]) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        return status(401, f"bad header {server.headers[-1]['Authorization']}")

    with FaultServer(answer) as server:
        spec = f"openai-compat[model=m,base_url={server.url},api_key={KEY}]"
        code, output = mill(*debug, "eval", spec, "toy_gen", "--task_paths", TOY)
    assert code == 2 and "mill: " in output and "***" in output and not leaks(output)
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
        spec = f"openai-compat[model=m,base_url={server.url},chat=true,api_key={KEY}]"
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


@pytest.mark.parametrize("login", [f"me:{KEY}@", f"{KEY}@", f"{KEY}:@"])
def test_a_login_in_an_address_is_not_stored(mill: Mill, tmp_path: Path, echo: FaultServer, login: str) -> None:
    """A name with a password, and a token alone; also where a check uses the address as a label."""
    spec = f"{echo.url.replace('http://', f'http://{login}')}[chat=true]"
    options = ("--task_paths", TOY, "--output_dir", "out", "--limit", "8")
    output = [
        mill("eval", spec, "toy_gen", *options),
        mill("compare", spec, "toy[path=a]", "--tasks", "toy_gen", *options),
        mill("schedule", spec, "toy_gen", "--local", "--dry_run", "--task_paths", TOY, "--output_dir", "out"),
        mill("eval", spec.replace("[", "/nowhere["), "toy_gen", *options),
    ]
    assert echo.headers[-1]["Authorization"].startswith("Basic ")
    assert not [text for _, text in output if leaks(text)] and leaking_files(tmp_path) == []


@pytest.mark.parametrize("query", [f"?api_key={KEY}", f"?token={KEY}", f"?x=1&key={KEY}"])
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_a_key_in_the_query_of_an_address_is_refused_and_not_printed(
    mill: Mill, tmp_path: Path, echo: FaultServer, query: str, debug: tuple[str, ...]
) -> None:
    spec = f"openai-compat[base_url={echo.url}/v1{query},model=m]"
    code, output = mill(*debug, "eval", spec, "toy_gen", "--task_paths", TOY, "--output_dir", "out")
    assert code == 2 and "a key is given as api_key=" in output and not leaks(output) and leaking_files(tmp_path) == []


def test_a_login_is_not_part_of_the_identity_of_a_custom_backend() -> None:
    spec = f"toy[path=http://{KEY}@host]"
    load_files((TOY,))
    assert not leaks(json.dumps(open_model(parse_spec(spec)).identity()["arguments"]))


@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize("spec", [f"openai-compat[model=m,nonsense,api_key={KEY}]", f"openai-compat[model=m,api_key={KEY}"])
def test_an_error_in_a_run_file_is_reported_without_its_key(mill: Mill, spec: str, debug: tuple[str, ...]) -> None:
    Path("run.yaml").write_text(json.dumps({"models": spec, "tasks": "toy_gen", "task_paths": TOY}))
    code, output = mill(*debug, "eval", "--config", "run.yaml")
    assert code == 2 and not leaks(output)


MALFORMED = [
    "me:{key}@127.0.0.1:9/v1",
    "{key}@127.0.0.1:9/v1",
    "htp://me:{key}@127.0.0.1:9/v1",
    "http:me:{key}@127.0.0.1:9/v1",
    "http:/me:{key}@127.0.0.1:9/v1",
    "http//me:{key}@127.0.0.1:9/v1",
    "http://me:pa/{key}@127.0.0.1:9/v1",
    "http://me:1234/{key}@127.0.0.1:9/v1",
    "http://me:x#{key}@127.0.0.1:9/v1",
    "http://me:x?{key}@127.0.0.1:9/v1",
    "http://me:{key} x@127.0.0.1:9/v1",
    "http://me:pa,{key}@127.0.0.1:9/v1",
    "http://me:\x1b[31m{key}@127.0.0.1:9/v1",
    "http://me:a]{key}@127.0.0.1:9/v1",
    "http://me:{key}@p@127.0.0.1:9/v1",
    "http://127.0.0.1:9/v1#{key}",
    "http://127.0.0.1:9/v1?{key}",
]


@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize("address", MALFORMED)
def test_a_malformed_address_is_refused_without_its_password(mill: Mill, address: str, debug: tuple[str, ...]) -> None:
    address, options = address.format(key=KEY), ("toy_gen", "--limit", "1", "--task_paths", TOY)
    output = [
        mill(*debug, "eval", "m", *options, "--base_url", address),
        mill(*debug, "eval", f"openai-compat[model=m,base_url={address}]", *options),
    ]
    if address.startswith("http") and "," not in address:  # else it is the name of a model, or of two
        output.append(mill(*debug, "eval", address, *options))
    assert [code for code, _ in output] == [2] * len(output) and not [text for _, text in output if leaks(text)]


def test_a_short_part_of_a_password_is_not_printed_either(mill: Mill) -> None:
    for debug in ((), ("--debug",)):
        _, output = mill(*debug, "eval", "m", "toy_gen", "--task_paths", TOY, "--base_url", "http://me:pqz/x@127.0.0.1:9")
        assert "base_url=http://me:***@127.0.0.1:9: not a valid URL" in output and "%2F for /" in output
        assert "pqz" not in output


RUN_FILES = [
    "models: [{{api_key: {key}}}]\ntasks: [toy_gen]\n",
    "models: [m]\ntasks: [toy_gen]\njudge: {{api_key: {key}}}\nsample: 5\n",
    "models: [m]\njudge: [{{api_key: {key}}}]\n",
    "models: [m]\nlimit: {{a: {{headers: {{b: {key}}}}}}}\n",
    "models: [m]\ngen_kwargs: {{temperature: {{api_key: {key}}}}}\n",
    "models: {{url: 'http://me:pa/{key}@host'}}\n",
    "limit: http://me:{key}@host\n",
    "models: [m\napi_key: {key}\n",
    "api_key: {key}: x\n",
    "api_key: '{key}\n",
    "api_key: *{key}\n",
    "api_key: !{key} x\n",
    "api_key: !!int {key}\n",
    "api_key: !!bool {key}\n",
]


@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize("content", RUN_FILES)
def test_a_refused_run_file_is_reported_without_its_key(mill: Mill, content: str, debug: tuple[str, ...]) -> None:
    Path("run.yaml").write_text(content.format(key=KEY))
    code, output = mill(*debug, "eval", "--config", "run.yaml")
    assert code == 2 and "mill: " in output and "run.yaml" in output and not leaks(output)


@pytest.mark.parametrize(
    "target",
    [
        "mlflow:http://me:pa/{key}@127.0.0.1:9",
        "mlflow:me:{key}@127.0.0.1:9",
        "mlflow:http:/me:{key}@127.0.0.1:9",
        "trackio:me:{key}@x",
        "wandb:http://me:{key}@x",
        "parquet:me:{key}@x",
    ],
)
def test_a_refused_target_is_reported_without_its_password(mill: Mill, tmp_path: Path, target: str) -> None:
    assert mill("eval", "toy[path=a]", "toy_gen", "--task_paths", TOY, "--limit", "1")[0] == 0
    code, output = mill("export", "results", "--to", target.format(key=KEY))
    assert code == 2 and output.startswith("mill: ") and "***" in output and not leaks(output)


# In a separate process


def command_lines() -> dict[int, str]:
    """The command lines of all processes but this one and its parents, which any user can read."""
    command_by_pid = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_by_pid[int(path.parent.name)] = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # it has ended
            continue
    return command_by_pid


def run_watched(*argv: str, **environment: str) -> tuple[int, str, list[str]]:
    """Runs `mill` as a user does: exit code, output, and the command lines that had the key.

    The typed command has it until mill has restarted itself without it, which cannot be avoided.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MILL_", "OPENAI_", "TOY_", "RAY_"))
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "mill", *argv],
        env={**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    seen, hidden, deadline = [], False, time.monotonic() + 120
    try:
        while process.poll() is None and time.monotonic() < deadline:
            lines = command_lines()
            own_line = lines.pop(process.pid, "")
            hidden = hidden or (bool(own_line) and KEY not in own_line)
            seen += [line for line in [*lines.values(), *([own_line] if hidden else [])] if leaks(line)]
            time.sleep(0.02)
        out, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert hidden, "mill ended before its command line was read"
    return process.returncode, out, seen


def slow(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
    time.sleep(0.3)
    if "toy_gen 1" in json.dumps(body):
        return status(400, f"bad header {server.headers[-1]['Authorization']}")
    return {"choices": [{"message": {"content": "answer 1"}, "finish_reason": "stop"}]}


def test_a_key_is_removed_from_the_command_line(tmp_path: Path) -> None:
    with FaultServer(slow) as server:
        spec = f'openai-compat[model=m,base_url={server.url},chat=true,api_key="{KEY}"]'
        options = ("--task_paths", TOY, "--output_dir", str(tmp_path / "out"), "--limit", "4")
        code, output, seen = run_watched("eval", spec, "toy_gen", *options)
        assert {headers["Authorization"] for headers in server.headers[-4:]} == {f"Bearer {KEY}"}
    assert code == 1 and seen == [] and not leaks(output) and leaking_files(tmp_path) == []


def test_a_key_with_spaces_is_one_secret(mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"first {KEY}"
    with FaultServer(slow) as server:
        spec = f"openai-compat[model=m,base_url={server.url},api_key={key},chat=true]"
        (hidden_spec,), hidden = hide([spec])
        for name, value in hidden.items():
            monkeypatch.setenv(name, value)
        for written in (spec, hidden_spec):
            options = ("--task_paths", TOY, "--output_dir", "out", "--limit", "4", "--fresh")
            code, output = mill("eval", written, "toy_gen", *options)
            assert {headers["Authorization"] for headers in server.headers[-4:]} == {f"Bearer {key}"}
            assert code == 1 and not leaks(output) and leaking_files(tmp_path) == []


BROKEN = ["api_key=a]{key}", 'api_key="a"{key}', "api_key=a {key},=", "api_key=a {key},api_key=b"]


@pytest.mark.parametrize("argument", BROKEN)
def test_a_refused_spec_is_reported_without_its_key(argument: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_spec(f"http://host[model=m,{argument.format(key=KEY)}]")
    assert not leaks(str(raised.value))


@pytest.mark.parametrize("token", [KEY, f"{KEY}@sign"])
def test_a_token_in_an_address_is_removed_from_the_command_line(tmp_path: Path, token: str) -> None:
    with FaultServer(slow) as server:
        spec = f"{server.url.replace('http://', f'HTTP://{token}@')}[model=m,chat=true]"
        options = ("--task_paths", TOY, "--output_dir", str(tmp_path / "out"), "--limit", "4")
        code, output, seen = run_watched("eval", spec, "toy_gen", *options)
        login = base64.b64encode(f"{token}:".encode()).decode()
        assert {headers["Authorization"] for headers in server.headers[-4:]} == {f"Basic {login}"}
    assert code == 1 and seen == [] and not leaks(output) and leaking_files(tmp_path) == []


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, which sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_key_is_in_no_log_and_process_title_of_ray_workers(tmp_path: Path, short_folder: Path) -> None:
    pytest.importorskip("ray")
    with FaultServer(slow) as server:
        spec = f"openai-compat[model=m,base_url={server.url},chat=true,api_key={KEY}]"
        options = ("--task_paths", TOY, "--output_dir", str(tmp_path / "out"), "--limit", "4", "--executor", "ray")
        code, output, seen = run_watched("eval", spec, "toy_gen", *options, RAY_TMPDIR=str(short_folder))
        assert server.headers[-1]["Authorization"] == f"Bearer {KEY}"
    assert code == 1, output
    logs = list(short_folder.rglob("session_*/logs/*"))
    assert logs, "Ray wrote its logs elsewhere"
    assert seen == [] and not leaks(output) and leaking_files(tmp_path) == [] and leaking_files(short_folder) == []


def test_only_specs_are_rewritten(tmp_path: Path) -> None:
    prompt = "Write key=value pairs, and token = 3."
    options = ("--task_paths", TOY, "--output_dir", str(tmp_path / "out"), "--limit", "1", "--system_prompt", prompt)
    command = [sys.executable, "-m", "mill", "eval", "toy[path=a]", "toy_gen", *options]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    (manifest,) = (tmp_path / "out").glob("*/*/manifest.json")
    assert json.loads(manifest.read_text())["settings"]["system_prompt"] == prompt


@pytest.mark.parametrize(("written", "key"), [('"a\\"quote-123"', 'a"quote-123'), ('"$SOME_NAME"', KEY)])
def test_a_hidden_key_is_parsed_to_the_same_value(written: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_NAME", KEY)
    spec = f"openai-compat[model=m,api_key={written}]"
    assert parse_spec(spec).arguments["api_key"] == key
    (rewritten,), hidden = hide([spec])
    for name, value in hidden.items():
        monkeypatch.setenv(name, value)
    assert parse_spec(rewritten).arguments["api_key"] == key


LISTS = (
    "org/name, openai-compat[model=m,api_key={key}]",
    "openai-compat[model=m,api_key={key}],org/name",
    "my folder/config.py[api_key={key}]",
    "--judge=openai-compat[model=m,api_key={key}]",
)


@pytest.mark.parametrize("word", LISTS)
def test_a_key_is_hidden_in_every_form_of_a_spec(word: str) -> None:
    rewritten, hidden = hide(["mill", "eval", word.format(key=KEY), "gsm8k"])
    assert not leaks(" ".join(rewritten)) and list(hidden.values()) == [KEY]


@pytest.mark.parametrize("name", ["vertex_credentials", "private_key", "watsonx_zenapikey"])
def test_other_secret_names_are_redacted(name: str) -> None:
    assert redact({name: KEY}) == {name: "***"}


def test_a_redirect_does_not_forward_the_key(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILL_API_KEY", KEY)
    with FaultServer(slow) as other:

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
    mill("eval", f"openai-compat[model=m,base_url={address},chat=true]", "toy_gen", "--task_paths", TOY, "--limit", "1")
    expected = {"signs": "Basic bWU6cEBzcw==", "a newline": f"Bearer {KEY}"}[name]  # me:p@ss
    assert echo.headers and echo.headers[-1].get("Authorization") == expected


def test_a_key_in_the_model_name_of_a_response_is_not_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The warning about another model names the key, which is redacted in messages, records and reports."""

    def echo(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path != "/v1/completions" or "echo" in body or "prompt_logprobs" in body:
            return {"choices": []}
        return {"choices": [{"text": "x", "finish_reason": "stop"}], "model": server.headers[-1].get("Authorization")}

    for name in [name for name in sys.modules if name.startswith("mill_file_")]:
        del sys.modules[name]
    with FaultServer(echo) as server:
        spec = f"openai-compat[model=m,base_url={server.url},api_key={KEY}]"
        argv = ["--task_paths", TOY, "--limit", "3", "--quiet", "--output_dir", str(tmp_path)]
        assert run(["eval", spec, "toy_gen", *argv]) == 0
        assert run(["compare", "toy[path=a]", spec, "--tasks", "toy_gen", *argv]) == 0
    out, err = capsys.readouterr()
    assert "another model" in out + err or "same model" in out + err
    assert not leaks(out + err) and leaking_files(tmp_path) == []
