"""Remote code of a model: announced before it runs, and never run where it is forbidden."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.models.spec.fingerprint import remote_code_of

ROOT = Path(__file__).parents[2]
TOY = str(ROOT / "tests/toy.py")
Mill = Callable[..., tuple[int, str]]

REMOTE_CODE = """
from pathlib import Path
with Path({marker!r}).open("a") as handle:
    handle.write("x")
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own_llama"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def remote_code_model(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """The spec of a model with remote code, and the file that this code creates when it runs."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder, marker = tmp_path / f"own_{tmp_path.name}", tmp_path / "marker"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own_llama", "architectures": ["OwnForCausalLM"]}
    config["auto_map"] = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own_code.py").write_text(REMOTE_CODE.format(marker=str(marker)))
    return f"hf[path={folder},dtype=float32]", marker


def test_remote_code_is_announced_once_and_runs(mill: Mill, remote_code_model: tuple[str, Path]) -> None:
    spec, marker = remote_code_model
    code, output = mill("eval", spec, "toy_gen,toy_choice", "--task_paths", TOY, "--limit", "1", "--quiet")
    assert code == 0 and marker.exists(), output
    assert output.count("contains code that will run: own_code.py; --no_remote_code forbids it") == 1


LIMITED = f"--task_paths {TOY} --limit 1"
REFUSED = {
    "eval": f"eval SPEC toy_gen {LIMITED} --no_remote_code",
    "a dry run": f"eval SPEC toy_gen {LIMITED} --no_remote_code --dry_run",
    "a run file": "eval --config run.yaml",
    "compare": f"compare toy[path=a] SPEC --tasks toy_gen {LIMITED} --no_remote_code",
    "conform": "conform SPEC --no_remote_code",
    "schedule": f"schedule SPEC toy_gen {LIMITED} --no_remote_code --dry_run",
}


@pytest.mark.parametrize("command", REFUSED.values(), ids=list(REFUSED))
def test_forbidden_remote_code_is_refused_in_one_line(
    mill: Mill, remote_code_model: tuple[str, Path], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mill.cli.schedule.active_jobs", lambda cells: set())
    spec, marker = remote_code_model
    in_file = {"models": [spec], "tasks": "toy_gen", "task_paths": TOY, "no_remote_code": True}
    Path("run.yaml").write_text(json.dumps(in_file))
    code, output = mill(*(spec if argument == "SPEC" else argument for argument in command.split()))
    assert code == 2 and not marker.exists()
    (line,) = [line for line in output.splitlines() if line.startswith("mill: ")]
    assert "cannot load the config of own_" in line and "Traceback" not in output


def test_it_is_forbidden_for_one_command(mill: Mill, remote_code_model: tuple[str, Path]) -> None:
    spec, marker = remote_code_model
    command = ("eval", spec, "toy_gen", "--task_paths", TOY, "--limit", "1", "--quiet")
    assert mill(*command, "--no_remote_code")[0] == 2 and not marker.exists()
    assert mill(*command)[0] == 0 and marker.exists()


def test_all_code_files_in_configs_are_announced(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "m")
    for file, auto_map in (
        ("config.json", {"AutoConfig": "one.A", "AutoModel": "two.B", "AutoModelForCausalLM": "org/other--three.C"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["four.D", None]}),
    ):
        config = json.loads((tmp_path / "m" / file).read_text())
        (tmp_path / "m" / file).write_text(json.dumps({**config, "auto_map": auto_map}))
    assert remote_code_of(str(tmp_path / "m")) == ["one.py", "two.py", "org/other: three.py", "four.py"]
    assert remote_code_of(str(tiny_model)) == [] and remote_code_of(str(tmp_path / "none")) == []


def test_a_custom_generate_function_is_announced(
    mill: Mill, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder, marker = tmp_path / f"generates_{tmp_path.name}", tmp_path / "marker"
    shutil.copytree(tiny_model, folder)
    (folder / "custom_generate").mkdir()
    code = f"open({str(marker)!r}, 'w').close()\ndef generate(model, *given, **more): ...\n"
    (folder / "custom_generate/generate.py").write_text(code)
    _, output = mill("eval", f"hf[path={folder},dtype=float32]", "toy_choice", "--task_paths", TOY, "--limit", "1")
    assert marker.exists() <= ("custom_generate/generate.py" in output)


@pytest.mark.parametrize(
    ("file", "entry"),
    [
        ("processor_config.json", {"auto_map": {"AutoProcessor": "own.P"}}),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "own.P"}}),
        ("config.json", {"model_file": "own.py"}),
    ],
    ids=["a processor", "a preprocessor", "mlx-lm's model_file"],
)
def test_code_in_other_configs_is_announced(tiny_model: Path, tmp_path: Path, file: str, entry: dict[str, Any]) -> None:
    shutil.copytree(tiny_model, tmp_path / "m")
    path = tmp_path / "m" / file
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **entry}))
    assert remote_code_of(str(tmp_path / "m")) == ["own.py"]
