"""Checks as one HTML file that opens anywhere: no script, font or picture comes from elsewhere."""

from mill.report.html.page import report_page, write_report

__all__ = ["report_page", "write_report"]
