"""Model cards and `.eval_results`, read by huggingface_hub."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from markdown_it import MarkdownIt

from mill.api.errors import MillError
from mill.export.hub import dataset_of, model_card, write_hub
from mill.export.run import ExportedRun
from tests.export.made_runs import evaluate, leaks, only_run

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def run(tmp_path: Path) -> ExportedRun:
    """A run whose tasks have the names of benchmarks on the Hub, one with a value that is not finite."""
    made = evaluate(tmp_path / "run", "odd_text,odd_document")
    for name in ("manifest.json", "results.json"):
        file = made.folder.path / name
        file.write_text(file.read_text().replace("odd_text", "gsm8k").replace("odd_document", "mmlu_anatomy"))
    for old, new in (("odd_text", "gsm8k"), ("odd_document", "mmlu_anatomy")):
        made.folder.samples_file(old).rename(made.folder.samples_file(new))
    return only_run(tmp_path / "run")


def test_entries_are_those_of_the_run(run: ExportedRun, tmp_path: Path) -> None:
    write_hub([run], tmp_path / "card")
    found = {
        file.stem: huggingface_hub.parse_eval_result_entries(yaml.safe_load(file.read_text()))
        for file in (tmp_path / "card" / ".eval_results").glob("*.yaml")
    }
    assert set(found) == {"gsm8k", "mmlu_anatomy"}
    ((gsm8k,), (anatomy,)) = found["gsm8k"], found["mmlu_anatomy"]
    assert (gsm8k.dataset_id, gsm8k.task_id, gsm8k.value) == ("openai/gsm8k", "main", pytest.approx(1 / 3))
    assert (anatomy.dataset_id, anatomy.task_id, anatomy.value) == ("cais/mmlu", "anatomy", pytest.approx(7.389056))
    assert gsm8k.date == f"{run.ended:%Y-%m-%dT%H:%M:%SZ}"
    assert gsm8k.notes.startswith("gsm8k: exact_match, 0-shot, 3 of 4 samples, 1 failed, standard error 0.3333, odd, mill ")


def test_the_card_has_every_finite_metric_and_a_table_of_all(run: ExportedRun, tmp_path: Path) -> None:
    write_hub([run], tmp_path / "card")
    card = huggingface_hub.ModelCard.load(tmp_path / "card" / "README.md")
    entries = {(entry.dataset_name, entry.metric_type): entry.metric_value for entry in card.data.eval_results}
    assert entries == {
        ("gsm8k", "exact_match"): pytest.approx(1 / 3),
        ("mmlu_anatomy", "word_perplexity"): pytest.approx(7.389056),
    }
    rows = [line for line in card.content.splitlines() if line.startswith("| gsm8k")]
    assert [[cell.strip() for cell in row.split("|")][4] for row in rows] == ["0.3333", "inf"]
    assert "1 samples failed" in card.content


def test_names_are_no_markup(run: ExportedRun, tmp_path: Path) -> None:
    file = run.folder.path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["model"]["name"] = "<img src=x onerror=alert(1)> | [a](javascript:x)\n---\nname: y"
    file.write_text(json.dumps(manifest))
    (card,) = [one for one in write_hub([only_run(tmp_path / "run")], tmp_path / "card") if one.name == "README.md"]
    front, text = card.read_text().split("\n---\n", 1)
    assert yaml.safe_load(front.removeprefix("---\n"))["model-index"][0]["name"].startswith("<img src=x")
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert "<img" not in html and "href" not in html


def test_tasks_without_a_dataset_are_in_the_card_alone(odd_run: ExportedRun, tmp_path: Path) -> None:
    (card,) = write_hub([odd_run], tmp_path)
    assert "odd\\_dialog" in card.read_text()
    assert dataset_of("odd_text") is None and dataset_of("mmlu") is None and dataset_of("lm-eval:gsm8k") is None
    generated = dataset_of("hellaswag_gen")
    assert generated is not None and generated.name == "Rowan/hellaswag"


def test_two_models_have_two_folders_and_no_keys(odd_run: ExportedRun, tmp_path: Path) -> None:
    other = evaluate(tmp_path / "run", "odd_text", "--limit", "1")
    file = other.folder.path / "manifest.json"
    file.write_text(file.read_text().replace('"name": "org/odd"', '"name": "org/other"'))
    files = write_hub([odd_run, only_run(tmp_path / "run")], tmp_path / "cards")
    assert [str(file.relative_to(tmp_path / "cards")) for file in files] == ["org_odd/README.md", "org_other/README.md"]
    assert leaks(tmp_path / "cards") == []


def test_an_old_huggingface_hub_is_refused(odd_run: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", ModuleType("huggingface_hub"))
    with pytest.raises(MillError, match=r'huggingface_hub>=1\.4: pip install -e "\.\[hub\]"'):
        write_hub([odd_run], tmp_path)


def test_entries_of_one_model_say_how_they_differ(run: ExportedRun, tmp_path: Path) -> None:
    """Two dtypes, of which one run stopped at its budget after a random part of the data."""
    other = tmp_path / "other" / "odd-12345678" / "default"
    shutil.copytree(run.folder.path, other)
    manifest, scores = (json.loads((other / name).read_text()) for name in ("manifest.json", "results.json"))
    manifest["id"], manifest["model"]["identity"] = "other", {"dtype": "bfloat16"}
    manifest["model"]["arguments"] = {"path": "org/odd", "quantization": "int4"}
    scores["tasks"]["gsm8k"] |= {"pending": 2, "total": 9, "sampled": {"method": "random", "seed": 1, "strata": {}}}
    (other / "manifest.json").write_text(json.dumps(manifest))
    (other / "results.json").write_text(json.dumps(scores))
    write_hub([run, only_run(tmp_path / "other")], tmp_path / "card")
    first, second = yaml.safe_load((tmp_path / "card" / ".eval_results" / "gsm8k.yaml").read_text())
    assert second["notes"].partition("; ")[2] == (
        "random 4 of 9, seed 1; random sample (seed 1): the intervals are about the score of the whole test set; "
        "stopped at a budget: 2 samples did not run; dtype bfloat16; arguments quantization=int4"
    )
    assert "bfloat16" not in first["notes"] and "budget" not in first["notes"]
    card = (tmp_path / "card" / "README.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("| gsm8k")]
    assert "| settings | sampled |" in card and rows[-1][-1] == "random 4 of 9, seed 1"
    assert "| sampled |" not in model_card("odd", [run])
