"""Invalid command lines, run files, tasks and prompt files, by the thousand.

For every input the command ends with 0, 1 or 2 and, where it refuses, one line: no traceback, no "unexpected" error, and
nothing heavy imported for a refusal.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mill.cli.main import run
from tests.fuzz.cases import count, dice

ROOT = Path(__file__).parent.parent.parent
TOY = str(ROOT / "tests/toy.py")
HEAVY = ("torch", "transformers", "datasets", "litellm", "vllm")

Check = Callable[..., int]


@pytest.fixture
def check(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Run a command line in a temporary folder and check how it ends; returns the exit code."""
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOY_N", "3")
    monkeypatch.setattr("gc.collect", lambda *_: 0)  # closing a model collects, which would take most of the time
    monkeypatch.setattr("mill.runs.files.versions", dict)
    loaded = {name for name in HEAVY if name in sys.modules}

    def call(*argv: str) -> int:
        try:
            code = run(list(argv))
        except BaseException as error:
            pytest.fail(f"{argv!r} raised {error!r}")
        out, err = capfd.readouterr()
        report = f"mill {argv!r}\nexit code {code}\n{out}{err}"
        lines = [
            line for line in err.splitlines() if not line.startswith(("warning: ", "generate_until: ", "loglikelihood"))
        ]
        assert code in (0, 1, 2), report
        assert "Traceback" not in out + err and "mill: unexpected" not in err, report
        if code == 2:
            assert len(lines) == 1 and lines[0].startswith("mill: ") and len(lines[0]) > len("mill: ") + 8, report
            assert not [name for name in HEAVY if name in sys.modules and name not in loaded], report
        return code

    yield call


# Values of the command line and of files.
ODD_TEXTS = (
    "", " ", "0", "-1", "1.5", "nan", "inf", "-inf", "1e400", "1" * 400, "true", "None", "null", "[]",
    "{}", "[", "]", "[[", "a=b",
    "a,b", ",", "=", "==", "'", '"', "\\", "\\x", "%", "$HOME", "${HOME}", "\x1b[31m", "\x9b2J", "\udc80", "\udcff",
    "\u202e", "é", "東京", "👩‍👩‍👧", "a" * 5000, "a\nb", "a\tb", "../..", "/", "/dev/null", "/dev/full",
    ".", "~", "~nobody",
    "-", "--", "--help-me", "*", "?", "[a-z]*", "@", ":", "a:b", "http://", "http://[", "http://h:99999",
    "://", "x.gguf", ".gguf",
    ".py", "nothing.py", "hf", "hf:", "hf[", "hf[]", "hf[path]", "toy", "toy[path=a", "toy[path=a]]",
    "mlx:", "ollama:", "@main",
)  # fmt: skip
SPEC_HEADS = [
    "toy", "hf", "huggingface", "openai-compat", "llama-cpp", "litellm", "vllm", "clip", "timm", "mlx-lm", "nosuch", "",
]  # fmt: skip
SPEC_NAMES = (
    "path", "model", "base_url", "batch_size", "scale", "dtype", "device_map", "max_context_length",
    "timeout", "concurrency",
    "api_key", "chat", "revision", "modalities", "fsdp", "exact", "stream", "scoring", "nosuch", "",
    "a b", "1", "path ",
)  # fmt: skip
DECODING = (
    "until", "stop", "max_gen_toks", "max_tokens", "max_new_tokens", "temperature", "top_p", "top_k",
    "repetition_penalty",
    "do_sample", "seed", "logprobs", "nosuch", "1", "",
)  # fmt: skip
OPTIONS = (
    "limit", "n_shots", "seed", "repeats", "batch_size", "gen_kwargs", "system_prompt", "config",
    "base_url", "wait", "judge", "engine", "executor",
    "max_tokens", "workers", "task_paths", "output_dir", "nosuch", "tolerance",
)  # fmt: skip
FLAGS = ("same_shots", "apply_chat_template", "fresh", "exact", "dry_run", "no_remote_code", "quiet")
TASKS = [
    "toy_gen", "toy_choice", "toy_text", "toy_dialog", "toy_all", "toy_*", "reasoning", "nosuch", "no.jsonl", "no.txt", "",
]  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1.5, -0.5, float("nan"), float("inf"), -float("inf"), 10**400, "",
    "0", "3", "no", "yes",
    "false", "auto", "x", [], {}, [1], ["a"], [None], [["a"]], {"a": 1}, {1: 2}, {None: None},
    {"until": 5}, {"until": [5]},
    {"temperature": True}, {"top_k": 1.5}, {"seed": "abc"}, {"max_gen_toks": None}, {"until": [""]},
    {"": ""}, "a=b", "until=[a,b]",
    "\x00", "\ud800", "a" * 2000,
)  # fmt: skip
# A prompt is sent as it is, and these paths would be written to or waited for.
NOT_FOR = {"output_dir": ("/dev/full",), "wait": ("1" * 400,)}


def odd(chance: random.Random) -> str:
    """A text from the table, or two of them put together."""
    text = chance.choice(ODD_TEXTS)
    return text + chance.choice(ODD_TEXTS) if chance.random() < 0.2 else text


def spec(chance: random.Random) -> str:
    if chance.random() < 0.25:
        return odd(chance)
    names = [chance.choice(SPEC_NAMES) for _ in range(chance.randint(0, 3))]
    inner = ",".join(f"{name}={odd(chance)}" for name in names)
    return chance.choice(SPEC_HEADS) + chance.choice(("[{}]", "[path=a,{}]", "[model=m,{}]", "{}", ":{}")).format(inner)


def argv_of(chance: random.Random) -> list[str]:
    """A command line in which most things are right and some are odd: what is all wrong is refused by the first check."""
    models = "toy[path=a]" if chance.random() < 0.6 else spec(chance)
    tasks = chance.choice(TASKS) if chance.random() < 0.9 else odd(chance)
    argv = ["eval", models, tasks, "--task_paths", TOY, "--quiet", "--limit", "2"]
    for _ in range(chance.randint(0, 2)):
        name = chance.choice(OPTIONS)
        if name == "gen_kwargs":
            value = ",".join(f"{chance.choice(DECODING)}={odd(chance)}" for _ in range(chance.randint(1, 2)))
        else:
            value = odd(chance)
        if not value.startswith(NOT_FOR.get(name, ("\x00",))):
            argv += [f"--{name}", value]
    return argv + [f"--{chance.choice(FLAGS)}"] * (chance.random() < 0.3) + ["--dry_run"] * (chance.random() < 0.8)


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server and no hub is called."""
    monkeypatch.setattr("mill.models.http.policy.ATTEMPTS", 1)
    monkeypatch.setattr("mill.models.http.server.ServerModel.ready", _unreachable)
    for name in ("load_config", "load_tokenizer"):
        monkeypatch.setattr(f"mill.models.files.{name}", _not_on_the_hub)


def _unreachable(model: Any, wait: float = 0.0) -> None:
    from mill.api.errors import ServerGone

    raise ServerGone(f"{model.base_url} cannot be reached")


def _not_on_the_hub(source: Any, **arguments: Any) -> None:
    from mill.api.errors import ModelError

    raise ModelError(f"the hub has no {source.name}")


def test_command_lines(check: Check) -> None:
    chance, codes = dice("command lines"), []
    for _ in range(count(1200)):
        codes.append(check(*argv_of(chance)))
    assert {0, 2} <= set(codes) and codes.count(0) > len(codes) / 25


def test_other_commands(check: Check) -> None:
    chance = dice("other commands")
    lines: list[Callable[[], list[str]]] = [
        lambda: ["ls", odd(chance), odd(chance)],
        lambda: ["ls", "tasks", odd(chance), "--task_paths", odd(chance)],
        lambda: ["ls", "runs", "--output_dir", odd(chance)],
        lambda: ["collect", "--output_dir", odd(chance), "--model", odd(chance)],
        lambda: ["collect", "--format", odd(chance)],
        lambda: ["score", odd(chance)],
        lambda: ["conform", spec(chance), "--tolerance", odd(chance)],
        lambda: ["conform", "toy[path=a]", "--task_paths", TOY, "--tolerance", odd(chance), "--wait", odd(chance)],
        lambda: ["schedule", spec(chance), "toy_gen", "--task_paths", TOY, "--dry_run", "--n_shots", odd(chance)],
        lambda: ["diff", "--model", odd(chance), "--backends", f"{spec(chance)},{spec(chance)}", "--task_paths", TOY],
        lambda: [odd(chance), odd(chance)],
        lambda: [f"--{odd(chance)}", "eval"],
    ]
    for number in range(count(600)):
        argv = lines[number % len(lines)]()
        if argv[0] == "-" or "--help-me" not in argv:
            check(*argv)


def test_run_files(check: Check) -> None:
    chance, codes = dice("run files"), []
    for _ in range(count(700)):
        good: dict[Any, Any] = {"models": "toy[path=a]", "tasks": "toy_gen", "task_paths": [TOY], "limit": 2, "quiet": True}
        for _ in range(chance.randint(1, 3)):
            name = chance.choice((*OPTIONS, *FLAGS, "models", "tasks"))
            value = chance.choice(ODD_VALUES)
            if name not in ("wait", "repeats") or not isinstance(value, int) or value < 5:
                good[name] = value
        Path("run.yaml").write_text(yaml.safe_dump(good, allow_unicode=False), encoding="utf-8", errors="surrogatepass")
        codes.append(check("eval", "--config", "run.yaml", *(["--dry_run"] if chance.random() < 0.85 else [])))
    assert {0, 2} <= set(codes)


def test_prompt_files(check: Check) -> None:
    chance, codes = dice("prompt files"), []
    names = ("prompt", "text", "answer", "extract", "id", "category", "max_tokens", "other")
    ways = ("number", "choice", "yes_no", "json", "line", "nosuch", None, 5)
    for number in range(count(400)):
        rows = []
        for _ in range(chance.randint(1, 3)):
            row: dict[str, Any] = {"prompt": "What is 2+2?"} if chance.random() < 0.8 else {}
            for name in chance.sample(names, chance.randint(0, 3)):
                row[name] = chance.choice(ways) if name == "extract" else chance.choice((*ODD_VALUES, "4", "yes", "B", 4))
            rows.append(row)
        file = Path(f"qa{number}.jsonl")
        lines = [json.dumps({str(k): v for k, v in row.items()}, skipkeys=True) for row in rows]
        if chance.random() < 0.1:
            lines[-1] = lines[-1][: chance.randrange(len(lines[-1]))]
        file.write_text("\n".join(lines))
        dry = ["--dry_run"] if chance.random() < 0.8 else []
        codes.append(check("eval", "toy[path=a]", str(file), "--task_paths", TOY, "--quiet", *dry))
    assert min(codes.count(0), codes.count(2)) > len(codes) / 20
