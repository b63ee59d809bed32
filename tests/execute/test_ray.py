"""Workers on Ray, and several servers, give what one process gives; whoever dies, nothing is lost and nobody waits."""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import ModelError
from mill.execute.on_ray import RayCluster
from mill.tasks.cifar10 import CLASSES
from mill.tasks.shapes import PAIRS, draw
from tests.launching import (
    TESTS,
    ended,
    environment,
    launched,
    lines,
    run,
    told,
    toy,
    until,
)
from tests.outcomes import assert_same_end, recorded, samples, scores, sessions
from tests.servers import FaultServer, cut, free_port

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for Ray's processes in /proc")
TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"
CLIP = TESTS.parent / "mill/models/configs/clip/shapes.py"


class Cluster:
    """`ray start --head` on this machine: its address, and the token that lets one in."""

    def __init__(self, cores: int = 2) -> None:
        self.port = str(free_port())
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        said = self._ray("start", "--head", "--port", self.port, "--num-cpus", str(cores), "--include-dashboard", "false")
        found = re.search(r"--address='([^']+)'", said)
        assert found, said
        self.address = found[1]

    def _ray(self, *arguments: str) -> str:
        script = "from ray.scripts.scripts import main; main()"
        command = [sys.executable, "-c", script, *arguments, "--disable-usage-stats"]
        done = subprocess.run(command, env=environment(**self.token), capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    def processes(self) -> list[int]:
        """Ray's own; they name the head's address. Workers end with the raylet."""
        ours = re.compile(rf"site-packages/ray/.*[:=]{self.port}\b")
        return [pid for pid, words in processes() if ours.search(words)]

    def grow(self) -> list[int]:
        """Another machine joins, as far as Ray can tell; these are its processes."""
        before = self.processes()
        self._ray("start", "--address", self.address, "--num-cpus", "1")
        return [pid for pid in self.processes() if pid not in before]

    def kill(self) -> None:
        while found := self.processes():
            kill(found)
            time.sleep(0.1)


def kill(processes: list[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes() -> Iterator[tuple[int, str]]:
    """Every process that runs, with its command."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words := (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                yield int(place.name), words


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process gives."""
    folder = tmp_path_factory.mktemp("alone")
    assert run(toy(folder, TASKS))[0] == 0
    return folder


def on_ray(workers: int, cluster: Cluster | None = None) -> list[str]:
    return ["--engine", "ray", "--workers", str(workers), *(["--address", cluster.address] if cluster else [])]


def watched(log: Path, delay: float = 0.0) -> str:
    return f"watched[path=toy,delay={delay},log={log}]"


def computed(log: Path) -> list[str]:
    """The keys of what was computed."""
    return [line.split()[0] for line in lines(log)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_give_what_one_process_gives(workers: int, cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    code, said = run(toy(out, TASKS, *on_ray(workers, cluster), model=watched(log)), **cluster.token)
    assert code == 0, said
    assert_same_end(out, alone)
    assert sorted(computed(log)) == sorted(recorded(alone)), "each is computed once"
    assert said.strip() == ""


def test_ray_of_this_machine_needs_no_preparation_and_leaves_nothing(alone: Path, tmp_path: Path) -> None:
    """Resumed with another number of workers, once from an interruption such as a scheduler sends it."""
    log, out = tmp_path / "log", tmp_path / "out"
    running = launched(toy(out, TASKS, *on_ray(2), model=watched(log, 0.05)))
    until(lambda: len(recorded(out)) > 8)
    running.send_signal(signal.SIGTERM)
    began = time.monotonic()
    code, said = ended(running, 60)
    assert code == 143 and time.monotonic() - began < 40
    assert told(said) == ["mill: interrupted; nothing that was answered is lost: the same command goes on from here"]
    assert [session["ended"] for session in sessions(out)] == ["interrupted"]
    known = set(recorded(out))
    log.unlink()
    code, said = run(toy(out, TASKS, *on_ray(3), model=watched(log, 0.05)))
    assert code == 0, said
    assert not known & set(computed(log))
    assert_same_end(out, alone)
    until(lambda: not of_driver(running.pid))


def of_driver(pid: int) -> list[int]:
    """The processes of the Ray that a driver started: its session is named after the driver."""
    return [found for found, words in processes() if re.search(rf"session_[\d_-]+_{pid}\b", words)]


def test_a_killed_driver_takes_its_ray_along_and_loses_nothing(alone: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = toy(out, TASKS, *on_ray(2), model=watched(log, 0.05))
    running = launched(command)
    until(lambda: len(recorded(out)) > 8)
    assert of_driver(running.pid)
    running.kill()
    until(lambda: not of_driver(running.pid))
    running.communicate()
    known = set(recorded(out))
    log.unlink()
    assert run(toy(out, TASKS, model=watched(log, 0.05)))[0] == 0
    assert known and not known & set(computed(log))
    assert_same_end(out, alone)


def test_a_killed_worker_is_replaced_and_nothing_is_lost(cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    command = toy(out, TASKS, *on_ray(2, cluster), model=watched(log, 0.02))
    running = launched(command, **cluster.token)
    until(lambda: len(recorded(out)) > 8)
    os.kill(int(lines(log)[0].split()[1]), signal.SIGKILL)
    code, said = ended(running)
    assert code == 0, said
    assert "note: a worker died (killed or crashed)" in said
    assert_same_end(out, alone)
    assert "workers that died and were replaced: 1" in sessions(out)[0]["remarks"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_request_that_kills_its_worker_twice_is_answered_in_the_end(
    workers: int, cluster: Cluster, tmp_path: Path
) -> None:
    model = f"deadly[path=toy,poison=toy_gen 17,deaths=2,tombs={tmp_path}/tombs]"
    code, said = run(toy(tmp_path / "out", "toy_gen", *on_ray(workers, cluster), model=model), **cluster.token)
    assert code == 0, said
    assert run(toy(tmp_path / "alone", "toy_gen"))[0] == 0
    assert_same_end(tmp_path / "out", tmp_path / "alone")
    assert len(lines(tmp_path / "tombs")) == 3


def test_a_request_that_always_kills_its_worker_is_an_error_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    model = f"deadly[path=toy,poison=toy_gen 17,deaths=99,tombs={tmp_path}/tombs]"
    code, said = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 1, said
    rows = {row["id"]: row["error"] for row in samples(tmp_path / "out")["toy_gen.jsonl"]}
    assert [sample for sample, error in rows.items() if error] == ["17"]
    assert "the worker died each of the 3 times it was asked" in rows["17"]
    assert run(toy(tmp_path / "alone", "toy_gen"))[0] == 0
    found, expected = recorded(tmp_path / "out"), recorded(tmp_path / "alone")
    assert found.keys() == expected.keys()
    assert sum(found[key] != expected[key] for key in expected) == 1


def test_a_worker_with_little_memory_takes_smaller_batches(cluster: Cluster, tmp_path: Path) -> None:
    model = f"hungry[path=toy,table={tmp_path}/table]"
    code, said = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 0, said
    assert run(toy(tmp_path / "alone", "toy_gen"))[0] == 0
    assert_same_end(tmp_path / "out", tmp_path / "alone")
    poor = lines(tmp_path / "table")[0]
    eaten = [int(line.split()[2]) for line in lines(tmp_path / "table") if line.startswith(f"{poor} ate")]
    assert eaten and max(eaten) <= 400_000_000


def test_failing_samples_that_stand_together_are_errors_as_in_one_process(cluster: Cluster, tmp_path: Path) -> None:
    """Samples 20 to 29 may be all that is in a bundle: that is no reason to give the model up."""
    model = "watched[path=toy,fails=2]"
    code, said = run(toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 1 and told(said) == [], said
    assert run(toy(tmp_path / "alone", "toy_gen", model=model))[0] == 1
    assert_same_end(tmp_path / "out", tmp_path / "alone")


def test_a_backend_that_exits_keeps_nobody_waiting(cluster: Cluster, tmp_path: Path) -> None:
    command = toy(tmp_path, "toy_gen", *on_ray(2, cluster), model="quitting[path=toy]")
    code, said = ended(launched(command, **cluster.token), 30)
    assert code != 0 and len(told(said)) == 1 and "SystemExit" in said, said


def test_a_worker_that_cannot_open_the_model_says_so_while_another_is_on_its_way(cluster: Cluster, tmp_path: Path) -> None:
    command = toy(tmp_path / "out", "toy_gen", *on_ray(2, cluster), model=f"latecoming[path=toy,table={tmp_path}/table]")
    code, said = run(command, **cluster.token)
    assert code == 1
    assert said.splitlines() == ["mill: toy: ValueError: no weights"]


def test_a_real_model_answers_alike_on_workers(cluster: Cluster, tiny_model: Path, tmp_path: Path) -> None:
    model = f"hf[path={tiny_model},dtype=float32,exact=true]"
    for folder, more in (("out", on_ray(2, cluster)), ("alone", [])):
        code, said = run(toy(tmp_path / folder, "toy_gen,toy_choice", *more, model=model), TOY_N="5", **cluster.token)
        assert code == 0, said
    found, expected = recorded(tmp_path / "out"), recorded(tmp_path / "alone")
    assert found.keys() == expected.keys() and len(expected) == 20
    for key, answer in expected.items():
        assert found[key].get("text") == answer.get("text")
        assert found[key].get("score") == pytest.approx(answer.get("score"), abs=1e-5)


def sees_alike(cluster: Cluster, folder: Path, model: str, task: str, **more: str) -> None:
    """A worker ranks the labels of pictures as one process does."""
    folders = folder / "out", folder / "alone"
    for place, engine in zip(folders, (on_ray(1, cluster), []), strict=True):
        command = ["eval", model, task, "--limit", "30", "--output_dir", str(place), "--quiet", *engine]
        code, said = run(command, **cluster.token, **more)
        assert code == 0, said
    found, expected = (samples(place)[f"{task}.jsonl"] for place in folders)
    assert [row["responses"] for row in found] == [row["responses"] for row in expected]
    assert scores(folders[0]) == scores(folders[1])


def test_clip_sees_alike_on_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    sees_alike(cluster, tmp_path, str(CLIP), "shapes_unseen")


def test_timm_sees_alike_on_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    torch.save(timm.create_model("test_vit", num_classes=10).state_dict(), tmp_path / "weights.pth")
    for number, name in enumerate(CLASSES):
        place = tmp_path / "data/uoft-cs/cifar10/test" / name
        place.mkdir(parents=True)
        draw(*PAIRS[number], random.Random(number)).save(place / "0.png")
    model = f"timm[path=test_vit,num_classes=10,checkpoint={tmp_path / 'weights.pth'}]"
    sees_alike(cluster, tmp_path, model, "cifar10_supervised", MILL_DATA=str(tmp_path / "data"))


def test_two_runs_share_a_cluster(cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    """Each wants all of its cores."""
    both = [launched(toy(tmp_path / name, TASKS, *on_ray(2, cluster)), **cluster.token) for name in "ab"]
    assert [ended(process)[0] for process in both] == [0, 0]
    assert_same_end(tmp_path / "a", alone)
    assert_same_end(tmp_path / "b", alone)


def test_a_machine_that_is_lost_leaves_its_work_to_the_others(alone: Path, tmp_path: Path) -> None:
    log, out, cluster = tmp_path / "log", tmp_path / "out", Cluster(cores=1)
    try:
        other = cluster.grow()
        running = launched(toy(out, TASKS, *on_ray(2, cluster), model=watched(log, 0.04)), **cluster.token)
        until(lambda: len({line.split()[1] for line in lines(log)}) == 2)
        kill(other)
        code, said = ended(running)
    finally:
        cluster.kill()
    assert code == 0 and "note: a worker died" in said, said
    assert_same_end(out, alone)


@pytest.mark.parametrize("part", ["", "raylet"], ids=["head", "node"])
def test_a_cluster_that_dies_is_told_and_the_run_goes_on_without_ray(part: str, alone: Path, tmp_path: Path) -> None:
    """All of it, or only what manages the machine that the command runs on."""
    log, out, cluster = tmp_path / "log", tmp_path / "out", Cluster()
    try:
        command = toy(out, TASKS, *on_ray(2, cluster), model=watched(log, 0.04))
        running = launched(command, **cluster.token)
        until(lambda: len(recorded(out)) > 8)
        kill([pid for pid, words in processes() if pid in cluster.processes() and part in words.split()[0]])
        began = time.monotonic()
        code, said = ended(running, 90)
    finally:
        cluster.kill()
    assert code > 0 and time.monotonic() - began < 80
    (line,) = told(said)
    assert (cluster.address if not part else "that this command is on died") in line
    assert [session["ended"] for session in sessions(out)] == ["failed"]
    known = set(recorded(out))
    log.unlink(missing_ok=True)
    assert run(toy(out, TASKS, model=watched(log, 0.04)))[0] == 0
    assert known and not known & set(computed(log))
    assert_same_end(out, alone)


def test_an_address_where_nobody_is_is_refused_in_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    code, said = run(toy(tmp_path, "toy_gen", "--engine", "ray", "--address", f"127.0.0.1:{free_port()}"))
    assert code != 0 and time.monotonic() - began < 40
    (line,) = told(said)
    assert "nothing answers" in line


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--workers", "2"], "add --engine ray"),
        (["--address", "127.0.0.1:1"], "add --engine ray"),
        (["--gpus_per_worker", "1"], "add --engine ray"),
        (["--engine", "slurm"], "slurm"),
        (["--engine", "ray", "--workers", "0"], "workers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(more: list[str], words: str, tmp_path: Path) -> None:
    code, said = run(toy(tmp_path, "toy_gen", *more))
    assert code == 2
    (line,) = told(said)
    assert words in line


LAPTOP, NODE = {"CPU": 2.0}, {"CPU": 8.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("workers", "wanted", "takes", "machines", "share"),
    [
        (2, None, 1, [LAPTOP], (1.0, 0.0)),
        (3, None, 1, [LAPTOP], (0.495, 0.0)),
        (1, None, 1, [LAPTOP, LAPTOP], (2.0, 0.0)),
        (3, None, 1, [LAPTOP, LAPTOP], (1.0, 0.0)),
        (2, None, 1, [NODE], (4.0, 1.0)),
        (2, None, 2, [{"CPU": 9.0, "GPU": 4.0}], (4.0, 2.0)),
        (4, 0.5, 1, [{"CPU": 8.0, "GPU": 2.0}], (2.0, 0.5)),
        (2, None, 0, [NODE], (4.0, 0.0)),
        (8, None, 1, [NODE, NODE, {"CPU": 64.0}], (2.0, 1.0)),
        (3, 0.1, 1, [{"CPU": 3.0, "GPU": 0.3}], (1.0, 0.1)),
    ],
)
def test_a_worker_gets_what_its_model_takes_on_one_machine(
    workers: int, wanted: float | None, takes: int, machines: list[dict[str, float]], share: tuple[float, float]
) -> None:
    found = RayCluster(None, workers, wanted, takes)._resources(machines)
    assert (found["num_cpus"], found["num_gpus"]) == share


@pytest.mark.parametrize(
    ("workers", "takes", "gpus"), [(5, 1, [2.0, 2.0]), (2, 2, [1.0, 1.0, 1.0, 1.0]), (1, 8, [4.0, 4.0])]
)
def test_more_than_the_machines_have_is_refused(workers: int, takes: int, gpus: list[float]) -> None:
    with pytest.raises(ModelError, match="do not fit on the machines"):
        RayCluster(None, workers, None, takes)._resources([{"CPU": 8.0, "GPU": count} for count in gpus])


def test_too_many_accelerators_are_refused_for_every_model(cluster: Cluster, tmp_path: Path) -> None:
    command = toy(tmp_path, "toy_gen", *on_ray(2, cluster), "--gpus_per_worker", "1", model="toy[path=a],toy[path=b]")
    code, said = run(command, **cluster.token)
    assert code != 0
    assert len(told(said)) == 2 and all("--gpus_per_worker" in line for line in told(said)), said


class Answers:
    """What so many servers of one model answer. None does before every one of them was asked: each gets its share."""

    def __init__(self, servers: int) -> None:
        self.servers, self.asked = servers, set[FaultServer]()

    def __call__(self, server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if "toy_gen" in body["prompt"]:
            self.asked.add(server)
            until(lambda: len(self.asked) == self.servers)
        return {"choices": [{"text": f"re: {body['prompt']}", "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}


def ask_servers(folder: Path, servers: list[FaultServer], *more: str, **environment: str) -> str:
    """Run a task on servers that share it, and return what was said."""
    urls = ",".join(server.url for server in servers)
    code, said = run(toy(folder, "toy_gen", "--base_url", urls, *more, model="openai-compat[model=m]"), **environment)
    assert code == 0, said
    return said


@pytest.mark.parametrize("ray", [False, True], ids=["threads", "ray"])
def test_several_servers_share_the_work(ray: bool, cluster: Cluster, tmp_path: Path) -> None:
    with FaultServer(Answers(1)) as only:
        ask_servers(tmp_path / "one", [only])
    answers = Answers(2)
    with FaultServer(answers) as first, FaultServer(answers) as second:
        ask_servers(tmp_path / "two", [first, second], *(on_ray(2, cluster) if ray else []), **cluster.token)
    asked = [[body["prompt"] for _, body in server.calls if "toy_gen" in body["prompt"]] for server in (first, second)]
    assert all(asked) and sorted(asked[0] + asked[1]) == sorted(f"toy_gen {number}" for number in range(40))
    assert samples(tmp_path / "two") == samples(tmp_path / "one")
    assert scores(tmp_path / "two") == scores(tmp_path / "one")


@pytest.mark.parametrize(
    ("model", "variable", "header"),
    [
        ("litellm[model=mistral/m,api_base=http://{host}/v1]", "MISTRAL_API_KEY", "Bearer hidden-word"),
        ("openai-compat[model=m,base_url=http://ada:$ENTRY@{host}]", "ENTRY", "Basic YWRhOmhpZGRlbi13b3Jk"),
    ],
    ids=["provider", "address"],
)
def test_keys_reach_workers_that_were_started_without_them(
    model: str, variable: str, header: str, cluster: Cluster, tmp_path: Path
) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        words = {"message": {"role": "assistant", "content": "yes"}} if "messages" in body else {"text": "yes"}
        return {"choices": [{**words, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}

    with FaultServer(answer) as server:
        spec = model.replace("{host}", server.url.removeprefix("http://"))
        command = toy(tmp_path, "toy_gen", "--limit", "3", *on_ray(1, cluster), model=spec)
        code, said = run(command, **{variable: "hidden-word"}, **cluster.token)
        assert code == 0, said
        shown = {value for headers in server.headers for name, value in headers.items() if name.lower() == "authorization"}
        assert len(server.calls) >= 3 and shown == {header}


def test_a_server_that_goes_away_leaves_its_work_to_the_others(tmp_path: Path) -> None:
    answers = Answers(2)

    def leaving(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        found = answers(server, path, body)
        if "toy_gen" not in body["prompt"]:
            return found
        server.server.socket.close()
        return cut()

    with FaultServer(answers) as first, FaultServer(leaving) as second:
        said = ask_servers(tmp_path, [first, second])
    assert "a worker died (cannot reach" in said
    assert len(recorded(tmp_path)) == 40
