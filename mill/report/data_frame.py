"""Rows as a pandas data frame, also where a text has a lone surrogate, as the output of a model may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mill.api.errors import import_pandas

if TYPE_CHECKING:
    import pandas as pd


def data_frame(what: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """`what` needs pandas. Its own type of texts, which newer versions infer, is UTF-8: where a text is not, columns keep
    Python's objects, and numbers are inferred."""
    pandas = import_pandas(what)
    chosen = None if columns is None else list(columns)
    try:
        return pandas.DataFrame(rows, columns=chosen)
    except UnicodeEncodeError:
        frame = pandas.DataFrame(rows, columns=chosen, dtype=object)
        for name in frame:
            if not any(isinstance(value, str) for value in frame[name]):
                frame[name] = frame[name].infer_objects()
        return frame
