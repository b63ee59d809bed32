"""Verdicts of checks as JUnit XML, which CI systems show."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from mill.checks.gate import Verdict
from mill.checks.result import Check


def as_junit(judged: Sequence[tuple[Check, Sequence[Verdict]]]) -> str:
    """A suite for each check, a case for each rule on each variant; without rules a case for each variant."""
    root = ET.Element("testsuites", name="mill")
    for check, verdicts in judged:
        failures = sum(verdict.reason is not None for verdict in verdicts)
        name = f"{check.command} {' '.join(check.tasks)}"
        count = len(verdicts) or len(check.variants)
        suite = ET.SubElement(
            root, "testsuite", name=_clean(name), tests=str(count), failures=str(failures), timestamp=check.created
        )
        for verdict in verdicts:
            case = ET.SubElement(suite, "testcase", classname=_clean(verdict.variant), name=verdict.rule.text)
            if verdict.reason:
                ET.SubElement(case, "failure", message=_clean(verdict.reason))
        if not verdicts:
            for variant in check.variants:
                ET.SubElement(suite, "testcase", classname=_clean(variant.label), name=check.command)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Without control characters, which XML forbids."""
    return "".join(char if char.isprintable() or char in "\t\n" else "\ufffd" for char in text)
