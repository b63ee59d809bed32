"""Checks and runs as one HTML file that opens offline: it loads no script, font or image from elsewhere."""

from mill.report.html.page import report_page, write_report

__all__ = ["report_page", "write_report"]
