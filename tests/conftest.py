"""Shared fixtures (a tiny random model, the demo model, clean registries) and the markers that select the quick lane."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mill.metrics  # noqa: F401  registers its names on import, which the clean-up below must not remove
from mill.api import registry
from mill.support.terminal import own_warnings
from mill.tasks.load import load_builtin
from tests import forking
from tests.servers import llama_command
from tests.shared import made_once, served_once, shared_folder
from tests.vlm import byte_level

pytest_plugins = ["tests.logs", "tests.times", "tests.fuzz.cases"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background; tests interrupt their child processes
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

TESTS = Path(__file__).parent
ROOT = TESTS.parent
TEXT = "the quick brown fox jumps over the lazy dog . what is the answer ? it is 42 , 7 or 1234 ; yes no A B C D\n"
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# The quick lane leaves out every test with one of these markers. A test gets the marker of each fixture that it uses,
# directly or through another fixture, and of each folder or file that contains it.
MARKER_OF_FIXTURE = {
    "tiny_model": "weights",
    "tiny_model_without_bos": "weights",
    "demo_weights": "weights",
    "open_clip": "weights",
    "llama": "engine",
    "slurm": "cluster",
    "browser": "browser",
}
MARKER_OF_PATH = {
    "checks/test_planted_faults.py": "weights",
    "checks/test_real_server.py": "engine",
    "engines": "engine",
    "execute/test_conformance.py": "weights",
    "models/hf": "weights",
    "models/prefix": "weights",
    "models/test_clip.py": "weights",
    "models/test_echo.py": "weights",
    "models/test_demo_model.py": "weights",
    "models/test_timm.py": "weights",
    "models/test_vllm.py": "weights",
    "schedule/test_slurm.py": "cluster",
    "security/test_code.py": "weights",
    "tasks/test_media_tasks.py": "weights",
    "view/browser": "browser",
    "view/test_security.py": "slow",
    "bridges": "slow",  # lm-eval takes ten seconds to import
    "checks/test_decide.py": "slow",
    "checks/test_gate_faults.py": "slow",
    "checks/test_total.py": "slow",
    "cli/test_checks.py": "slow",
    "cli/test_schedule.py": "slow",
    "execute/test_ranks.py": "slow",
    "export/test_lm_eval.py": "slow",  # lm-eval takes ten seconds to import
    "fuzz": "slow",
    "metrics/test_sequential.py": "slow",
    "models/http": "slow",
    "models/test_litellm.py": "slow",  # litellm takes six seconds to import
    "models/test_hostile.py": "slow",
    "models/test_openai_compat.py": "slow",
    "packaging/test_wheel.py": "slow",
    "report/test_decided_runs.py": "slow",
    "report/test_plots.py": "slow",
    "runs/test_budget.py": "slow",
    "runs/test_budget_processes.py": "slow",
    "runs/test_decisions.py": "slow",
    "runs/test_faults.py": "slow",
    "runs/test_killed.py": "slow",
    "runs/test_removed.py": "slow",
    "runs/test_sampling.py": "slow",
    "runs/test_session.py": "slow",
    "sandbox": "slow",
    "security/test_files.py": "slow",
    "security/test_keys.py": "slow",
    "soak": "soak",
    "tasks/test_bfcl_multi_turn.py": "slow",
    "tasks/test_code.py": "slow",
    "view/test_lm_eval_logs.py": "slow",  # lm-eval takes ten seconds to import
}


# Lanes of their own: without `-m soak` or `-m zoo` these tests do not run.
RELEASE_LANES = ("soak", "zoo")
# Files with one of these run first: they take longest, and at the end of a run no testing process is to wait for another.
LONG = ("engine", "cluster", "slow", "weights", "browser")


def markers_of_path(path: Path) -> set[str]:
    relative = path.relative_to(TESTS)
    return {MARKER_OF_PATH[name] for name in map(Path.as_posix, (relative, *relative.parents)) if name in MARKER_OF_PATH}


def left_out(config: pytest.Config) -> set[str]:
    """The markers whose tests cannot be selected."""
    expression = config.getoption("markexpr")
    excluded = re.fullmatch(r"not \((\w+(?: or \w+)*)\)", expression)
    return {lane for lane in RELEASE_LANES if lane not in expression} | set(excluded[1].split(" or ") if excluded else ())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import the modules that are left out: the imports alone take longer than many quick tests."""
    if collection_path.is_relative_to(TESTS):
        return bool(markers_of_path(collection_path) & left_out(config)) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = [path for path in MARKER_OF_PATH if not (TESTS / path).exists()]
    assert not missing, f"tests/conftest.py marks paths that do not exist: {missing}"
    files: dict[Path, set[str]] = {}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        markers = markers_of_path(item.path) | {MARKER_OF_FIXTURE[name] for name in fixtures if name in MARKER_OF_FIXTURE}
        for marker in markers:
            item.add_marker(marker)
        files.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    excluded = {lane for lane in RELEASE_LANES if lane in left_out(config)}
    deselected = [item for item in items if any(mark.name in excluded for mark in item.iter_markers())]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
    ranks = {file: min([LONG.index(name) for name in names if name in LONG] or [len(LONG)]) for file, names in files.items()}
    items[:] = sorted((item for item in items if item not in deselected), key=lambda item: ranks[item.path])


def pytest_collection_finish() -> None:
    """Runs end with a garbage collection, which need not look through everything that pytest and the modules hold."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # extension modules report objects that are not freed at exit


@pytest.fixture(autouse=True, scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Warm processes and mill's cache, for all testing processes."""
    forking.folder = shared_folder(tmp_path_factory)
    os.environ["MILL_CACHE"] = str(forking.folder / "cache")


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Isolates tests from each other's registrations and data path."""
    load_builtin()
    for name in [name for name in sys.modules if name.startswith("mill_file_")]:  # task files are loaded again
        del sys.modules[name]
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no test cuts the power, and each call takes 20 ms
    monkeypatch.delenv("MILL_DATA", raising=False)
    saved = [(table, table.entries()) for table in (registry.models, registry.tasks, registry.metrics)]
    with own_warnings():
        yield
    for table, entries in saved:
        table._entries.clear()
        table._entries.update(entries)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with two layers and a byte-level tokenizer that adds BOS to every text."""
    return made_once(tmp_path_factory, "tiny", lambda folder: make_tiny_model(folder, bos=True))


@pytest.fixture(scope="session")
def tiny_model_without_bos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "tiny_no_bos", lambda folder: make_tiny_model(folder, bos=False))


@pytest.fixture(scope="session")
def demo_weights() -> Path:
    """SmolLM2-135M, fetched by `make test`."""
    file = ROOT / ".demo/model/SmolLM2-135M-Instruct.Q4_1.gguf"
    if not file.is_file():
        pytest.skip("the demo model was not fetched: python scripts/fetch_demo.py")
    return file


@pytest.fixture(scope="session")
def demo_model(demo_weights: Path) -> str:
    return f"hf[path={demo_weights},dtype=float32,max_context_length=1024]"


@pytest.fixture(scope="session")
def llama(demo_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real llama-server with the demo weights."""
    with served_once(tmp_path_factory, "llama", lambda port: llama_command(demo_weights, port)) as url:
        yield url


def make_tiny_model(folder: Path, *, bos: bool, seed: int = 0) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = byte_level(TEXT, 320, bos=bos)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    return folder
