"""The outcomes of a check's rules as JUnit XML, which CI systems display."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from mill.checks.gate import KEPT, RuleOutcome
from mill.checks.result import Check
from mill.checks.verdict import first_sentences


def as_junit(judged: Sequence[tuple[Check, Sequence[RuleOutcome]]]) -> str:
    """A suite for each check, a case for each rule on each variant; without rules a case for each variant. An inconclusive
    rule is a failure of type `inconclusive`. The verdicts are in the suite's output."""
    root = ET.Element("testsuites", name="mill")
    for check, outcomes in judged:
        failures = sum(outcome.status != KEPT for outcome in outcomes)
        name = f"{check.name}: {', '.join(variant.label for variant in check.variants)}"
        count = len(outcomes) or len(check.variants)
        suite = ET.SubElement(
            root, "testsuite", name=_clean(name), tests=str(count), failures=str(failures), timestamp=check.created
        )
        for outcome in outcomes:
            case = ET.SubElement(suite, "testcase", classname=_clean(outcome.variant), name=outcome.rule.text)
            if outcome.status != KEPT:
                ET.SubElement(case, "failure", type=outcome.status, message=_clean(outcome.message))
        if not outcomes:
            for variant in check.variants:
                ET.SubElement(suite, "testcase", classname=_clean(variant.label), name=check.command)
        ET.SubElement(suite, "system-out").text = _clean("\n".join(first_sentences(check.variants)))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Without control characters, which XML forbids."""
    return "".join(char if char.isprintable() or char in "\t\n" else "\ufffd" for char in text)
