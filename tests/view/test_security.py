"""Who may read what `mill view` serves, by plain HTTP: tokens, hosts, origins, methods, paths, headers."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from mill.api.registry import register_task
from mill.checks.compare import compare_runs
from mill.view.offline import export_site
from tests.fixed_answers import FixedTask, run_answers, run_right
from tests.launching import MILL, ended, environment, run, start, toy
from tests.view.saved_checks import page_data
from tests.view.serving import Served, serving

SECRET = "root of all evil"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    assert run(toy(folder / "results", "toy_gen"), TOY_N="3")[0] == 0
    (folder / "secret.js").write_text(SECRET)
    with serving(folder / "results", tmp_path_factory.mktemp("cache")) as found:
        yield found


def get(served: Served, path: str, *, method: str = "GET", **headers: str) -> Reply:
    """A request exactly as it is given: no path is normalized, and every header can be replaced."""
    host = urlsplit(served.root).netloc
    connection = http.client.HTTPConnection(host, timeout=20)
    given = {"Host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host=True)
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    found = Reply(reply.status, dict(reply.getheaders()), reply.read())
    connection.close()
    return found


def test_the_data_needs_the_token(served: Served) -> None:
    assert get(served, f"/api/state?token={served.token}").status == 200
    for path in ("/api/state", "/events", "/report/check/0", "/api/raw", "/api/media", "/api/nothing"):
        for query in ("", "?token=", f"?token={served.token[:-1]}", f"?token={served.token}x", f"?token={quote('é')}"):
            reply = get(served, path + query)
            assert reply.status == 401, path + query
            assert "token" in reply.error
            assert served.token not in reply.body.decode()


def test_requests_of_other_sites_are_refused(served: Served) -> None:
    path = f"/api/state?token={served.token}"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"):
        assert get(served, path, Origin=origin).status == 403, origin
    for site in ("cross-site", "same-site"):
        assert get(served, path, Sec_Fetch_Site=site).status == 403, site
    own = {"Origin": served.root.rstrip("/"), "Sec_Fetch_Site": "same-origin"}
    assert get(served, path, **own).status == 200
    for host in ("localhost", "127.0.0.1"):  # names of this machine
        assert get(served, path, Host=f"{host}:{urlsplit(served.root).port}").status == 200, host


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.nip.io", "localhost.evil.example", ""])
def test_another_host_is_refused(served: Served, host: str) -> None:
    """A page elsewhere whose name points at this machine: DNS rebinding."""
    for path in ("/", f"/api/state?token={served.token}"):
        assert get(served, path, Host=host).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_possible(served: Served, method: str) -> None:
    assert get(served, f"/api/state?token={served.token}", method=method).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.js",
        "/%2e%2e%2fsecret.js",
        "/static/app.js",
        "//etc/passwd",
        "/%00",
        f"/{'a' * 5000}",
    ],
)
def test_no_path_leaves_the_folder_of_the_pages(served: Served, path: str) -> None:
    reply = get(served, path)
    assert reply.status in (400, 404)
    assert SECRET.encode() not in reply.body
    assert b"root:" not in reply.body


def test_a_path_of_an_api_is_no_file(served: Served) -> None:
    for path in ("/api/../app.js", "/api/..%2fapp.js", f"/api/..%2f..%2fsecret?token={served.token}"):
        assert SECRET.encode() not in get(served, path).body
    for name in ("run", "samples", "sample", "compare", "pair", "tokens", "worst", "load", "check", "categories"):
        for given in ("../../etc/passwd", "%00", "%F0%9F%98%80", "%ED%A0%80", "a" * 3000, "' OR 1=1 --"):
            values = "&".join(f"{key}={quote(given, safe='%')}" for key in ("run", "runs", "a", "t", "id", "check", "task"))
            reply = get(served, f"/api/{name}?{values}&token={served.token}")
            assert reply.status in (200, 400), (name, given, reply.body[:200])
            assert b"Traceback" not in reply.body


def test_what_is_no_http_is_refused_without_a_traceback(served: Served) -> None:
    """`serving` asserts that nothing was logged."""
    found = urlsplit(served.root)
    for request in (
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((found.hostname, found.port or 0), timeout=20) as connection:
            connection.sendall(request)
            assert b" 400 " in connection.recv(100)


@pytest.mark.parametrize("path", ["/", "/nothing", "/api/state", "/api/state?token=", "/report/check/0?token="])
def test_every_reply_has_the_headers(served: Served, path: str) -> None:
    reply = get(served, f"{path}{served.token}" if path.endswith("=") else path)
    headers = reply.headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    if path == "/":
        for name, element in (("script-src", "script"), ("style-src", "style")):
            (text,) = re.findall(f"<{element}>(.*?)</{element}>", reply.body.decode(), re.DOTALL)
            assert policy[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


def refused(*options: str) -> str:
    """The one line with which `mill view` ends."""
    process = start([sys.executable, *MILL, "view", *options, "--no_browser"], **environment())
    code, stderr = ended(process, 60)
    assert code == 2
    (line,) = stderr.strip().splitlines()
    return line


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    assert "--token" in refused(str(tmp_path), "--host", "0.0.0.0")
    assert "16 or more" in refused(str(tmp_path), "--host", "0.0.0.0", "--token", "short")


def test_a_server_on_all_addresses_has_the_given_token_and_is_called_by_addresses_alone(tmp_path: Path) -> None:
    token = "0123456789abcdef"
    with serving(tmp_path, tmp_path, "--host", "0.0.0.0", "--token", token) as everywhere:
        assert everywhere.token == token
        assert get(everywhere, f"/api/state?token={token}").status == 200
        assert get(everywhere, f"/api/state?token={token}", Host="192.0.2.7:8080").status == 200
        assert get(everywhere, f"/api/state?token={token}", Host="evil.example").status == 403
        assert get(everywhere, "/api/state").status == 401


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in refused(str(tmp_path), "--port", port)


def test_a_copy_of_some_runs_has_no_check_of_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check has the prompts and answers of its runs: public1 with public2 is copied, unlisted with public1 is not."""
    monkeypatch.setenv("MILL_CACHE", str(tmp_path / "cache"))
    results = tmp_path / "results"
    register_task("quiz")(lambda name: FixedTask(name, 3))
    paths = {name: run_right(results, name, {1}, 3) for name in ("public1", "public2")}
    paths["unlisted"] = run_answers(results, "unlisted", FixedTask("quiz", 3), ["PRIVATE"] * 3)
    for first, second in (("public1", "public2"), ("public1", "unlisted")):
        compare_runs(paths[first], paths[second]).save(results)
    export_site(results, tmp_path / "some", ["public*"])
    copied = b"".join(file.read_bytes() for file in (tmp_path / "some").rglob("*") if file.is_file())
    assert len(checks_in(tmp_path / "some")) == 1 and b"public2" in copied
    assert b"PRIVATE" not in copied and b"unlisted" not in copied
    export_site(results, tmp_path / "all", [])
    assert len(checks_in(tmp_path / "all")) == 2


def checks_in(site: Path) -> dict[str, object]:
    return dict(page_data((site / "index.html").read_bytes())["checks"])
