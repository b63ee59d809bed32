"""Workers on Ray, and several servers, give the same results as one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import ModelError
from mill.execute.ray_cluster import RayCluster
from tests.launching import TESTS, ended, mill_lines, run, start_mill, toy
from tests.outcomes import assert_same_end, recorded, samples, scores
from tests.ray_cluster import TASKS, Cluster, computed, on_ray, watched
from tests.servers import FaultServer, cut, free_port
from tests.waiting import until

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for Ray's processes in /proc")
CLIP = TESTS.parent / "mill/models/configs/clip/shapes.py"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_give_the_results_of_one_process(workers: int, cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    code, stderr = run(toy(out, TASKS, *on_ray(workers, cluster), model=watched(log)), **cluster.token)
    assert code == 0, stderr
    assert_same_end(out, alone)
    assert sorted(computed(log)) == sorted(recorded(alone)), "each request is computed once"
    assert stderr.strip() == ""


def test_a_transformers_model_answers_the_same_on_a_worker(cluster: Cluster, tiny_model: Path, tmp_path: Path) -> None:
    model = f"hf[path={tiny_model},dtype=float32,exact=true]"
    for folder, more in (("out", on_ray(1, cluster)), ("alone", [])):
        code, stderr = run(toy(tmp_path / folder, "toy_gen,toy_choice", *more, model=model), TOY_N="5", **cluster.token)
        assert code == 0, stderr
    responses, expected = recorded(tmp_path / "out"), recorded(tmp_path / "alone")
    assert responses.keys() == expected.keys() and len(expected) == 20
    for key, answer in expected.items():
        assert responses[key].get("text") == answer.get("text")
        assert responses[key].get("score") == pytest.approx(answer.get("score"), abs=1e-5)


def test_clip_gives_the_same_rankings_on_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    folders = tmp_path / "out", tmp_path / "alone"
    for folder, engine in zip(folders, (on_ray(1, cluster), []), strict=True):
        command = ["eval", str(CLIP), "shapes_unseen", "--limit", "30", "--output_dir", str(folder), "--quiet", *engine]
        code, stderr = run(command, **cluster.token)
        assert code == 0, stderr
    responses, expected = (samples(folder)["shapes_unseen.jsonl"] for folder in folders)
    assert [row["responses"] for row in responses] == [row["responses"] for row in expected]
    assert scores(folders[0]) == scores(folders[1])


def test_two_runs_share_a_cluster(cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    """Each run requests all cores."""
    both = [start_mill(toy(tmp_path / name, TASKS, *on_ray(2, cluster)), **cluster.token) for name in "ab"]
    assert [ended(process)[0] for process in both] == [0, 0]
    assert_same_end(tmp_path / "a", alone)
    assert_same_end(tmp_path / "b", alone)


def test_an_address_without_a_cluster_is_refused_within_seconds(tmp_path: Path) -> None:
    command = toy(tmp_path, "toy_gen", "--executor", "ray", "--address", f"127.0.0.1:{free_port()}")
    code, stderr = ended(start_mill(command), 60)
    assert code != 0
    (line,) = mill_lines(stderr)
    assert "nothing answers" in line


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--workers", "2"], "add --executor ray"),
        (["--address", "127.0.0.1:1"], "add --executor ray"),
        (["--gpus_per_worker", "1"], "add --executor ray"),
        (["--executor", "slurm"], "slurm"),
        (["--executor", "ray", "--workers", "0"], "workers"),
    ],
)
def test_invalid_options_are_refused_in_one_line(more: list[str], message: str, tmp_path: Path) -> None:
    code, stderr = run(toy(tmp_path, "toy_gen", *more))
    assert code == 2
    (line,) = mill_lines(stderr)
    assert message in line


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


def test_too_many_accelerators_are_refused_for_every_model(cluster: Cluster, tmp_path: Path) -> None:
    command = toy(tmp_path, "toy_gen", *on_ray(2, cluster), "--gpus_per_worker", "1", model="toy[path=a],toy[path=b]")
    code, stderr = run(command, **cluster.token)
    assert code != 0
    assert len(mill_lines(stderr)) == 2 and all("--gpus_per_worker" in line for line in mill_lines(stderr)), stderr


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
    """Run a task on several servers; returns standard error."""
    urls = ",".join(server.url for server in servers)
    code, stderr = run(toy(folder, "toy_gen", "--base_url", urls, *more, model="openai-compat[model=m]"), **environment)
    assert code == 0, stderr
    return stderr


@pytest.mark.parametrize("ray", [False, True], ids=["threads", "ray"])
def test_several_servers_share_the_requests(ray: bool, cluster: Cluster, tmp_path: Path) -> None:
    with FaultServer(SharedAnswers(1)) as only:
        run_on_servers(tmp_path / "one", [only])
    answers = SharedAnswers(2)
    with FaultServer(answers) as first, FaultServer(answers) as second:
        run_on_servers(tmp_path / "two", [first, second], *(on_ray(2, cluster) if ray else []), **cluster.token)
    prompts = [[body["prompt"] for _, body in server.calls if "toy_gen" in body["prompt"]] for server in (first, second)]
    assert all(prompts) and sorted(prompts[0] + prompts[1]) == sorted(f"toy_gen {number}" for number in range(40))
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
def test_keys_reach_workers_on_a_cluster_started_without_them(
    model: str, variable: str, header: str, cluster: Cluster, tmp_path: Path
) -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        content = {"message": {"role": "assistant", "content": "yes"}} if "messages" in body else {"text": "yes"}
        return {"choices": [{**content, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}

    with FaultServer(answer) as server:
        spec = model.replace("{host}", server.url.removeprefix("http://"))
        command = toy(tmp_path, "toy_gen", "--limit", "3", *on_ray(1, cluster), model=spec)
        code, stderr = run(command, **{variable: "hidden-word"}, **cluster.token)
        assert code == 0, stderr
        received = {
            value for headers in server.headers for name, value in headers.items() if name.lower() == "authorization"
        }
        assert len(server.calls) >= 3 and received == {header}


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


def test_workers_share_a_budget(cluster: Cluster, tmp_path: Path) -> None:
    """An answer of the toy model has 5 tokens."""
    log, out = tmp_path / "log", tmp_path / "out"
    command = toy(out, "toy_gen", *on_ray(2, cluster), "--max_tokens_total", "100", model=watched(log))
    for _ in range(2):
        code, stderr = run(command, **cluster.token)
        assert code == 4, stderr
        assert len(computed(log)) == scores(out)["tasks"]["toy_gen"]["n"] == 20
    assert run(toy(out, "toy_gen", *on_ray(2, cluster), model=watched(log)), **cluster.token)[0] == 0
    assert len(computed(log)) == 40
