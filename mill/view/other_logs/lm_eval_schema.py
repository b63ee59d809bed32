"""The files of lm-eval 0.4, as far as they are read."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class LmEvalCount(Struct):
    original: int
    effective: int


class LmEvalResults(Struct, rename={"n_shot": "n-shot", "n_samples": "n-samples"}):
    """results_DATE.json. `results` has tasks and groups."""

    results: dict[str, dict[str, Any]]
    group_subtasks: dict[str, list[str]] = {}
    configs: dict[str, dict[str, Any]] = {}
    versions: dict[str, int | float | str | None] = {}
    n_shot: dict[str, int | str | None] = {}
    n_samples: dict[str, LmEvalCount] = {}
    config: dict[str, Any] = {}
    date: float | None = None
    lm_eval_version: str | None = None
    transformers_version: str | None = None
    git_hash: str | None = None
    model_source: str | None = None
    model_name: str | None = None
    system_instruction: str | None = None
    chat_template: Any = None
    fewshot_as_multiturn: bool | None = None
    total_evaluation_time_seconds: str | float | None = None
    task_hashes: dict[str, str] = {}


class LmEvalSample(Struct):
    """A line of samples_TASK_DATE.jsonl: a document with one of the task's filters. Metrics are further fields.

    `arguments` and `resps` have an entry for each request; an entry of `resps` has a response for each repeat. Numbers
    in responses are texts. Older versions, such as 0.4.3, do not name the filter: the lines of a document are in the order
    of the task's filters.
    """

    doc_id: int | str
    doc: Any
    target: Any
    arguments: dict[str, dict[str, Any]] | list[list[Any]]
    resps: list[Any]
    filtered_resps: list[Any]
    filter: str | None = None
    metrics: list[str] | None = None
