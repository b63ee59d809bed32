"""Workers on Ray, and several servers, give the same results as one process, also where machines and workers are lost.

What the pool does with its workers is in test_pool.py. Here each run starts processes that import Ray, so few runs show all.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from mill.api.consent import Consent
from mill.api.errors import FastPathFailed, ModelBroken, ModelError, SpecError
from mill.api.message import IMAGE, Labels, Media, Message
from mill.api.model import MillModel, run_requests
from mill.api.request import GENERATE, LOGLIKELIHOOD, ZERO_SHOT, Request
from mill.execute import ray_cluster
from mill.execute.pool import WorkerLost
from mill.execute.ray_cluster import Opening, RayBackend, RayCluster, ReplicaActor
from mill.execute.workers import ExecutorChoice, LocalWorker
from mill.models.spec.open import open_model
from mill.models.spec.parse import parse_spec
from tests.launching import ended, lines, mill_lines, run, start_mill, toy
from tests.odd import QuittingModel, WatchedModel
from tests.outcomes import assert_same_end, recorded, samples, scores, sessions
from tests.ray_cluster import TASKS, Cluster, computed, kill, on_ray, processes, watched
from tests.servers import FaultServer, cut, free_port
from tests.waiting import until

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for Ray's processes in /proc")


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """A file with the number of requests that a worker may compute."""
    file = tmp_path / "hold"
    file.write_text("20")
    return file


def test_two_runs_share_a_cluster(cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    """Each run requests all cores, and computes each request once."""
    both = {
        name: start_mill(
            toy(tmp_path / name, TASKS, *on_ray(2, cluster), model=watched(tmp_path / f"{name}.log")), **cluster.token
        )
        for name in "ab"
    }
    for name, process in both.items():
        code, stderr = ended(process)
        assert (code, stderr.strip()) == (0, "")
        assert_same_end(tmp_path / name, alone)
        assert sorted(computed(tmp_path / f"{name}.log")) == sorted(recorded(alone))


def test_a_request_that_kills_its_worker_is_tried_again_and_then_an_error(
    cluster: Cluster, alone_gen: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    model = f"deadly[path=toy,poison=toy_gen 17,mortal=toy_gen 33,tombs={tmp_path}/tombs]"
    code, stderr = run(toy(out, "toy_gen", *on_ray(2, cluster), model=model), **cluster.token)
    assert code == 1 and "warning: a worker died (killed or crashed)" in stderr, stderr
    assert len(lines(tmp_path / "tombs")) == 3
    assert any(line.startswith("workers that died and were replaced: ") for line in sessions(out)[0]["warnings"])
    rows = {row["id"]: row["error"] for row in samples(out)["toy_gen.jsonl"]}
    assert [sample for sample, error in rows.items() if error] == ["33"]
    assert "the worker died each of the 3 times it got this request" in rows["33"]
    responses, expected = recorded(out), recorded(alone_gen)
    assert responses.keys() == expected.keys()
    assert sum(responses[key] != expected[key] for key in expected) == 1


def test_local_ray_starts_on_demand_leaves_no_processes_and_loses_no_response(
    alone: Path, hold: Path, tmp_path: Path
) -> None:
    """A run is terminated, and resumed without Ray."""
    log, out = tmp_path / "log", tmp_path / "out"
    running = start_mill(toy(out, TASKS, *on_ray(2), model=watched(log, hold)))
    until(lambda: len(answered(out)) > 8, "ninth response")
    running.send_signal(signal.SIGTERM)  # which Ray has a handler for
    code, stderr = ended(running, 90)
    until(lambda: not ray_processes(running.pid), "end of Ray's processes")
    (line,) = [line for line in mill_lines(stderr) if "warning" not in line]
    assert "interrupted; all completed requests are recorded: the same command resumes from there" in line, stderr
    assert code == 143 and [session["ended"] for session in sessions(out)] == ["interrupted"]
    log.unlink()
    known = answered(out)
    hold.write_text("1000")
    assert run(toy(out, TASKS, model=watched(log, hold)))[0] == 0
    assert not known & set(computed(log))
    assert (samples(out), scores(out)) == (samples(alone), scores(alone))


def answered(out: Path) -> set[str]:
    """What is recorded, but for requests whose workers died with the node: they are asked again."""
    return {key for key, answer in recorded(out).items() if "error" not in answer}


def ray_processes(pid: int) -> list[int]:
    """The Ray processes that a driver started: their session has the driver's process id."""
    return [process for process, command_line in processes() if re.search(rf"session_[\d_-]+_{pid}\b", command_line)]


def test_the_requests_of_a_lost_machine_go_to_the_others(cluster: Cluster, alone: Path, hold: Path, tmp_path: Path) -> None:
    log, out, other = tmp_path / "log", tmp_path / "out", cluster.grow()
    hold.write_text("5")  # so that each of them gets a chunk
    try:
        running = start_mill(toy(out, TASKS, *on_ray(3, cluster), model=watched(log, hold)), **cluster.token)
        until(lambda: len(workers_in(log)) == 3, "request of the third worker")
    finally:
        kill(other)
    until(lambda: not all(map(os.path.exists, map("/proc/{}".format, workers_in(log)))), "end of a worker")
    hold.write_text("1000")
    code, stderr = ended(running)
    assert code == 0 and "warning: a worker died" in stderr, stderr
    assert_same_end(out, alone)


def workers_in(log: Path) -> set[str]:
    """The process ids of the workers that have written to a log."""
    return {line.split()[1] for line in lines(log)}


# The actor and the cluster, in this process.


def opened(model: MillModel) -> ReplicaActor:
    actor = ReplicaActor()
    actor.worker = LocalWorker(model)
    return actor


def test_a_worker_answers_as_the_model_of_the_command(tiny_model: Path) -> None:
    """What is sent to it and back is pickled."""
    spec = parse_spec(f"hf[path={tiny_model},dtype=float32,exact=true]")
    model = open_model(spec)
    (opening,) = RayBackend(ExecutorChoice("ray"), [spec], model, 1)._openings
    labels = Labels(("a", "b"), media=(Media(IMAGE, Image.new("RGB", (2, 2))),) * 2)
    other = Request(ZERO_SHOT, (Message("user", (labels.media[0],)),), labels=labels)
    requests = [Request(LOGLIKELIHOOD, f"question {number}", " answer") for number in range(5)]
    copy = pickle.loads(pickle.dumps([opening, *requests, other]))
    assert copy[-1].key == other.key
    actor = ReplicaActor()
    ray_cluster._handle(actor.open(copy[0]))
    updates = [pickle.loads(pickle.dumps(update)) for update in actor.stream(LOGLIKELIHOOD, copy[1:-1])]
    answers = dict(pair for update in updates for pair in update.responses)
    for request, response in run_requests(model, LOGLIKELIHOOD, requests):
        assert answers[request.key].score == pytest.approx(response.score, abs=1e-5)


def breaking(error: Exception) -> MillModel:
    class Breaking(WatchedModel):
        def stream_responses(self, *given: Any) -> Any:
            raise error

    return Breaking("toy")


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (lambda: WatchedModel("toy", fails="toy"), ModelBroken, "each of the first 8 requests"),
        (lambda: QuittingModel("toy"), ModelError, "the backend called exit"),
        (lambda: breaking(FastPathFailed("other scores")), FastPathFailed, "other scores"),
    ],
)
def test_an_error_of_a_worker_is_the_same_in_the_driver(
    model: Callable[[], MillModel], kind: type[ModelError], message: str
) -> None:
    """Errors travel as text: few exceptions can be pickled."""
    requests = [Request(GENERATE, f"toy {number}") for number in range(40)]
    with pytest.raises(ModelError, match=message) as caught:
        for update in opened(model()).stream(GENERATE, requests):
            ray_cluster._handle(update)
    assert type(caught.value) is kind


def test_a_worker_that_cannot_open_its_model_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(ray_cluster, "open_replica", refuse)
    opening = Opening(parse_spec("hf[path=x]"), None, (), {}, {}, Consent())
    for error, kind in ((ValueError("no weights"), ModelError), (WorkerLost("the server is gone"), WorkerLost)):
        with pytest.raises(kind, match=str(error)):
            ray_cluster._handle(ReplicaActor().open(opening))


@pytest.mark.parametrize("alive", [True, False])
def test_the_loss_of_the_machine_of_the_command_is_reported(monkeypatch: pytest.MonkeyPatch, alive: bool) -> None:
    nodes = [{"Alive": True, "NodeID": "other"}, {"Alive": alive, "NodeID": "own"}]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: nodes))
    monkeypatch.setattr(ray_cluster, "_check_listening", lambda *_, **__: None)
    cluster = RayCluster("127.0.0.1:1", 1, None, 0)
    cluster._node = "own"
    if alive:
        cluster._check()
        return
    with pytest.raises(ModelError, match="that this command is on died"):
        cluster._check()


def test_an_address_without_a_cluster_is_refused() -> None:
    with pytest.raises(ModelError, match="nothing answers"):
        RayCluster(f"127.0.0.1:{free_port()}", 1, None, 0).join()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 2}, "add --executor ray"),
        ({"address": "127.0.0.1:1"}, "--address needs --executor ray"),
        ({"gpus_per_worker": 1.0}, "--gpus_per_worker needs --executor ray"),
        ({"executor": "slurm"}, "slurm"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ExecutorChoice(**given).check(parse_spec("hf[path=x]"))


LAPTOP, NODE = {"CPU": 2.0}, {"CPU": 8.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("workers", "gpus", "accelerators", "machines", "share"),
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
def test_the_resources_of_a_worker_fit_one_machine(
    workers: int,
    gpus: float | None,
    accelerators: int,
    machines: list[dict[str, float]],
    share: tuple[float, float],
) -> None:
    resources = RayCluster(None, workers, gpus, accelerators)._resources(machines)
    assert (resources["num_cpus"], resources["num_gpus"]) == share


@pytest.mark.parametrize(
    ("workers", "accelerators", "gpus"), [(5, 1, [2.0, 2.0]), (2, 2, [1.0, 1.0, 1.0, 1.0]), (1, 8, [4.0, 4.0])]
)
def test_more_gpus_than_the_machines_have_are_refused(workers: int, accelerators: int, gpus: list[float]) -> None:
    with pytest.raises(ModelError, match="do not fit on the machines"):
        RayCluster(None, workers, None, accelerators)._resources([{"CPU": 8.0, "GPU": count} for count in gpus])


# Several servers.


class SharedAnswers:
    """The responses of several servers of one model. None is sent before every server got a request: each has its share."""

    def __init__(self, servers: int) -> None:
        self.servers, self.used = servers, set[FaultServer]()

    def __call__(self, server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if "toy_gen" in body["prompt"]:
            self.used.add(server)
            until(lambda: len(self.used) == self.servers, "request to each server")
        return {"choices": [{"text": f"re: {body['prompt']}", "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}


def run_on_servers(folder: Path, servers: list[FaultServer], *more: str, **environment: str) -> str:
    """Run a task on several servers, whose key is in a variable; returns standard error."""
    urls = ",".join(server.url.replace("://", "://ada:$ENTRY@") for server in servers)
    command = toy(folder, "toy_gen", "--base_url", urls, *more, model="openai-compat[model=m]")
    code, stderr = run(command, ENTRY="hidden-word", **environment)
    assert code == 0, stderr
    return stderr


@pytest.mark.parametrize("ray", [False, True], ids=["threads", "ray"])
def test_several_servers_share_the_requests_and_get_the_key(ray: bool, cluster: Cluster, tmp_path: Path) -> None:
    """Also from workers on a cluster that was started without the key."""
    with FaultServer(SharedAnswers(1)) as only:
        run_on_servers(tmp_path / "one", [only])
    answers = SharedAnswers(2)
    with FaultServer(answers) as first, FaultServer(answers) as second:
        run_on_servers(tmp_path / "two", [first, second], *(on_ray(2, cluster) if ray else []), **cluster.token)
    prompts = [[body["prompt"] for _, body in server.calls if "toy_gen" in body["prompt"]] for server in (first, second)]
    assert all(prompts) and sorted(prompts[0] + prompts[1]) == sorted(f"toy_gen {number}" for number in range(40))
    assert samples(tmp_path / "two") == samples(tmp_path / "one")
    assert scores(tmp_path / "two") == scores(tmp_path / "one")
    headers = [sent for server in (first, second) for sent in server.headers]
    received = {value for sent in headers for name, value in sent.items() if name.lower() == "authorization"}
    assert received == {"Basic YWRhOmhpZGRlbi13b3Jk"}


def test_the_requests_of_a_lost_server_go_to_the_others(tmp_path: Path) -> None:
    answers = SharedAnswers(2)

    def lost(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        responses = answers(server, path, body)
        if "toy_gen" not in body["prompt"]:
            return responses
        server.server.socket.close()
        return cut()

    with FaultServer(answers) as first, FaultServer(lost) as second:
        stderr = run_on_servers(tmp_path, [first, second])
    assert "a worker died (cannot reach" in stderr
    assert len(recorded(tmp_path)) == 40
