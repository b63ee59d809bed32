"""From names to tasks: benchmarks, patterns, text files, files of one's own, and the rendering a model can serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.api import registry
from mill.api.errors import CannotServe, DataError, SpecError, UnknownName
from mill.api.model import ModelCapabilities
from mill.api.request import ROLLING
from mill.api.response import Response
from mill.api.task import RenderSettings, Task, TaskType
from mill.tasks.load import load_builtin, load_files, make_task, select, serve
from mill.tasks.mmlu import AREAS

load_builtin()

HOSTED = ModelCapabilities()
CAN = "backends that do: hf, vllm"


def names(*wanted: str) -> list[str]:
    return [task.name for task in select(list(wanted)).tasks]


def test_mmlu_is_57_subjects_in_four_areas() -> None:
    found = select(["mmlu"])
    assert len(found.tasks) == len({task.name for task in found.tasks}) == 57
    areas = ["mmlu_stem", "mmlu_other", "mmlu_social_sciences", "mmlu_humanities"]
    assert [benchmark.name for benchmark in found.benchmarks] == ["mmlu", *areas]
    assert {area: len(subjects) for area, subjects in AREAS.items()} == {
        "stem": 19,
        "other": 13,
        "social_sciences": 12,
        "humanities": 13,
    }


def test_a_pattern_takes_every_matching_name() -> None:
    assert len(names("mmlu_high_school_*")) == 14
    assert names("arc_????") == ["arc_easy"]
    assert names("arc_*") == ["arc_challenge", "arc_easy"]

    # Renderings by letter only where the pattern names them.
    assert names("arc_*_gen") == ["arc_challenge_gen", "arc_easy_gen"]
    assert len(names("mmlu_high_school_*_gen")) == 14
    assert "cifar10_mcq_gen" in names("cifar10_*")  # a form of its own


@pytest.mark.parametrize(
    ("typed", "meant"), [("helaswag", "hellaswag"), ("mmlu_anatomi", "mmlu_anatomy"), ("gsm8", "gsm8k"), ("PIQA_", None)]
)
def test_an_unknown_name_suggests_near_ones(typed: str, meant: str | None) -> None:
    with pytest.raises(UnknownName) as caught:
        select([typed])
    assert str(caught.value).startswith(f"unknown task '{typed}'; ")
    assert str(caught.value).endswith("see `mill ls tasks`")
    assert caught.value.nearest[:1] == ([meant] if meant else [])
    assert ("did you mean" in str(caught.value)) == (meant is not None)


# Text files


def test_a_txt_file_is_one_document(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_text("Drei Wörter hier.\n", encoding="utf-8")
    (task,) = select([str(file)]).tasks
    assert (task.name, task.task_type, task.kind) == (str(file), TaskType.PERPLEXITY, ROLLING)
    (sample,) = task.samples()
    (request,) = task.requests(sample, RenderSettings())
    assert request.context == "Drei Wörter hier.\n"
    assert task.score(sample, [Response(score=-6.0)]) == {
        "word_perplexity": (-6.0, 3.0),
        "byte_perplexity": (-6.0, 19.0),
        "bits_per_byte": (-6.0, 19.0),
    }


@pytest.mark.parametrize(
    ("name", "text"), [("own.txt", ""), ("own.txt", " \n"), ("own.jsonl", ""), ("own.jsonl", '{"text": ""}')]
)
def test_a_text_file_without_text_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as caught:
        make_task(str(tmp_path / name)).samples()
    assert str(caught.value) in (f"{tmp_path / name} has no text", f"{tmp_path / name} has no rows")


# What a model can serve


def refusal(task: Task, capabilities: ModelCapabilities) -> str:
    with pytest.raises(CannotServe) as caught:
        serve(task, capabilities, "gpt (LiteLLMModel)", CAN)
    return str(caught.value)


def test_without_log_probabilities_mmlu_is_refused_with_backends_that_serve_it() -> None:
    assert refusal(make_task("mmlu_anatomy"), HOSTED) == (
        "mmlu_anatomy (MULTIPLE_CHOICE) is scored by loglikelihood requests, which gpt (LiteLLMModel) does not answer; "
        "backends that do: hf, vllm"
    )


# Files of one's own

TASK_FILE = """
from mill.api.registry import register_task
from mill.tasks.commonsense import Piqa

@register_task("{name}")
class Own(Piqa):
    version = 7
"""


def test_a_file_registers_its_tasks(tmp_path: Path) -> None:
    file = tmp_path / "own_a.py"
    file.write_text(TASK_FILE.format(name="own_a"))
    assert "own_a" not in registry.tasks
    load_files((str(file),))
    (task,) = select(["own_a"]).tasks
    assert (task.name, task.version) == ("own_a", 7)


def test_a_file_replaces_a_built_in_task_only_on_purpose(tmp_path: Path) -> None:
    file, source = tmp_path / "mine.py", TASK_FILE.format(name="boolq")
    file.write_text(source)
    with pytest.raises(SpecError) as caught:
        load_files((str(file),))
    assert str(caught.value) == (
        f"task file {file} registers the task 'boolq', which is built in: choose another name, "
        "or register it with override=True"
    )
    assert make_task("boolq").version == 1
    file.write_text(source.replace('"boolq"', '"boolq", override=True'))
    load_files((str(file),))
    assert make_task("boolq").version == 7


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("tasks.add('mmlu', Benchmark('mmlu', ('piqa',)))", "task 'mmlu'"),
        ("tasks.add('numerics', tasks.get('piqa'))", "task 'numerics'"),
        ("models.add('hf', object)", "backend 'hf'"),
        ("metrics.add('mean', max)", "metric 'mean'"),
    ],
)
def test_benchmarks_suites_backends_and_metrics_are_not_replaced_either(tmp_path: Path, line: str, what: str) -> None:
    file = tmp_path / "mine.py"
    imports = "from mill.api.registry import metrics, models, tasks\nfrom mill.api.task import Benchmark\n"
    file.write_text(f"{imports}{line}\n")
    with pytest.raises(SpecError, match=f"registers the {what}, which is built in"):
        load_files((str(file),))
