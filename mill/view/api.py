"""What the pages request, by the path below /api/: functions of a viewer and the parameters of the URL."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mill.checks.gate import parse_rules
from mill.metrics.aggregate import calibration as compute_calibration
from mill.report.plots import choice_answer
from mill.report.sections import RunSection
from mill.score.recorded_run import RecordedRun
from mill.view import check_queries, queries, tokens
from mill.view import compare as comparing
from mill.view.charts import calibration_chart, sequence_chart
from mill.view.index import ResultsIndex
from mill.view.overview import Viewer, summed
from mill.view.queries import SampleFilter, files_of, find_run, read_filter, samples_where
from mill.view.run_info import MILL, RunInfo

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

    def chart() -> dict[str, Any] | None:
        rows = RecordedRun(info.folder, info.manifest, info.results).gather(task, choice_answer)
        answers = [answer for answer in rows if answer is not None]
        return calibration_chart(compute_calibration(answers)) if answers else None

    return {"run": info.uid, "chart": viewer.index.once(("calibration", file["id"], file["last"]), chart)}


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
    bare = [
        [{name: part for name, part in one.items() if name != "tokens"} if isinstance(one, dict) else one for one in repeat]
        for repeat in repeats
    ]
    return {**line, "responses": bare}


def _bounded_tokens(table: list[dict[str, Any]]) -> dict[str, Any]:
    shorten = Shortener()
    return {"rows": shorten(table), "cut": shorten.cut}


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
        "cell": comparing.CELLS[found["cell"]],
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


def check(viewer: Viewer, given: Parameters) -> dict[str, Any]:
    rules = parse_rules(given.get("fail_on", "").strip() or None, given.get("require", "").strip() or None)
    uid = given.get("check", "")
    found = check_queries.find_check(viewer.index, uid)
    run_of = check_queries.run_finder(viewer.index)
    return check_queries.show_check(uid, found, file=viewer.index.checks[uid], rules=rules, run_of=run_of)


ENDPOINTS: dict[str, Callable[[Viewer, Parameters], dict[str, Any]]] = {
    "run": run,
    "categories": categories,
    "calibration": calibration,
    "samples": lambda viewer, given: queries.list_samples(viewer.index, read_filter(given)),
    "sample": sample,
    "compare": lambda viewer, given: comparing.compare_summary(viewer.index, comparing.read_pair_filter(given)),
    "pairs": lambda viewer, given: comparing.list_pairs(viewer.index, comparing.read_pair_filter(given)),
    "pair": pair,
    "tokens": sample_tokens,
    "worst": worst_tokens,
    "load": lambda viewer, given: usage_of(viewer.index, given.get("run", ""), given.get("task", "")),
    "check": check,
    "trend": lambda viewer, given: check_queries.metric_over_time(
        dict(check_queries.readable_checks(viewer.index)), given.get("metric", "match_rate")
    ),
}


QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
BINS = 40


def usage_of(index: ResultsIndex, run: str, task: str = "") -> dict[str, Any]:
    """Latency and tokens of a run, or of one of its tasks; `tasks` has the tokens of each task."""
    info, files = find_run(index, run), files_of(index, run, task)
    counts = summed(files.values())
    of_tasks = {file["task"]: _sums(index, {number: file}) for number, file in files.items()}
    sums = {name: sum(one[name] for one in of_tasks.values()) for name in ("prompt_tokens", "output_tokens")}
    times = index.once(("times", run, task, index.state.version), lambda: _times(index, run, task))
    right = counts["right"]
    tokens = sums["prompt_tokens"] + sums["output_tokens"]
    sessions = info.manifest.get("sessions", [])
    spent = sum(float(session.get("answering_s") or session.get("seconds") or 0.0) for session in sessions)
    computed = sum(int(session.get("computed") or 0) for session in sessions)
    generated = sum(int(session.get("output_tokens") or 0) for session in sessions)
    return {
        "run": run,
        "samples": sum(counts[name] for name in ("right", "wrong", "graded", "unscored", "failed")),
        "right": right,
        **sums,
        **times,
        "requests_per_s": computed / spent if spent and computed else None,
        "tokens_per_s": generated / spent if spent and generated else None,
        "tokens_per_right": tokens / right if right and tokens else None,
        "tasks": of_tasks,
    }


def _sums(index: ResultsIndex, files: Mapping[int, Any]) -> dict[str, Any]:
    """The tokens of samples, and how many have a number of them."""
    clause = samples_where(index, SampleFilter(), files)
    tokens = (f"coalesce(sum({name}), 0) AS {name}" for name in ("prompt_tokens", "output_tokens"))
    counted = "count(coalesce(prompt_tokens, output_tokens)) AS samples"
    query = f"SELECT {counted}, {', '.join(tokens)} FROM samples WHERE {clause.text}"
    return dict(index.database.connection().execute(query, clause.parameters).fetchone())


def _times(index: ResultsIndex, run: str, task: str) -> dict[str, Any]:
    """Quantiles and a histogram of the seconds of an answer."""
    clause = samples_where(index, SampleFilter(run), files_of(index, run, task))
    query = f"SELECT json_group_array(seconds) FROM samples WHERE {clause.text} AND seconds IS NOT NULL"
    text: str = index.database.connection().execute(query, clause.parameters).fetchone()[0]
    seconds = sorted(msgspec.json.decode(text, type=list[float]))  # one text is read faster than a row for each number
    # The smallest value that at least this share of values does not exceed.
    quantiles = {name: seconds[max(0, math.ceil(share * len(seconds)) - 1)] for name, share in QUANTILES.items() if seconds}
    return {"latency": quantiles, "histogram": _histogram(seconds)}


def _histogram(values: Sequence[float]) -> list[dict[str, float]]:
    """Counts in bins of equal width on a logarithmic scale: latencies have a long tail."""
    positive = [value for value in values if value > 0]
    if not positive:
        return []
    low, high = math.log10(positive[0]), math.log10(positive[-1])
    if high - low < 1e-9:  # the samples of one batch
        return [{"from": positive[0], "to": positive[-1], "n": len(positive)}]
    width = (high - low) / BINS
    counts = [0] * BINS
    for value in positive:
        counts[min(BINS - 1, int((math.log10(value) - low) / width))] += 1
    return [
        {"from": 10 ** (low + number * width), "to": 10 ** (low + (number + 1) * width), "n": count}
        for number, count in enumerate(counts)
    ]


MOST_TEXT = 100_000  # characters of one text
MOST_ITEMS = 5_000  # of one list
MOST_TOTAL = 2_000_000  # characters of all texts together
MOST_DEPTH = 40


class Shortener:
    """Copies data with long texts and lists cut; `cut` counts what was left out, so that the page can report it."""

    def __init__(self) -> None:
        self.characters, self.items, self._left = 0, 0, MOST_TOTAL

    def __call__(self, data: Any, depth: int = 0) -> Any:
        if isinstance(data, str):
            return self._text(data)
        if depth >= MOST_DEPTH and isinstance(data, (dict, list)):
            self.items += 1
            return "…"
        if isinstance(data, dict):
            return {self._text(str(name)): self(value, depth + 1) for name, value in self._bounded(list(data.items()))}
        return [self(value, depth + 1) for value in self._bounded(data)] if isinstance(data, (list, tuple)) else data

    @property
    def cut(self) -> dict[str, int]:
        return {"characters": self.characters, "items": self.items}

    def _text(self, text: str) -> str:
        most = min(MOST_TEXT, max(200, self._left))
        self._left -= min(len(text), most)
        if len(text) <= most:
            return text
        self.characters += len(text) - most
        return text[:most]

    def _bounded(self, items: Any) -> Any:
        self.items += max(0, len(items) - MOST_ITEMS)
        return items[:MOST_ITEMS]


MOST_WORDS = 20_000  # of both texts together; longer ones show their first difference alone
_WORDS = re.compile(r"\s+|[^\W_]+|.", re.DOTALL)


def diff_words(first: str, second: str) -> list[dict[str, Any]] | None:
    """Segments in order: `same` is in both texts; `a` and `b` are what each text has instead of the other's, which may be
    nothing. None for long texts."""
    from rapidfuzz.distance import Indel

    a, b = _WORDS.findall(first), _WORDS.findall(second)
    if len(a) + len(b) > MOST_WORDS:
        return None
    segments: list[dict[str, Any]] = []
    for step in Indel.opcodes(a, b):
        own, other = "".join(a[step.src_start : step.src_end]), "".join(b[step.dest_start : step.dest_end])
        if step.tag == "equal":
            segments.append({"same": own})
        elif segments and "a" in segments[-1]:  # an insertion beside a deletion replaces it
            segments[-1] = {"a": segments[-1]["a"] + own, "b": segments[-1]["b"] + other}
        else:
            segments.append({"a": own, "b": other})
    return segments
