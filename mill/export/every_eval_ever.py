"""Runs in the format of Every Eval Ever (schema 0.3.0): `data/TASK/DEVELOPER/MODEL/UUID.json` with the metrics of a task,
and `UUID_samples.jsonl` with a line for each sample and metric.

The format has no NaN: a metric or a sample without a finite value is reported and left out. A failed sample has a score of
0 and its error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from mill.api.response import Response
from mill.export.hub import dataset_of
from mill.export.run import (
    ExportedRun,
    clean,
    finite,
    flatten,
    message_text,
    messages_before,
    shown_text,
    target_text,
)
from mill.export.target import Exporter
from mill.metrics.differences import LOWER, direction
from mill.metrics.estimate import Estimate
from mill.report.collect import sampled_sentences
from mill.store.sample_row import PENDING, SampleRow
from mill.store.samples import RunSample, sample_of
from mill.store.schema import TaskResult
from mill.support.files import json_text, short_name, slug, write_atomically
from mill.support.terminal import utf8, warn

SCHEMA = "0.3.0"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SERVERS = ("litellm", "openai-compat")  # backends of which the weights may be anyone's
_RESERVED = re.compile(r"(?i)(?:con|prn|aux|nul|com\d|lpt\d|data|unknown)(?:\..*)?")


def write_every_eval_ever(runs: Sequence[ExportedRun], folder: Path, *, samples: bool = True) -> list[Path]:
    files = []
    for run in runs:
        for result in run.results.tasks.values():
            log = ResultLog(run, result)
            detail = log.write_samples(folder) if samples and log.metrics else None
            files += [folder / detail["file_path"]] if detail else []
            if log.metrics:
                files.append(folder / log.path(f"{log.uuid}.json"))
                write_atomically(files[-1], json_text(log.aggregate(detail), indent=2) + "\n", root=folder)
    return files


class ResultLog:
    """The files of one task of a run. Their names are the same at every export."""

    def __init__(self, run: ExportedRun, result: TaskResult) -> None:
        self._run, self._result = run, result
        self.metrics = {name: one for name, one in result.metrics.items() if finite(one.value)}
        for name in [name for name in result.metrics if name not in self.metrics]:
            warn(f"{clean(result.task)}: {clean(name)} is {result.metrics[name].value}, which Every Eval Ever cannot store")
        digest = hashlib.blake2b(utf8(f"{run.uid} {result.task}"), digest_size=16).digest()
        self.uuid = str(UUID(bytes=digest, version=4))
        named = _HUB_NAME.fullmatch(run.model) is not None  # else a local one, such as a path
        self.model_id = run.model if named else slug(run.model.rstrip("/").rpartition("/")[2])
        self._developer = run.model.partition("/")[0] if named else "local"
        self._id = f"{clean(result.task)}/{self.model_id}/{int(run.ended.timestamp())}"

    def path(self, name: str) -> str:
        """The path of a file from the root of the database."""
        model = self.model_id.rpartition("/")[2]
        return "/".join(["data", *(_component(part) for part in (self._result.task, self._developer, model)), name])

    def write_samples(self, root: Path) -> dict[str, Any] | None:
        """Write the samples; returns what the aggregate says of their file, None where there is no sample."""
        name, digest, rows = self.path(f"{self.uuid}_samples.jsonl"), hashlib.sha256(), 0

        def fill(handle: IO[bytes]) -> None:
            nonlocal rows
            for row in self._lines():
                line = utf8(f"{json_text(row)}\n")
                digest.update(line)
                handle.write(line)
                rows += 1

        if next(self._lines(), None) is None:
            return None
        write_atomically(root / name, fill, root=root)
        found = {"format": "jsonl", "file_path": name, "hash_algorithm": "sha256", "checksum": digest.hexdigest()}
        return {**found, "total_rows": rows}

    def aggregate(self, detail: Mapping[str, Any] | None) -> dict[str, Any]:
        run = self._run
        return {
            "schema_version": SCHEMA,
            "evaluation_id": self._id,
            "evaluation_timestamp": str(int(run.started.timestamp())),
            "retrieved_timestamp": str(int(run.ended.timestamp())),
            "source_metadata": {
                "source_name": "mill",
                "source_type": "evaluation_run",
                "source_organization_name": "mill",
                "evaluator_relationship": "other",
                "additional_details": {"run": run.uid, "status": run.status},
            },
            "eval_library": {"name": "mill", "version": run.versions.get("mill", "unknown")},
            "model_info": self._model_info(),
            "evaluation_results": [self._metric(name, estimate) for name, estimate in self.metrics.items()],
            **({"detailed_evaluation_results": dict(detail)} if detail else {}),
        }

    def _model_info(self) -> dict[str, Any]:
        run = self._run
        served = run.backend in _SERVERS
        return {
            "name": run.model,
            "id": self.model_id,
            "developer": self._developer,
            "inference_engine": {"name": run.backend or "unknown", "version": run.versions.get(run.backend, "unknown")},
            "additional_details": {
                **flatten(run.arguments, "argument."),
                "deployment_type": "unknown" if served else "self_deployed",
                "model_availability": "unknown" if served else "open_weights",
            },
        }

    def _metric(self, name: str, estimate: Estimate) -> dict[str, Any]:
        result, run = self._result, self._run
        data = dataset_of(result.task)
        on_hub = {"source_type": "hf_dataset", "hf_repo": data.name, "samples_number": result.total} if data else {}
        details = {"data_hash": clean(result.data_hash), "total": str(result.total)}
        counts = {"failed": str(result.errors), "n": str(result.n), "total": str(result.total)}
        sampled = sampled_sentences([result])
        return {
            "evaluation_result_id": clean(name),
            "evaluation_name": clean(result.task),
            "source_data": {
                "dataset_name": clean(result.task),
                "source_type": "other",
                **on_hub,
                "additional_details": details,
            },
            "metric_config": {
                "metric_id": clean(name),
                "metric_name": clean(name),
                "lower_is_better": direction(name) == LOWER,
                "additional_details": {"n_shots": str(result.n_shots), "task_version": str(result.version)},
            },
            "score_details": {
                "score": estimate.value,
                "details": {**counts, **({"sampled": clean(sampled)} if sampled else {})},
                "uncertainty": _uncertainty(estimate),
            },
            "generation_config": _generation(run),
        }

    def _lines(self) -> Iterator[dict[str, Any]]:
        for row in self._run.rows(self._result.task):
            if row.status == PENDING:
                continue
            sample = sample_of(row)
            for name in self.metrics:
                value = 0.0 if row.error is not None else row.mean(name)
                if value is not None and finite(value):
                    yield self._line(row, sample, name, value)

    def _line(self, row: SampleRow, sample: RunSample, metric: str, value: float) -> dict[str, Any]:
        prompt, target, dialog = row.unrendered or row.prompt, target_text(row), bool(row.messages)
        responses = [response for repeat in sample.responses for response in repeat]
        seconds = [response.seconds for response in responses if response.seconds is not None]
        agentic = any(response.tool_calls for response in responses)
        attribution: list[dict[str, Any]] = [] if row.extracted is None else [_attribution(row, sample)]
        return {
            "schema_version": SCHEMA,
            "evaluation_id": self._id,
            "model_id": self.model_id,
            "evaluation_name": clean(self._result.task),
            "evaluation_result_id": clean(metric),
            "sample_id": str(row.id),
            "sample_hash": hashlib.sha256(utf8(prompt + target)).hexdigest(),
            "interaction_type": "agentic" if agentic else "multi_turn" if dialog else "single_turn",
            "input": {
                "raw": prompt,
                "formatted": row.prompt,
                "reference": [target],
                "choices": row.choices or None,
            },
            **_answers(row, sample, agentic or dialog),
            "answer_attribution": attribution,
            "evaluation": {"score": value, "is_correct": row.error is None and value == 1.0},
            "token_usage": _token_usage(responses),
            "performance": {"latency_ms": 1000 * sum(seconds)} if seconds else None,
            "error": row.error,
            "metadata": flatten({"category": row.category, "finish_reason": row.finish_reason}),
        }


def _component(name: str) -> str:
    """A part of a path that every file system takes."""
    safe = short_name(re.sub(r"[^\w.=-]+", "_", clean(name)).strip(". ") or "_")
    return f"_{safe}" if _RESERVED.fullmatch(safe) else safe


def _uncertainty(estimate: Estimate) -> dict[str, Any]:
    found: dict[str, Any] = {"num_samples": estimate.n}
    if estimate.stderr is not None and finite(estimate.stderr):
        found["standard_error"] = {"value": estimate.stderr, "method": "analytic"}
    if estimate.low is not None and estimate.high is not None and finite(estimate.low) and finite(estimate.high):
        found["confidence_interval"] = {"lower": estimate.low, "upper": estimate.high, "confidence_level": 0.95}
    return found


def _generation(run: ExportedRun) -> dict[str, Any]:
    given = run.settings.get("gen_kwargs") or {}
    known = {name: given[name] for name in ("temperature", "top_p", "top_k") if isinstance(given.get(name), (int, float))}
    if isinstance(given.get("max_gen_toks"), int):
        known["max_tokens"] = given["max_gen_toks"]
    command = {"execution_command": run.command} if run.command else {}
    return {"generation_args": {**known, **command}, "additional_details": flatten(run.settings)}


def _answers(row: SampleRow, sample: RunSample, with_messages: bool) -> dict[str, Any]:
    """The responses of all repeats, or the messages of the first one."""
    if with_messages:
        return {"output": None, "messages": _messages(sample)}
    found = [shown_text(responses) for responses in sample.responses]
    texts = [text if text is not None else row.chosen or "" for text in found]
    reasoning = [responses[-1].reasoning or "" for responses in sample.responses if responses]
    return {"output": {"raw": texts, "reasoning_trace": reasoning if any(reasoning) else None}, "messages": None}


def _messages(sample: RunSample) -> list[dict[str, Any]]:
    """Those of the first repeat, with its last response."""
    messages: list[dict[str, Any]] = [
        {
            "role": str(message.get("role") or "user"),
            "content": message_text(message),
            "tool_calls": [
                _call(index, call["function"]["name"], call["function"]["arguments"], str(call.get("id") or ""))
                for index, call in enumerate(message.get("tool_calls") or ())
            ]
            or None,
            "tool_call_id": [str(message["tool_call_id"])] if message.get("tool_call_id") else None,
        }
        for message in messages_before(sample, 0)
    ]
    for last in sample.responses[0][-1:]:
        calls = [_call(index, call.name, call.text, call.id) for index, call in enumerate(last.tool_calls)]
        answer = {"role": "assistant", "content": last.text, "reasoning_trace": last.reasoning, "tool_calls": calls or None}
        messages.append(answer)
        ids = [call["id"] for call in calls]
        messages += [
            {"role": "tool", "content": result.output, "tool_call_id": ids[index : index + 1]}
            for index, result in enumerate(last.tool_results)
        ]
    return [{"turn_idx": index, **message} for index, message in enumerate(messages)]


def _call(index: int, name: str, arguments: str, call_id: str) -> dict[str, Any]:
    """The format's arguments are texts by name; those as the model wrote them are one text."""
    return {"id": call_id or str(index), "name": str(name), "arguments": {"json": str(arguments)}}


def _attribution(row: SampleRow, sample: RunSample) -> dict[str, Any]:
    turn = max(0, len(_messages(sample)) - 1) if row.messages else 0
    source = f"messages[{turn}].content" if row.messages else "output.raw"
    method = "argmax of log-probabilities" if row.chosen is not None else "custom"
    return {
        "turn_idx": turn,
        "source": source,
        "extracted_value": str(row.extracted),
        "extraction_method": method,
        "is_terminal": True,
    }


def _token_usage(responses: Sequence[Response]) -> dict[str, Any] | None:
    counted = [response for response in responses if response.prompt_tokens is not None]
    if not counted:
        return None
    prompt, output = sum(one.prompt_tokens or 0 for one in counted), sum(one.output_tokens or 0 for one in counted)
    reasoning = [one.reasoning_tokens for one in counted if one.reasoning_tokens is not None]
    total = {"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output}
    return {**total, "reasoning_tokens": sum(reasoning) if reasoning else None}


EXPORTER = Exporter(
    name="every-eval-ever",
    about="JSON and JSONL in the layout of the Every Eval Ever database, schema 0.3.0",
    write=write_every_eval_ever,
)
