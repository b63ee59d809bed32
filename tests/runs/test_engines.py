"""An answer belongs to the build that gave it: servers that are replaced between two commands, and what is reused."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.api.engine import BUILD, EVERY, INSTANCE, SAME, Engine, Reuse
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.checks.result import find_checks, read_check
from mill.cli.main import run
from mill.store.record import Index, Record
from tests.launching import TOY
from tests.outcomes import recorded, samples, scores
from tests.servers import FaultServer

OLD, NEW = Engine({"vllm": "0.31.0"}, {"started": "1"}), Engine({"vllm": "0.32.0"}, {"started": "2"})
AGAIN = Engine({"vllm": "0.31.0"}, {"started": "3"})
SILENT, UNKNOWN = Engine({"vllm": "0.31.0"}), Engine()


@pytest.mark.parametrize(
    ("rule", "taken"),
    [
        (EVERY, [OLD, AGAIN, SILENT, NEW, UNKNOWN]),
        (BUILD, [OLD, AGAIN, SILENT, UNKNOWN]),
        (SAME, [OLD, AGAIN, SILENT]),
        (INSTANCE, [OLD]),
    ],
)
def test_what_is_reused_where_an_engine_is_known(rule: str, taken: list[Engine]) -> None:
    reuse = Reuse(rule, frozenset({OLD.id}))
    assert [one for one in (OLD, AGAIN, SILENT, NEW, UNKNOWN) if reuse.allows(one.id, time.time() - 100)] == taken


@pytest.mark.parametrize(("rule", "taken"), [(BUILD, [OLD, UNKNOWN]), (SAME, [UNKNOWN]), (INSTANCE, [])])
def test_what_is_reused_where_the_engine_is_not_known(rule: str, taken: list[Engine]) -> None:
    assert [one for one in (OLD, UNKNOWN) if Reuse(rule).allows(one.id, time.time())] == taken


def test_answers_of_another_start_are_reused_for_some_time() -> None:
    reuse = Reuse(INSTANCE, frozenset({OLD.id}), within_s=3600)
    assert reuse.allows(AGAIN.id, time.time() - 3000) and not reuse.allows(AGAIN.id, time.time() - 4000)
    assert not reuse.allows(NEW.id, time.time()) and not reuse.allows(UNKNOWN.id, time.time())


QUESTION = Request(GENERATE, "q")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_the_answer_of_the_latest_build_counts(tmp_path: Path, order: tuple[int, ...]) -> None:
    """In whatever order its files are read; an error of it too, since an older answer is not its answer."""
    answers = [Response(text="old", engine=OLD.id), Response(text="new", engine=NEW.id), Response(error="no", engine=NEW.id)]
    for number, response in zip(order, answers, strict=True):
        record = Record(tmp_path)
        record.put(QUESTION, response)
        record.close()
        (written,) = [file for file in (tmp_path / "record").iterdir() if file.name[0] != "t"]
        written.rename(written.with_name(f"t{number}.jsonl"))
    index = Index(tmp_path / "record")
    line = index.find(QUESTION.key)
    assert line is not None
    assert index.response(line).text == ("old" if order[0] == 2 else "new")


def evaluation(out: Path, model: str, *more: str) -> list[str]:
    return ["eval", model, "toy_gen", "--task_paths", str(TOY), "--output_dir", str(out), "--quiet", *more]


class Server:
    """Says which version it is; `asked` counts the prompts of the tasks."""

    def __init__(self, server: FaultServer) -> None:
        self.server, self.asked, self.provider = server, 0, ""
        server.metadata["owned_by"] = "vllm"

    def restarts(self, version: str = "0.31.0", started: str = "1") -> None:
        self.server.gets = {"/version": {"version": version}, "/server_info": {}, "/props": {"media_marker": started}}


@pytest.fixture
def server() -> Iterator[Server]:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        found.asked += "toy" in str(body.get("prompt"))
        text = f"answer {server.gets['/version']['version']}"
        return {"choices": [{"text": text, "finish_reason": "stop"}], "provider": found.provider}

    with FaultServer(answer) as running:
        found = Server(running)
        found.restarts()
        yield found


@pytest.fixture
def mill(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Evaluate 40 questions; returns how many were asked, and the output."""

    def call(*more: str) -> tuple[int, str]:
        before = server.asked
        assert run(evaluation(tmp_path / "out", f"{server.server.url}/v1[model=m]", *more)) == 0
        return server.asked - before, capsys.readouterr().out

    return call


def test_answers_of_another_build_are_asked_for_again(server: Server, mill: Any, tmp_path: Path) -> None:
    assert mill()[0] == 40
    server.restarts(started="2")
    asked, said = mill()
    assert asked == 0 and "40 read from the record (given" in said and " by vllm 0.31.0; --fresh asks again" in said
    server.restarts("0.32.0", "3")
    assert mill()[0] == 40
    assert [row["responses"][0][0]["text"] for row in samples(tmp_path / "out")["toy_gen.jsonl"]] == ["answer 0.32.0"] * 40
    assert scores(tmp_path / "out")["tasks"]["toy_gen"]["warnings"] == []
    (folder,) = (tmp_path / "out").glob("*/*")
    before = scores(tmp_path / "out")["tasks"]
    assert run(["score", str(folder), "--task_paths", str(TOY)]) == 0 and scores(tmp_path / "out")["tasks"] == before
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [one["build"]["vllm"] for one in manifest["engines"].values()] == ["0.31.0", "0.31.0", "0.32.0"]
    server.restarts("0.31.0", "4")
    assert mill()[0] == 40, "the latest answers are those of 0.32.0"


def test_answers_of_two_builds_are_said_beside_the_score(server: Server, mill: Any, tmp_path: Path) -> None:
    assert mill("--limit", "10")[0] == 10
    server.restarts("0.32.0")
    asked, said = mill("--reuse_engines")
    assert asked == 30 and "toy_gen: answers of 2 builds: vllm 0.32.0 (30), vllm 0.31.0 (10)" in said
    warnings = scores(tmp_path / "out")["tasks"]["toy_gen"]["warnings"]
    assert "answers of 2 builds: vllm 0.32.0 (30), vllm 0.31.0 (10)" in warnings


def test_answers_without_an_engine_are_reused_and_said(server: Server, mill: Any, tmp_path: Path) -> None:
    assert mill("--limit", "10")[0] == 10
    for file in (tmp_path / "out").glob("*/*/record/*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            del line["response"]["engine"]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked, said = mill()
    assert asked == 30 and "by an unknown build" in said
    assert "answers of 2 builds: vllm 0.31.0 (30), an unknown build (10)" in said


def test_a_provider_that_changes_is_said(server: Server, mill: Any) -> None:
    server.provider = "Here"
    mill("--limit", "10")
    server.provider = "There"
    assert "toy_gen: answers of 2 providers: There (30), Here (10)" in mill()[1]


def compare(tmp_path: Path, server: Server, *more: str) -> tuple[int, int]:
    before = server.asked
    url = f"{server.server.url}/v1[model=m]"
    options = ["--tasks", "toy_gen", "--task_paths", str(TOY), "--no-report", "--quiet"]
    models = [url, f"{url[:-1]},temperature=0.5]", "--label_a", "a", "--label_b", "b"]
    code = run(["compare", *models, *options, "--output_dir", str(tmp_path / "out"), *more])
    return code, server.asked - before


def test_a_gate_asks_a_server_again_that_was_started_again(server: Server, tmp_path: Path, capsys: Any) -> None:
    gate = ("--fail_on", "match_rate<0.9")
    assert compare(tmp_path, server, *gate) == (0, 80)
    assert compare(tmp_path, server, *gate) == (0, 0)
    capsys.readouterr()
    assert run(["gate", str(tmp_path / "out"), *gate]) == 0
    assert re.search(
        r"compare on toy_gen: b: answers given (just now|\d+ seconds ago) by vllm 0\.31\.0\n", capsys.readouterr().out
    )
    server.restarts(started="2")
    assert compare(tmp_path, server) == (0, 0), "without a rule nothing is decided"
    assert compare(tmp_path, server, *gate, "--reuse_for", "1h") == (0, 0)
    assert compare(tmp_path, server, *gate) == (0, 80)
    server.restarts("0.32.0", "3")
    assert compare(tmp_path, server, *gate, "--reuse_for", "1h") == (0, 80)


def test_two_servers_on_one_host_have_labels_of_their_own(server: Server, tmp_path: Path) -> None:
    with FaultServer(server.server.answer) as other:
        other.gets = server.server.gets
        urls = [f"{one.url}/v1" for one in (server.server, other)]
        options = ["--tasks", "toy_gen", "--task_paths", str(TOY), "--no-report", "--quiet", "--output_dir", str(tmp_path)]
        assert run(["diff", "--model", "m", "--backends", ",".join(f"openai-compat={url}" for url in urls), *options]) == 0
    (check,) = (read_check(file) for file in find_checks(tmp_path))
    labels = [check.baseline, check.variants[0].label]
    assert labels == [f"m base_url={url.removeprefix('http://').removesuffix('/v1')}" for url in urls]


def test_a_gate_asks_a_server_again_that_does_not_say_what_it_is(server: Server, tmp_path: Path) -> None:
    server.server.gets = {"/version": {"version": ""}}
    gate = ("--fail_on", "match_rate<0.9")
    assert compare(tmp_path, server, *gate) == (0, 80)
    assert compare(tmp_path, server) == (0, 0)
    assert compare(tmp_path, server, *gate) == (0, 80)
    assert compare(tmp_path, server, *gate, "--reuse_for", "1h") == (0, 0)


def test_a_server_that_becomes_another_build_ends_the_run(server: Server, tmp_path: Path, capsys: Any) -> None:
    """While questions are in flight: its answers would count as those of the build that was asked."""
    answer = server.server.answer

    def crash(running: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if server.asked == 5:
            server.asked += 1
            server.restarts("0.32.0")
            raise ConnectionError("gone")
        return answer(running, path, body)

    server.server.answer = crash
    model = f"{server.server.url}/v1[model=m,concurrency=1]"
    assert run(evaluation(tmp_path / "out", model)) == 1
    assert "came back as another build (vllm was 0.31.0, is 0.32.0)" in capsys.readouterr().err
    assert {row["text"] for row in recorded(tmp_path / "out").values()} == {"answer 0.31.0"}
