"""What the pages request, by the path below /api/: functions of a viewer and the parameters of the URL."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from mill.api.errors import SpecError
from mill.view import check_queries, comparing, queries, tokens, usage
from mill.view.filters import read_filter
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
    """What a reader of a run's scores must know: where it is, and its warnings."""
    info = queries.find_run(viewer.index, given.get("run", ""))
    warnings = [f"{task}: {warning}" for task, result in info.results.tasks.items() for warning in result.warnings]
    sessions = info.manifest.get("sessions", [])
    warnings += [text for session in sessions[-1:] for text in session.get("warnings", [])]
    return {"path": info.name, "warnings": list(dict.fromkeys(warnings))}


def scores(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    runs = [uid for uid in given.get("runs", "").split(",") if uid]
    return queries.score_table(viewer.index, runs)


def categories(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    """The categories of a task in each of several runs."""
    runs = [uid for uid in given.get("runs", "").split(",") if uid]
    return {
        "runs": {
            uid: queries.categories(viewer.index, uid, given.get("task", ""))
            for uid in runs
            if given.get("task", "") in queries.find_run(viewer.index, uid).tasks
        }
    }


def samples(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    return queries.list_samples(viewer.index, read_filter(given))


def sample(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    chosen = read_filter(given)
    task, name = given.get("t", ""), given.get("id", "")
    line, shorten = queries.read_sample(viewer.index, chosen.run, task, name), Shortener()
    return {
        "sample": shorten(line),
        "cut": shorten.cut,
        "tokens": _bounded_tokens(tokens.token_table(line, queries.find_run(viewer.index, chosen.run))),
        "neighbours": queries.neighbours(viewer.index, chosen, name, task),
        "command": reproducing_command(queries.find_run(viewer.index, chosen.run), task, name),
    }


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
    texts = [str(line.get("response") or "") for line in lines]
    divergence = tokens.divergence_of(*lines)
    return {
        "a": shorten(lines[0]),
        "b": shorten(lines[1]),
        "cut": shorten.cut,
        "cell": CELLS[found["cell"]],
        "margin": found["margin"],
        "divergence": vars(divergence) if divergence is not None else None,
        "diff": shorten(diff_words(*texts)) if texts[0] != texts[1] else None,
        "neighbours": comparing.pair_neighbours(index, chosen, found),
        "commands": [reproducing_command(queries.find_run(index, uid), task, name) for uid in (chosen.a, chosen.b)],
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
    """Latency, tokens and cost of several runs, with prices per million tokens."""
    prices = [_price(given, name) for name in ("price_in", "price_out")]
    runs = [uid for uid in given.get("runs", "").split(",") if uid]
    task = given.get("task", "")
    chosen = [uid for uid in runs if not task or task in queries.find_run(viewer.index, uid).tasks]
    return {"runs": [usage.usage_of(viewer.index, uid, prices[0], prices[1], task) for uid in chosen]}


def _price(given: Parameters, name: str) -> float:
    try:
        price = float(given.get(name) or 0.0)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise SpecError(f"{name}={given.get(name, '')[:20]}: a price of a million tokens is needed, such as 0.15")
    return price


def check(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    fail_on, require = given.get("fail_on", "").strip(), given.get("require", "").strip()
    return check_queries.show_check(viewer.index, given.get("check", ""), fail_on, require)


def trend(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    return check_queries.metric_over_time(viewer.index, given.get("metric", "match_rate"), viewer.index.checks)


ENDPOINTS: dict[str, Callable[[Viewer, Parameters], dict[str, Any]]] = {
    "run": run,
    "scores": scores,
    "categories": categories,
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
