"""The offline report of one check or run."""

from __future__ import annotations

from mill.api.errors import UnknownName
from mill.report.html import report_page
from mill.report.sections import find_sections
from mill.view.index import ResultsIndex


def offline_report(index: ResultsIndex, kind: str, uid: str) -> str:
    paths = index.checks if kind == "check" else {name: run.path for name, run in index.runs.items()}
    if kind not in ("check", "run") or uid not in paths:
        raise UnknownName(kind[:20], uid[:60], paths, hint="it may have been removed or moved")
    return report_page(find_sections(paths[uid]))
