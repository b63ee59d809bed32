"""`--decide` of compare and eval: the check that it writes, and what gates and reports make of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mill.api.errors import RunError, SpecError
from mill.checks.compare import compare
from mill.checks.gate import BROKEN, INCONCLUSIVE, KEPT, judge, parse_rules
from mill.checks.result import Check, read_check
from mill.checks.subjects import CheckConfig, labelled, open_subjects
from mill.cli.main import run as run_command
from mill.frames import compare as compare_models
from mill.frames import evaluate
from mill.metrics.differences import LOWER, UNKNOWN
from mill.models.spec.parse import make_spec
from mill.plan.sampling import SampleChoice, read_claim
from mill.runs.evaluate import RunConfig
from mill.tasks.load import load_files, select
from mill.view.offline import write_check_page
from tests.toy_exam import SIZES, is_right

EXAM = str(Path(__file__).parent.parent / "toy_exam.py")


def mill(*arguments: str) -> int:
    return run_command(list(arguments))


def compared(tmp_path: Path, claim: str, *, b: str = "exam[name=b,accuracy=0.55,changed=0.1]", alpha: float = 0.05) -> Check:
    load_files((EXAM,))
    specs = [make_spec("exam[name=a,accuracy=0.65]"), make_spec(b)]
    run = RunConfig(output_dir=tmp_path, samples=SampleChoice(decide=read_claim(claim, alpha)), chat=False, steered=True)
    config = CheckConfig(select(["toy_exam"]), run, quiet=True)
    return compare("compare", open_subjects(labelled(specs, ["a", "b"]), config), config, forced_tokens=0)


def drop(b: float, changed: float) -> float:
    """The difference on all questions, counted by hand."""
    pairs = [(task, index) for task, size in SIZES.items() for index in range(size)]
    lost = [is_right(*one, 0.65, 0.0, "a") - is_right(*one, b, changed, "b") for one in pairs]
    return sum(lost) / len(lost)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Check:
    return compared(tmp_path_factory.mktemp("decided"), "acc_drop>0.02")


def test_a_drop_is_decided_on_the_same_random_samples_of_both(decided: Check) -> None:
    (variant,) = decided.variants
    decision = variant.decision
    assert decision is not None and decision.outcome == "true" and drop(0.55, 0.1) > 0.02
    assert decision.n == variant.counts["samples"] == len(variant.rows) < 1500
    assert decision.total == 3000
    interval = variant.metrics["acc_drop"]
    assert (interval.low, interval.high) == (decision.looks[-1].low, decision.looks[-1].high)
    assert interval.low is not None and interval.high is not None and interval.low < drop(0.55, 0.1) < interval.high
    assert "acc_drop" not in variant.p_values  # a test at a fixed number of samples would not hold
    assert variant.verdict.startswith("acc_drop>0.02 is true: acc_drop is at least 0.0")


def test_failures_of_models_show_no_drop_and_no_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both fail on half of the samples, on which the drop may be anything from -1 to 1."""
    monkeypatch.setenv("EXAM_FAILS", "2")
    (variant,) = compared(tmp_path, "acc_drop>0.02").variants
    decision, interval = variant.decision, variant.metrics["acc_drop"]
    assert decision is not None and decision.outcome == "undecided"
    assert decision.failed == pytest.approx(decision.n / 2, rel=0.2)
    assert interval.low is not None and interval.high is not None and interval.low < -0.4 and interval.high > 0.4
    assert f"for any scores of the {decision.failed} failed samples" in variant.verdict


def test_the_check_is_read_back_with_its_decision(decided: Check, tmp_path: Path) -> None:
    file = decided.save(tmp_path)
    assert read_check(file).variants[0].decision == decided.variants[0].decision
    data = json.loads(file.read_text())
    data["variants"][0]["decision"]["outcome"] = "perhaps"
    file.write_text(json.dumps(data))
    with pytest.raises(RunError, match="decision"):
        read_check(file)


def test_a_rule_with_the_same_bound_follows_the_decision(decided: Check) -> None:
    rules = [*parse_rules("acc_drop>0.02, acc_drop<0.02"), *parse_rules(None, "acc_drop<0.02, acc_drop>0.02")]
    assert [outcome.status for outcome in judge(decided, rules)] == [BROKEN, KEPT, BROKEN, KEPT]


def test_a_rule_on_an_undecided_claim_is_inconclusive(tmp_path: Path) -> None:
    exact = drop(0.55, 0.1)
    check = compared(tmp_path, f"acc_drop>{exact!r}")
    assert check.variants[0].decision is not None and check.variants[0].decision.outcome == "undecided"
    assert [one.status for one in judge(check, parse_rules(f"acc_drop>{exact!r}"))] == [INCONCLUSIVE]


def test_a_claim_follows_the_direction_of_the_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mill.checks.decide.direction", lambda name: UNKNOWN)
    with pytest.raises(SpecError, match="is better is not known"):
        compared(tmp_path, "acc_drop>0.02")
    monkeypatch.setattr("mill.checks.decide.direction", lambda name: LOWER)
    (variant,) = compared(tmp_path, "acc_drop>0.02").variants
    assert variant.decision is not None and variant.decision.outcome == "false"


@pytest.mark.parametrize("claim", ["acc>0.5", "flip_rate>0.1", "acc_drop>1", "acc_drop>-2"])
def test_other_claims_about_two_models_are_refused(tmp_path: Path, claim: str, capsys: pytest.CaptureFixture[str]) -> None:
    models = ("exam[name=a]", "exam[name=b]")
    assert mill("compare", *models, "--tasks", "toy_exam", "--task_paths", EXAM, "--decide", claim) == 2
    assert "--decide" in capsys.readouterr().err


def test_eval_writes_a_check_that_gate_and_report_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    run = ("eval", "exam[name=a,accuracy=0.65]", "toy_exam", "--task_paths", EXAM, "--output_dir", out, "--quiet")
    assert mill(*run, "--decide", "acc>0.55") == 0
    printed = capsys.readouterr().out
    assert "toy_exam: acc>0.55 is true: acc is at least 0.5" in printed
    junit = tmp_path / "gate.xml"
    assert mill("gate", out, "--require", "acc>0.55", "--junit", str(junit)) == 0
    assert mill("gate", out, "--fail_on", "acc>0.55") == 3
    suite = ElementTree.parse(junit).getroot()
    assert "acc>0.55 is true: acc is at least" in (suite.findtext(".//system-out") or "")
    (file,) = (tmp_path / "out" / "checks").glob("decide-*/check.json")
    page = write_check_page(read_check(file), tmp_path / "report.html").read_text()
    assert "acc>0.55: true" in page and "mean so far" in page


def test_python_writes_the_check_that_the_command_line_writes(tmp_path: Path) -> None:
    model, out = "exam[name=a,accuracy=0.65]", str(tmp_path)
    assert mill("eval", model, "toy_exam", "--task_paths", EXAM, "--output_dir", out, "--decide", "acc>0.55") == 0
    (file,) = (tmp_path / "checks").glob("*/check.json")
    written = json.loads(file.read_text())
    file.unlink()
    evaluate(model, "toy_exam", task_paths=[EXAM], output_dir=out, decide="acc>0.55")
    again = json.loads(file.read_text())
    assert {**again, "created": ""} == {**written, "created": ""}
    assert mill("gate", out, "--require", "acc>0.55") == 0 and mill("gate", out, "--fail_on", "acc>0.55") == 3


def test_an_undecided_claim_has_its_own_exit_code(tmp_path: Path) -> None:
    load_files((EXAM,))
    exact = sum(is_right("toy_exam_art", index, 0.65, 0.0, "a") for index in range(300)) / 300
    run = ("eval", "exam[name=a,accuracy=0.65]", "toy_exam_art", "--output_dir", str(tmp_path), "--quiet")
    assert mill(*run, "--decide", f"acc>{exact!r}") == 5


def test_a_decision_that_is_often_wrong_shows_nothing(tmp_path: Path) -> None:
    check = compared(tmp_path, "acc_drop>0.03", alpha=0.4)
    (outcome,) = judge(check, parse_rules(None, "acc_drop>0.03"))
    assert outcome.status == INCONCLUSIVE and "--alpha 0.05" in outcome.reason


def test_a_claim_about_more_than_two_models_is_refused_before_one_is_opened(tmp_path: Path) -> None:
    others = ["exam[name=b]", "no-such-backend[name=c]"]
    with pytest.raises(SpecError, match=r"^decide='acc_drop>0.01' is about two models, not 3: call mill.compare for each"):
        compare_models("exam[name=a]", others, tasks="toy_exam", decide="acc_drop>0.01", output_dir=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_intervals_of_a_random_sample_are_about_the_test_set(tmp_path: Path) -> None:
    """2,850 of 3,000 samples: sqrt(150 / 2999) of the width of an interval about an infinite population."""
    models = ("exam[name=a,accuracy=0.65]", "exam[name=b,accuracy=0.55,changed=0.1]")
    found = compare_models(*models, tasks="toy_exam", sample=0.95, output_dir=str(tmp_path))
    (variant,) = found.check.variants
    estimate, worse, better = variant.metrics["acc_drop"], variant.counts["regressions"], variant.counts["improvements"]
    assert estimate.low is not None and estimate.high is not None
    plain = 2 * 1.96 * math.sqrt((worse + better - (worse - better) ** 2 / 2850) / 2850**2)
    assert estimate.low <= drop(0.55, 0.1) <= estimate.high
    assert estimate.high - estimate.low == pytest.approx(plain * math.sqrt(150 / 2999), rel=0.05)
