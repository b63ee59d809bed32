"""Workers on Ray, and several servers, give what one process gives."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import ModelError
from mill.execute.ray_cluster import RayCluster
from mill.tasks.cifar10 import CLASSES
from mill.tasks.shapes import PAIRS, draw
from tests.launching import TESTS, ended, launched, run, told, toy, until
from tests.outcomes import assert_same_end, recorded, samples, scores
from tests.ray_cluster import TASKS, Cluster, computed, on_ray, watched
from tests.servers import FaultServer, cut, free_port

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for Ray's processes in /proc")
CLIP = TESTS.parent / "mill/models/configs/clip/shapes.py"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_give_what_one_process_gives(workers: int, cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    code, said = run(toy(out, TASKS, *on_ray(workers, cluster), model=watched(log)), **cluster.token)
    assert code == 0, said
    assert_same_end(out, alone)
    assert sorted(computed(log)) == sorted(recorded(alone)), "each is computed once"
    assert said.strip() == ""


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


def assert_sees_alike(cluster: Cluster, folder: Path, model: str, task: str, **more: str) -> None:
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
    assert_sees_alike(cluster, tmp_path, str(CLIP), "shapes_unseen")


def test_timm_sees_alike_on_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    timm, torch = pytest.importorskip("timm"), pytest.importorskip("torch")
    torch.save(timm.create_model("test_vit", num_classes=10).state_dict(), tmp_path / "weights.pth")
    for number, name in enumerate(CLASSES):
        place = tmp_path / "data/uoft-cs/cifar10/test" / name
        place.mkdir(parents=True)
        draw(*PAIRS[number], random.Random(number)).save(place / "0.png")
    model = f"timm[path=test_vit,num_classes=10,checkpoint={tmp_path / 'weights.pth'}]"
    assert_sees_alike(cluster, tmp_path, model, "cifar10_supervised", MILL_DATA=str(tmp_path / "data"))


def test_two_runs_share_a_cluster(cluster: Cluster, alone: Path, tmp_path: Path) -> None:
    """Each wants all of its cores."""
    both = [launched(toy(tmp_path / name, TASKS, *on_ray(2, cluster)), **cluster.token) for name in "ab"]
    assert [ended(process)[0] for process in both] == [0, 0]
    assert_same_end(tmp_path / "a", alone)
    assert_same_end(tmp_path / "b", alone)


def test_an_address_where_nobody_is_is_refused_in_seconds(tmp_path: Path) -> None:
    began = time.monotonic()
    code, said = run(toy(tmp_path, "toy_gen", "--executor", "ray", "--address", f"127.0.0.1:{free_port()}"))
    assert code != 0 and time.monotonic() - began < 40
    (line,) = told(said)
    assert "nothing answers" in line


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--workers", "2"], "add --executor ray"),
        (["--address", "127.0.0.1:1"], "add --executor ray"),
        (["--gpus_per_worker", "1"], "add --executor ray"),
        (["--executor", "slurm"], "slurm"),
        (["--executor", "ray", "--workers", "0"], "workers"),
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
