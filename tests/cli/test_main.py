"""The command line as users see it: exit codes, one line for each error, no heavy imports for light commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from mill.api.registry import checks, commands, import_file
from tests import forking
from tests.cli.conftest import Mill

ROOT = Path(__file__).parent.parent.parent
TOY = str(ROOT / "tests/toy.py")


def toy(mill: Mill, *argv: str, tasks: str = "toy_gen") -> tuple[int, str, str]:
    return mill("eval", "toy[path=toy]", tasks, "--task_paths", TOY, *argv)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys\nfrom mill.cli.main import run\nrun(['--help'])\nprint(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    loaded = set(eval(done.stderr))
    assert not loaded & {"torch", "transformers", "numpy", "pydantic", "datasets", "pyarrow", "rich", "yaml", "pandas"}
    assert "Run benchmarks on models." in done.stdout


LIGHT = {
    "an unknown backend": ["eval", "hff[path=x]", "mmlu"],
    "an unknown task": ["eval", "hf[path=org/name]", "mmul"],
    "a list": ["ls", "models"],
    "a file that is no model": ["eval", "hf[path=plain.bin]", "toy_gen", "--task_paths", TOY],
    "a path that is no model": ["eval", "./plain.bin", "toy_gen", "--task_paths", TOY],
    "a GGUF file by name alone": ["eval", "hf[path=fake.gguf]", "toy_gen", "--task_paths", TOY],
    "a name that no hub has": ["eval", "hf[path=not a name]", "toy_gen", "--task_paths", TOY],
    "a task that hosted models cannot serve": ["eval", "litellm[model=x]", "toy_choice", "--task_paths", TOY],
    "a name that the hub does not have": ["eval", "hf[path=org/name]", "toy_gen", "--task_paths", TOY],
    "a misspelt config": ["eval", "smolm2_135m_instruct", "toy_gen", "--task_paths", TOY],
    "an unknown option": ["eval", "hf[path=org/name]", "toy_gen", "--limti", "3"],
    "a bad value": ["eval", "hf[path=org/name]", "toy_gen", "--limit", "few"],
    "an open bracket": ["eval", "hf[path=org/name", "toy_gen"],
    "models to compare": ["compare", "./no", "./other"],
    "a server that is not there": ["eval", "llama-cpp[base_url=http://127.0.0.1:9]", "toy_gen", "--task_paths", TOY],
    "a decoding option": ["eval", "hf[path=org/name]", "toy_gen", "--task_paths", TOY, "--gen_kwargs", "top_k=1.5"],
}
HEAVY = {"torch", "transformers", "numpy", "datasets", "litellm", "pandas", "pyarrow"}


ALL_LIGHT = """
import contextlib, io, json, sys
from mill.cli.main import run
for argv in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(argv)
    print(json.dumps([code, err.getvalue().splitlines(), sorted(sys.modules)]))
"""


def test_refusals_and_lists_come_before_anything_heavy_loads(tmp_path: Path) -> None:
    """One process for all: the first that loads something heavy is at fault."""
    (tmp_path / "plain.bin").write_bytes(b"weights")
    (tmp_path / "fake.gguf").write_bytes(b"weights")
    environment = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_TOKEN"))}
    done = subprocess.run(
        [sys.executable, "-c", ALL_LIGHT, json.dumps(list(LIGHT.values()))],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )
    for (name, argv), line in zip(LIGHT.items(), done.stdout.splitlines(), strict=True):
        code, err, modules = json.loads(line)
        assert not set(modules) & HEAVY, name
        assert (code, len(err)) == ((0, 0) if argv[0] == "ls" else (2, 1)), (name, err)


PLUGIN = """
import click

from mill.checks.kinds import CheckKind

@click.command("mill-test-command")
def command():
    click.echo("hello from a package")

class Check(CheckKind):
    "Whether two models greet alike."
    name = "mill-test-check"
"""


def test_commands_and_checks_of_another_package(mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mill_test_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("mill-test-command", "mill_test_plugin:command", "mill.commands"),
        EntryPoint("mill-test-check", "mill_test_plugin:Check", "mill.checks"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point for point in points if point.group == group])
    for registry in (commands, checks):
        monkeypatch.setattr(registry, "_entries", registry.entries())
        monkeypatch.setattr(registry, "_plugins_read", False)
    shown = mill("--help")[1]
    assert "mill-test-command  From mill_test_plugin, another package." in shown and "mill-test-check " in shown
    assert "mill_test_plugin" not in sys.modules
    assert mill("mill-test-command")[:2] == (0, "hello from a package\n")
    assert "Whether two models greet alike." in mill("mill-test-check", "--help")[1]
    assert "did you mean mill-test-check" in mill("mill-test-chek")[2]


def test_mill_alone_shows_its_help(mill: Mill) -> None:
    code, out, err = mill()
    assert code == 0 and err == "" and out.startswith("Usage: mill") and "Run benchmarks on models." in out
    assert out == mill("--help")[1]


SPELLINGS = {
    "--apply_chat_template --max_tokens 7 --fewshot_as_multiturn": True,
    "--use-chat-template --max-new-tokens 7 --no_fewshot_as_multiturn": False,
    "--use_chat_template --max_gen_toks 7 --fewshot-as-multiturn": True,
}


@pytest.mark.parametrize(("words", "turns"), SPELLINGS.items())
def test_options_have_several_spellings(mill: Mill, tmp_path: Path, words: str, turns: bool) -> None:
    assert toy(mill, "--limit", "1", *words.split())[0] == 0
    (manifest,) = tmp_path.glob("results/*/*/manifest.json")
    settings = json.loads(manifest.read_text())["settings"]
    assert (settings["apply_chat_template"], settings["fewshot_as_multiturn"]) == (True, turns)
    assert settings["gen_kwargs"] == {"max_gen_toks": 7}


def test_a_packaged_config_is_a_model_by_its_name(mill: Mill, tmp_path: Path) -> None:
    code, out, _ = mill("ls", "models", "--configs", "smollm2")
    assert code == 0 and "smollm2_135m_instruct" in out and "hf" in out and "shapes" not in out
    assert "--configs goes with models" in mill("ls", "tasks", "--configs")[2]
    err = mill("eval", "smolm2_135m_instruct", "toy_gen", "--task_paths", TOY)[2]
    assert "unknown backend or config 'smolm2_135m_instruct'; did you mean smollm2_135m_instruct" in err


def test_an_evaluation_prints_scores_and_their_folder(mill: Mill, tmp_path: Path) -> None:
    code, out, err = toy(mill, "--limit", "8", "--output_dir", "out")
    assert code == 0
    assert "toy_gen" in out and "exact_match" in out and "8/40" in out
    assert f"results: {Path('out')}" in out
    assert "generate_until: 8/8" in err


def test_the_output_folder_may_be_given_before_the_command(mill: Mill, tmp_path: Path) -> None:
    assert mill("--output-dir", "first", "eval", "toy[path=toy]", "toy_gen", "--task-paths", TOY, "--limit", "2")[0] == 0
    assert toy(mill, "--limit", "2", "--output_dir", "second")[0] == 0
    assert toy(mill, "--limit", "2")[0] == 0
    for folder in ("first", "second", "results"):
        assert list((tmp_path / folder).glob("*/*/results.json"))


def test_failed_samples_are_listed_and_make_the_exit_code_1(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    code, out, _ = toy(mill, "--limit", "6")
    assert code == 1
    assert "1 of 6 samples failed and have no score" in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("toy_gen ")]
    assert row[-2:] == ["5/40", "1"], "n is what was scored"
    assert "sample 3: ValueError: cannot read toy_gen 3" in out


def test_ctrl_c_ends_cleanly_and_names_the_command_that_resumes(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy(mill, "--limit", "1")[0] == 0

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_file(TOY, "task file").ToyModel, "_generate_batch", interrupted)
    code, _, err = toy(mill, "--limit", "4")
    assert code == 130
    assert err.splitlines()[-1].startswith(
        "mill: interrupted; all completed requests are recorded: the same command resumes"
    )
    assert "the same command without --fresh resumes" in toy(mill, "--limit", "4", "--fresh")[2]


def test_a_dry_run_counts_requests_and_computes_nothing(mill: Mill, tmp_path: Path) -> None:
    toy(mill, "--limit", "3", "--output_dir", "out")
    code, out, _ = toy(
        mill, "--limit", "5", "--dry_run", "--output_dir", "out", "--repeats", "1", tasks="toy_gen,toy_choice"
    )
    assert code == 0
    cells = [line.split() for line in out.splitlines()]
    assert ["task", "runs", "as", "shots", "samples", "requests", "distinct", "recorded", "input", "tokens"] in cells
    assert ["toy_gen", "toy_gen", "0", "5/40", "5", "5", "3", "unknown"] in cells
    assert ["toy_choice", "toy_choice", "0", "5/40", "15", "15", "0", "unknown"] in cells
    assert len(list((tmp_path / "out").glob("*/*/samples/*.jsonl"))) == 1


def test_a_run_file_has_a_whole_run_and_the_command_line_wins(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        f"models: ['toy[path=from file]']\ntasks: toy_gen\ntask-paths: [{TOY}]\nlimit: 4\nseed: 3\n"
        "output_dir: from_file\ngen_kwargs: {max_gen_toks: 5}\n"
    )
    code, out, _ = mill("eval", "--config", "run.yaml", "--limit", "2")
    assert code == 0 and "2/40" in out
    (manifest,) = (tmp_path / "from_file").glob("*/*/manifest.json")
    settings = json.loads(manifest.read_text())["settings"]
    assert (settings["seed"], settings["gen_kwargs"]) == (3, {"max_gen_toks": 5})


def test_collect_gives_the_long_table_in_four_forms(mill: Mill, tmp_path: Path) -> None:
    import io

    import pandas as pd

    toy(mill, "--limit", "4", "--output_dir", "out", tasks="toy_all,toy_choice")
    code, table, _ = mill("collect", "--output_dir", "out")
    assert code == 0 and "toy_all (mean)" in table
    _, text, _ = mill("collect", "--output_dir", "out", "--format", "csv")
    frame = pd.read_csv(io.StringIO(text))
    names = "model model_args settings benchmark task task_type n_shots metric value stderr low high"
    assert list(frame.columns) == f"{names} n failed total run mean_of sampled decision".split()
    assert sorted(frame["benchmark"]) == ["toy_all", "toy_all", "toy_all", "toy_choice"]
    rows = json.loads(mill("collect", "--output_dir", "out", "--format", "json")[1])
    assert [row["value"] for row in rows] == pytest.approx(list(frame["value"]))
    assert mill("collect", "--output_dir", "out", "--out", "scores.md", "--task", "choice")[0] == 0
    lines = (tmp_path / "scores.md").read_text().splitlines()
    assert lines[0] == "| model | task | n_shots | metric | value | stderr | n | failed |"
    assert len(lines) == 3 and lines[2].startswith("| toy | toy_choice | 0 | acc |")


def test_ls_shows_tasks_models_and_runs(mill: Mill) -> None:
    assert "mmlu_high_school_physics" in mill("ls", "tasks", "high_school_phys")[1]
    assert "hellaswag" not in mill("ls", "tasks", "high_school_phys")[1]
    named = mill("ls", "tasks", "GSM8K*", "--format", "csv")[1].splitlines()[1:]
    assert named and all(line.startswith("gsm8k") for line in named)
    models = mill("ls", "models")[1]
    assert "huggingface, transformers" in models and "(core)" in models
    toy(mill, "--limit", "2", "--output_dir", "out")
    assert "toy_gen" in mill("ls", "runs", "--output_dir", "out")[1]
    assert "toy" in mill("ls", "models", "--task_paths", TOY)[1]


BAD = {
    "unknown command": (["evil"], "unknown command 'evil'; did you mean eval?"),
    "unknown option": (["eval", "toy", "toy_gen", "--limti", "3"], "unknown option --limti; did you mean --limit"),
    "removed template": (["new", "task", "mine"], "mill new was removed: CONTRIBUTING.md has a task, a backend"),
    "a tolerance that is no number": (["conform", "x", "--tolerance", "nan"], "--tolerance: nan is not a number"),
    "removed option": (
        ["eval", "toy", "toy_gen", "--sample", "5", "--reuse", "other"],
        "--reuse was removed, because its estimates could be wrong: use --sample N or --precision P alone",
    ),
    "removed command": (["schema", "run"], "mill schema was removed: `mill eval --help` lists the options of a run file"),
    "missing config file": (["eval", "nothing.py", "mmlu"], "config file nothing.py does not exist"),
    "missing model folder": (["eval", "./no/model", "mmlu"], "model folder ./no/model does not exist"),
    "missing task file": (["eval", "hf[path=org/x]", "a", "--task_paths", "no.py"], "task file no.py does not exist"),
    "no tasks": (["eval", "toy[path=x]"], "give models and tasks"),
    "second name of a decoding option": (
        ["eval", "toy[path=x]", "toy_gen", "--gen_kwargs", "max_tokens=0"],
        "--gen_kwargs: the decoding option max_tokens=0 is not between 1 and 1e+09",
    ),
    "second name of an option": (
        ["eval", "toy[path=x]", "toy_gen", "--max-gen-toks", "0"],
        "--max_tokens must be a whole number from 1 to 1000000000, not 0",
    ),
    "missing run file": (["eval", "--config", "no.yaml"], "cannot read the run file no.yaml: No such file or directory"),
    "a task the model cannot serve": (
        ["eval", "mute.py", "toy_choice", "--task_paths", TOY],
        "which mute (Mute) does not answer; backends that do: hf",
    ),
    "timm answers no text": (["eval", "timm[path=resnet50]", "mmlu_pro"], "which the backend timm does not answer"),
    "fixed classes need timm": (
        ["eval", "clip[path=ViT-B-32]", "imagenet_supervised"],
        "which the backend clip does not answer; backends that do: timm",
    ),
    "missing extra": (["eval", "vllm[path=x]", "mmlu"], 'the backend vllm needs the package vllm: pip install -e ".[vllm]"'),
    "a filter that no task matches": (["ls", "tasks", "mmxlu"], "did you mean mmlu"),
    "options of lm-eval": (
        ["eval", "--models", "m", "--tasks", "t"],
        "unknown option --models; models and tasks are positional: mill eval MODELS TASKS",
    ),
    "arguments of lm-eval": (
        ["eval", "--model_args", "pretrained=x"],
        "--model_args; arguments of a model are in its brackets",
    ),
    "the template of a check": (
        ["compare", "a", "b", "--apply_chat_template"],
        "--apply_chat_template; use --chat or --no_chat",
    ),
    "a task first": (
        ["eval", "hellaswag", "hf[path=org/name]"],
        "hellaswag is a task; models come first: mill eval MODELS TASKS",
    ),
    "an argument of another tool": (
        ["eval", "hf[pretrained=org/name]", "toy_gen", "--task_paths", TOY],
        "unknown argument of hf 'pretrained'; did you mean path?",
    ),
    "a wrong argument": (["ls", "model"], "'model' is not one of 'models', 'tasks', 'runs'"),
    "a folder as argument": (["collect", "out"], "out is one argument too many; write --output_dir out"),
    "an argument that is no path": (["collect", "x" * 300], "x is one argument too many"),
    "a removed format": (["collect", "--format", "latex"], "to_latex()"),
    "the ending of a removed format": (["collect", "--out", "a.tex"], "to_latex()"),
    "no llama-server": (
        ["eval", "llama-cpp[base_url=http://127.0.0.1:9]", "toy_gen", "--task_paths", TOY],
        "no llama-server at http://127.0.0.1:9 (Connection refused); run "
        "`llama-server -m FILE`, pass --base_url, use hf[path=FILE], or wait for the server with --wait SECONDS",
    ),
    "a run that is none": (["score", "nowhere"], "nowhere is not a run"),
    "collect from nowhere": (["collect", "--output_dir", "nowhere"], "the output folder nowhere does not exist"),
}


def test_bad_input_is_one_clear_line_and_exit_2(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "mute.py").write_text(MUTE)
    for name, (argv, message) in BAD.items():
        code, out, err = mill(*argv)
        assert code == 2 and message in err, (name, err)
        assert len(err.splitlines()) == 1 and err.startswith("mill: ") and not out, (name, out, err)


MUTE = """
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model

@register_model("mute")
class Mute(MillModel):
    model_name = "mute"
    capabilities = ModelCapabilities(supports_logprobs=False)
"""


def test_a_traceback_appears_with_debug_alone(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("1 / 0\n")
    assert "Traceback" in mill("--debug", "eval", "raises.py", "mmlu")[2]


def test_an_option_that_does_not_apply_is_reported(mill: Mill) -> None:
    code, out, _ = toy(mill, "--limit", "2", "--n_shots", "3")
    assert code == 0
    assert "toy_gen: this task takes no examples, so --n_shots does not apply" in out
    assert out.splitlines()[3].split()[1] == "0"


FAULTY = {
    "two samples with one id": ("def samples(self): return super().samples()[:1] * 2", "two samples with the id '0'"),
    "requests of another kind": (
        "def requests(self, sample, settings): return [Request('loglikelihood', 'a', 'b')]",
        "faulty is of kind generate_until but makes a loglikelihood request",
    ),
    "a hook that ends the program": (
        "def category(self, sample): raise SystemExit(7)",
        "the task faulty cannot be rendered: category() of sample 0 raised SystemExit: 7",
    ),
}


@pytest.mark.parametrize(("line", "message"), FAULTY.values(), ids=FAULTY)
def test_a_faulty_task_is_refused_before_anything_is_computed(mill: Mill, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "faulty.py").write_text(
        "from mill.api.registry import register_task, tasks\nfrom mill.api.request import Request\n"
        f"@register_task('faulty')\nclass Faulty(tasks.get('toy_gen')):\n    {line}\n"
    )
    code, _, err = toy(mill, "--task_paths", "faulty.py", "--limit", "2", tasks="toy_choice,faulty")
    assert code == 2
    assert message in err and len(err.splitlines()) == 1
    assert not list(tmp_path.glob("results/*/*/record/*"))


def test_a_model_that_breaks_does_not_keep_the_others_from_running(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from mill.api.model import MillModel\nfrom mill.api.registry import register_model\n"
        "@register_model('broken')\nclass Broken(MillModel):\n    model_name = 'broken'\n"
        "    def _generate_batch(self, batch, gen_kwargs): return 'one text for all'\n"
    )
    paths = ("--task_paths", f"{TOY},broken.py")
    code, out, err = mill("eval", "broken,toy[path=working]", "toy_gen", "--limit", "4", *paths)
    assert code == 1
    assert "mill: broken: the backend's hook for generate_until returned str, not a list of answers" in err
    assert "working" in out and "exact_match" in out


def test_collect_writes_through_a_link_and_leaves_out_a_damaged_run(mill: Mill, tmp_path: Path) -> None:
    toy(mill, "--limit", "3", "--output_dir", "out")
    toy(mill, "--limit", "3", "--output_dir", "out", "--seed", "5")
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    assert mill("collect", "--output_dir", "out", "--out", "link.csv")[0] == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().count("toy_gen") == 4  # as benchmark and as task, of two runs
    assert "seed=5" in mill("collect", "--output_dir", "out")[1]  # settings are shown where rows differ in them
    (damaged,) = (tmp_path / "out").glob("*/seed=5*/manifest.json")
    damaged.write_text("{}")
    code, out, err = mill("collect", "--output_dir", "out")
    assert code == 0 and "toy_gen" in out
    assert "left out:" in err


def test_the_last_lines_count_requests_of_which_a_choice_is_one(mill: Mill) -> None:
    """Two questions with three choices each are six requests."""
    code, out, _ = toy(mill, "--limit", "2", tasks="toy_choice")
    assert code == 0 and re.search(r"^6 requests computed in [\d.]+ s, 0 read from the record$", out, re.MULTILINE)


def test_gen_kwargs_that_do_not_apply_are_reported(mill: Mill) -> None:
    """By the option that the user typed; max_tokens is stored as the decoding option max_gen_toks."""
    for given, named in {
        ("--gen_kwargs", "temperature=0.5"): "--gen_kwargs temperature does not apply",
        ("--max_tokens", "5"): "--max_tokens (max_gen_toks) does not apply",
        ("--max_tokens", "5", "--gen_kwargs", "top_k=3,stop=a"): (
            "--max_tokens (max_gen_toks) and --gen_kwargs top_k,until do not apply"
        ),
    }.items():
        code, out, _ = toy(mill, "--limit", "2", *given, tasks="toy_choice")
        assert code == 0
        assert f"toy_choice: this task generates no text, so {named}\n" in out


FIRST_ROWS = "first 2 rows, not a random sample (--sample draws one)"


def test_a_check_does_not_warn_of_decoding_options_that_it_adds_itself(mill: Mill, tmp_path: Path) -> None:
    models = ("toy[path=a]", "toy[path=b]")
    code, _, _ = mill("compare", *models, "--tasks", "toy_choice", "--task_paths", TOY, "--limit", "2", "--no_report")
    results = list((tmp_path / "results").glob("*/*/results.json"))
    assert code == 0 and len(results) == 2
    assert [json.loads(file.read_text())["tasks"]["toy_choice"]["warnings"] for file in results] == [[FIRST_ROWS]] * 2


def test_repeats_of_a_greedy_answer_are_warned_of_once_and_beside_the_score(mill: Mill, tmp_path: Path) -> None:
    code, out, err = toy(mill, "--limit", "2", "--repeats", "3", "--output_dir", "out")
    message = "decoding is greedy, so all 3 repeats give the same response"
    assert code == 0 and err.count(message) == 1 and f"toy_gen: {message}" in out
    (results,) = (tmp_path / "out").glob("*/*/results.json")
    first, greedy = json.loads(results.read_text())["tasks"]["toy_gen"]["warnings"]
    assert first == FIRST_ROWS and message in greedy
    code, _, err = mill("score", str(results.parent), "--repeat_metrics", "best@2", "--task_paths", TOY)
    assert code == 2 and "best@2 needs --judge" in err
    _, out, err = toy(mill, "--limit", "2", "--repeats", "3", "--gen_kwargs", "temperature=1")
    assert "greedy" not in out + err


def test_a_seed_of_gen_kwargs_samples_other_answers_and_is_never_ignored_silently(mill: Mill, tmp_path: Path) -> None:
    def answers(*argv: str, where: str) -> list[str]:
        assert toy(mill, "--limit", "8", "--output_dir", where, *argv)[0] == 0
        (samples,) = (tmp_path / where).glob("*/*/samples/toy_gen.jsonl")
        return [json.loads(line)["responses"][0][0]["text"] for line in samples.read_text().splitlines()]

    first = answers("--gen_kwargs", "temperature=1,seed=1", where="a")
    assert first == answers("--gen_kwargs", "temperature=1", "--seed", "1", where="b")
    assert first == answers("--gen_kwargs", "temperature=1,seed=1", "--seed", "5", where="c")
    assert first != answers("--gen_kwargs", "temperature=1,seed=2", where="d")
    code, out, err = toy(mill, "--limit", "2", "--gen_kwargs", "seed=4")
    assert code == 0
    assert all("decoding is greedy, so the seed of --gen_kwargs has no effect" in text for text in (out, err))


COUNTING = """
from mill.api.model import InputTokens
from mill.api.registry import models, register_model

@register_model("counting")
class Counting(models.get("toy")):
    def input_tokens(self, groups):
        scored = [any(request.kind == "loglikelihood" for request in group) for group in groups]
        return [InputTokens(7) if known else None for known in scored]
"""


def test_a_dry_run_does_not_take_unknown_tokens_for_none(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    argv = ("--task_paths", f"{TOY},counting.py", "--limit", "2", "--dry_run")
    _, out, _ = mill("eval", "counting[path=a]", "toy_gen,toy_gen2", *argv)
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("total ")] == ["unknown"]
    _, out, _ = mill("eval", "counting[path=a]", "toy_gen,toy_choice", *argv)
    assert [line.split()[-3:] for line in out.splitlines() if line.startswith("total ")] == [["at", "least", "7"]]


def test_a_mean_shows_how_many_of_its_tasks_it_covers(mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two tasks fails entirely: the mean of the other is no mean of both."""
    monkeypatch.setenv("TOY_FAILS", "toy_gen2")
    argv = ("--task_paths", TOY, "--output_dir", "out", "--limit", "4", "--quiet")
    code, out, _ = mill("eval", "toy[path=a]", "toy_all", *argv)
    assert code == 1 and "toy_all (mean of 1 of 2)" in out and "toy_all: no value of toy_gen2" in out
    (results,) = tmp_path.glob("out/*/*/results.json")
    assert json.loads(results.read_text())["benchmarks"]["toy_all"]["missing"] == ["toy_gen2"]


def test_empty_and_filtered_answers_are_counted_beside_the_score(mill: Mill, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from mill.api.model import MillModel, ModelCapabilities\n"
        "from mill.api.registry import register_model\n"
        "from mill.api.response import Response\n"
        "@register_model('odd')\n"
        "class Odd(MillModel):\n"
        "    def __init__(self, path='odd'): self.path = path\n"
        "    model_name = property(lambda self: self.path)\n"
        "    def _generate_batch(self, batch, gen_kwargs):\n"
        "        reason = {0: 'content_filter', 1: 'stop'}\n"
        "        return [Response(text='' if i % 2 else 'x', finish_reason=reason[i % 2]) for i, _ in enumerate(batch)]\n"
    )
    code, out, _ = mill("eval", "odd[path=x]", "toy_gen", "--task_paths", f"odd.py,{TOY}", "--limit", "8", "--quiet")
    assert code == 0
    assert (
        "4 of 8 samples have an empty answer, as of an instruct model without its chat template (--apply_chat_template)"
        in out
    )
    assert "4 of 8 samples have an answer that the server's content filter withheld" in out


READING = ["ls", "tasks"], ["ls", "--help"], ["collect", "--format", "md"], ["collect"]
WRITING = ["eval", "toy[path=toy]", "toy_gen", "--task_paths", TOY, "--limit", "2", "--quiet"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a result."""
    folder = tmp_path_factory.mktemp("written")
    assert called(folder, WRITING, stdout=subprocess.DEVNULL)[0] == 0
    return folder


def called(folder: Path, argv: list[str], **streams: Any) -> tuple[int, str]:
    """Run a command in a process of its own: (exit code, standard error)."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **streams}
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    with forking.popen([sys.executable, "-m", "mill", *argv], cwd=folder, env=variables, **options) as process:
        _, err = process.communicate()
    return process.returncode, err


@pytest.mark.parametrize("argv", [*READING, WRITING])
def test_a_reader_that_closes_the_pipe_is_no_error_and_a_full_disk_is_one_line(written: Path, argv: list[str]) -> None:
    """The pipe has no reader when mill writes."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert called(written, argv, stdout=writer) == (0, "")
    finally:
        os.close(writer)
    with Path("/dev/full").open("w") as full:
        wrong = (1, "mill: cannot write to standard output: No space left on device\n")
        assert called(written, argv, stdout=full) == wrong


def test_a_closed_standard_output_gets_nothing(written: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    for argv in (["ls", "--help"], ["collect"]):
        command = f"{shlex.join([sys.executable, '-m', 'mill', *argv])} >&-"
        done = subprocess.run(command, shell=True, cwd=written, env=variables, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (0, "")
