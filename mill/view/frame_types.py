"""The types of the columns of data frames, which do not depend on what the rows have: also an empty frame has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mill.api.errors import import_pandas

if TYPE_CHECKING:
    import pandas as pd

TEXT, WHOLE, NUMBER, TRUTH, TIME, ANY = "text", "whole", "number", "truth", "time", "any"
Types = Mapping[str, str]

RUN_TYPES: Types = {
    **dict.fromkeys(("run", "uid", "model", "model_args", "backend", "tool"), TEXT),
    **dict.fromkeys(("settings", "tasks"), ANY),
    **dict.fromkeys(("samples", "failed"), WHOLE),
    "started": TIME,
    "seconds": NUMBER,
    **dict.fromkeys(("prompt_tokens", "output_tokens"), WHOLE),
    **dict.fromkeys(("error", "path"), TEXT),
}
SCORE_TYPES: Types = {
    **dict.fromkeys(("run", "model", "model_args", "settings", "benchmark", "task", "task_type", "metric", "path"), TEXT),
    **dict.fromkeys(("mean_of", "sampled", "decision"), TEXT),
    **dict.fromkeys(("n_shots", "n", "failed", "total"), WHOLE),
    **dict.fromkeys(("value", "stderr", "low", "high"), NUMBER),
}
_SAMPLE_TYPES: Types = {
    **dict.fromkeys(("model", "model_id", "settings", "task", "id", "category", "prompt", "target", "response"), TEXT),
    **dict.fromkeys(("error", "status", "finish_reason", "reasoning"), TEXT),
    "seconds": NUMBER,
    **dict.fromkeys(("prompt_tokens", "output_tokens", "reasoning_tokens"), WHOLE),
    "correct": TRUTH,
    "flags": ANY,
}
_OPTIONAL = ("correct",)  # that only some tasks have


def sample_types(rows: Sequence[Mapping[str, Any]]) -> Types:
    """Those of samples, with the metrics of their tasks."""
    metrics = dict.fromkeys(name for row in rows for name in row.get("values") or ())
    present = {name for row in rows for name in row}
    own = {column: NUMBER for name in metrics for column in (f"metric_{name}", name) if column in present}
    known = {name: kind for name, kind in _SAMPLE_TYPES.items() if name not in _OPTIONAL or name in present}
    return {**own, **known}


def typed(frame: pd.DataFrame, types: Types) -> pd.DataFrame:
    """The frame with these columns, first those of the frame itself; a column whose values are of other types, as those of
    a metric that only its task can read, stays as it is."""
    pandas = import_pandas("mill.load")
    for name, kind in types.items():
        column = frame[name] if name in frame else pandas.Series([None] * len(frame), index=frame.index, dtype=object)
        frame[name] = _typed(pandas, column, kind)
    return frame


def _typed(pandas: Any, column: pd.Series[Any], kind: str) -> pd.Series[Any]:
    if kind == TEXT:
        return column.astype(object).where(column.notna(), None).astype(object)
    if kind == TIME:
        return pandas.to_datetime(column, errors="coerce", utc=True).dt.as_unit("us")
    if kind == TRUTH:
        known = column.dropna().isin([True, False]).all()
        return column.astype(object).where(column.notna(), None).astype("boolean") if known else column
    if kind == ANY:
        return column
    numbers = pandas.to_numeric(column, errors="coerce")
    if kind == NUMBER:
        lost = numbers.isna() & column.notna() & (column.astype(str) != "nan")
        return column if lost.any() else numbers.astype("float64")
    return numbers.astype("Int64") if (numbers.dropna() % 1 == 0).all() else numbers.astype("float64")
