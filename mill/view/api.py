"""What the pages request, by the path below /api/: functions of a viewer and the parameters of the URL."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from mill.checks.gate import parse_rules
from mill.metrics.aggregate import calibration as compute_calibration
from mill.report.plot_data import choice_answer
from mill.report.runs import RunSection
from mill.score.recorded_run import RecordedRun
from mill.view import check_queries, comparing, queries, tokens, usage
from mill.view.charts import calibration_chart, sequence_chart
from mill.view.filters import read_filter
from mill.view.index import ResultsIndex
from mill.view.overview import Viewer
from mill.view.pairs import CELLS
from mill.view.run_info import MILL, RunInfo
from mill.view.text_diff import Shortener, diff_words

# Settings that are options of `mill eval` under the same name, with a value.
_OPTIONS = ("n_shots", "seed", "system_prompt", "repeats", "reasoning_effort", "max_rounds", "permutations")
_SWITCHES = ("apply_chat_template", "fewshot_as_multiturn", "same_shots", "cot", "shuffle_choices")


def reproducing_command(run: RunInfo, task: str, sample: str) -> str:
    """Computes the sample in a folder of its own, so that nothing recorded is used. Empty for runs of other tools, and for
    texts that only a check scores."""
    if run.tool != MILL or run.of_check or "," in sample or not run.manifest.get("model"):
        return ""
    requested = run.manifest["tasks"].get(task, {}).get("requested") or task
    words = ["mill", "eval", _spec(run), requested, *_options(run.settings)]
    return shlex.join([*words, "--sample_ids", sample, "--output_dir", "one-sample", "--fresh"])


def _spec(run: RunInfo) -> str:
    """A relative path of the model becomes absolute, so that the command works in any folder."""
    model = run.manifest["model"]
    given = dict(model.get("arguments") or {})
    if run.model_path is not None:
        given["path"] = run.model_path.absolute()
    arguments = ",".join(f"{name}={_value(value)}" for name, value in given.items())
    return f"{model.get('backend', '')}[{arguments}]"


def _value(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f'"{text}"' if any(mark in text for mark in ",[]\"'") else text


def _options(settings: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name in _OPTIONS:
        if settings.get(name) is not None:
            words += [f"--{name}", str(settings[name])]
    for name in _SWITCHES:
        if settings.get(name) is not None:
            words.append(f"--{name}" if settings[name] else f"--no_{name}")
    generation = settings.get("gen_kwargs") or {}
    if generation:
        words += ["--gen_kwargs", ",".join(f"{name}={_value(value)}" for name, value in generation.items())]
    return words


Parameters = Mapping[str, str]


def run(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    """What a reader of a run's scores must know: its scores, what ran, why it is not finished, its warnings."""
    info = queries.find_run(viewer.index, given.get("run", ""))
    about = RunSection(info.path, {"sessions": [], **info.manifest}, info.results) if info.manifest else None
    sessions = info.manifest.get("sessions", [])
    warnings = [*(about.warnings if about else []), *(text for one in sessions[-1:] for text in one.get("warnings", []))]
    return {
        "run": info.uid,
        "path": info.name,
        "about": about.about if about else [],
        "unfinished": about.unfinished if about else "",
        "computed_by": about.computed_by if about else [],
        "warnings": list(dict.fromkeys(warnings)),
        "scores": queries.score_rows(info),
        "decisions": [chart for decision in info.results.decisions.values() for chart in sequence_chart(decision)],
    }


def categories(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    run, task = given.get("run", ""), given.get("task", "")
    return {"run": run, "rows": queries.categories(viewer.index, queries.find_run(viewer.index, run).uid, task)}


def calibration(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    """How sure a run was of its choices in a task, and how often it was right. All its samples are read."""
    info, task = queries.find_run(viewer.index, given.get("run", "")), given.get("task", "")
    (file,) = queries.files_of(viewer.index, info.uid, task).values()
    key = ("calibration", file["id"], file["last"])
    known = viewer.index.remembered.get(key)
    if known is None:
        answers = RecordedRun(info.folder, info.manifest, info.results).gather(task, choice_answer)
        found = [one for one in answers if one is not None]
        known = viewer.index.remember(key, [calibration_chart(compute_calibration(found))] if found else [])
    return {"run": info.uid, "chart": known[0] if known else None}


def samples(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    return queries.list_samples(viewer.index, read_filter(given))


def sample(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    chosen = read_filter(given)
    task, name = given.get("t", ""), given.get("id", "")
    return {
        **one_sample(viewer.index, chosen.run, task, name),
        "neighbours": queries.neighbours(viewer.index, chosen, name, task),
    }


def one_sample(index: ResultsIndex, run: str, task: str, name: str) -> dict[str, Any]:
    """A sample with its tokens, without those of its responses, and the command that computes it."""
    line, shorten = queries.read_sample(index, run, task, name), Shortener()
    table = _bounded_tokens(tokens.token_table(line, queries.find_run(index, run)))
    return {
        "sample": shorten(_without_tokens(line)),
        "cut": shorten.cut,
        "tokens": table,
        "command": reproducing_command(queries.find_run(index, run), task, name),
    }


def _without_tokens(line: Mapping[str, Any]) -> dict[str, Any]:
    repeats = line.get("responses")
    if not isinstance(repeats, list) or not all(isinstance(one, list) for one in repeats):
        return dict(line)
    found = [[_bare(response) for response in repeat] for repeat in repeats]
    return {**line, "responses": found}


def _bare(response: Any) -> Any:
    return {name: one for name, one in response.items() if name != "tokens"} if isinstance(response, dict) else response


def _bounded_tokens(table: list[dict[str, Any]]) -> dict[str, Any]:
    shorten = Shortener()
    rows = shorten(table)
    return {"rows": rows, "cut": shorten.cut}


def compare(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    return comparing.compare_summary(viewer.index, comparing.read_pair_filter(given))


def pairs(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    return comparing.list_pairs(viewer.index, comparing.read_pair_filter(given))


def pair(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    """Two samples side by side: both lines, the diff of their texts, and where they diverge."""
    index, chosen = viewer.index, comparing.read_pair_filter(given)
    task, name = given.get("t", ""), given.get("id", "")
    found, first, second = comparing.find_pair(index, chosen, task, name)
    lines, shorten = [queries.read_line(index, row) for row in (first, second)], Shortener()
    return {
        "a": shorten(_without_tokens(lines[0])),
        "b": shorten(_without_tokens(lines[1])),
        "cut": shorten.cut,
        "cell": CELLS[found["cell"]],
        "margin": found["margin"],
        **difference(*lines),
        "neighbours": comparing.pair_neighbours(index, chosen, found),
        "commands": [reproducing_command(queries.find_run(index, uid), task, name) for uid in (chosen.a, chosen.b)],
    }


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Where two answers diverge, and their words side by side."""
    texts = [str(line.get("response") or "") for line in (first, second)]
    divergence = tokens.divergence_of(first, second)
    return {
        "divergence": vars(divergence) if divergence is not None else None,
        "diff": Shortener()(diff_words(*texts)) if texts[0] != texts[1] else None,
    }


def sample_tokens(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    found = tokens.sample_tokens(
        viewer.index, given.get("a", ""), given.get("b", ""), given.get("t", ""), given.get("id", "")
    )
    return {**found, "tokens": _bounded_tokens(found["tokens"])}


def worst_tokens(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    if given.get("b"):
        return tokens.worst_pairs(viewer.index, given.get("a", ""), given["b"])
    return tokens.worst_tokens(viewer.index, given.get("a", ""), given.get("task", ""))


def load(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    """Latency and tokens of a run, or of one of its tasks."""
    return usage.usage_of(viewer.index, given.get("run", ""), given.get("task", ""))


def check(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    rules = parse_rules(given.get("fail_on", "").strip() or None, given.get("require", "").strip() or None)
    uid = given.get("check", "")
    found = check_queries.find_check(viewer.index, uid)
    run_of = check_queries.run_finder(viewer.index)
    return check_queries.show_check(uid, found, file=viewer.index.checks[uid], rules=rules, run_of=run_of)


def trend(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    checks = dict(check_queries.readable_checks(viewer.index))
    return check_queries.metric_over_time(checks, given.get("metric", "match_rate"))


ENDPOINTS: dict[str, Callable[[Viewer, Parameters], dict[str, Any]]] = {
    "run": run,
    "categories": categories,
    "calibration": calibration,
    "samples": samples,
    "sample": sample,
    "compare": compare,
    "pairs": pairs,
    "pair": pair,
    "tokens": sample_tokens,
    "worst": worst_tokens,
    "load": load,
    "check": check,
    "trend": trend,
}
