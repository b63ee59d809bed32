"""Tokens with their log-probabilities: of a sample, of two runs, and the worst of all samples."""

from __future__ import annotations

import json
import math
from typing import Any

from tests.browsing import needs_chromium, sync_api
from tests.view.browser.results import CHOICES, TEXTS, ResultFiles
from tests.view.browser.shown import number, params, rows

pytestmark = needs_chromium
expect = sync_api.expect
ALTERNATIVES = 10  # of a token whose whole distribution is stored
Stored = list[Any]  # a token in the file: id, text, log-probability, alternatives


def tokens_of(sample: dict[str, Any]) -> list[Stored]:
    return list(sample["responses"][0][-1]["tokens"])


def alternatives(page: Any, side: int) -> list[list[str]]:
    return [row[1:3] for row in rows(page, f".panel table.alternatives >> nth={side}")]


def test_a_click_on_a_token_shows_its_alternatives(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    sample = results.runs["base"].samples(TEXTS)[0]
    page = screens.open("sample", run=uids["base"], t=sample["task"], id=sample["id"])
    stored = tokens_of(sample)
    shown = page.locator(".token-text button.token")
    expect(shown).to_have_count(len(stored))
    for at in (0, 5):
        shown.nth(at).click()
        expect(page.locator(".panel")).to_contain_text(f"log-probability {number(stored[at][2])}")
        assert alternatives(page, 0) == [[number(math.exp(value)), number(value)] for _, value in stored[at][3]]
    assert len(stored[0][3]) == 5
    shown.nth(5).click()
    expect(page.locator(".panel")).to_have_count(0)


def forced_samples(results: ResultFiles, model: str) -> dict[str, dict[str, Any]]:
    """The texts of the baseline that `mill compare` let a model score."""
    (file,) = results.root.glob(f"checks/runs/{model}-*/*condition=forced*/samples/forced.jsonl")
    return {one["id"]: one for one in map(json.loads, file.read_text().splitlines())}


def distribution(results: ResultFiles, model: str, name: str) -> Any:
    """The log-probabilities of the whole vocabulary at each token of a forced text, as the run stored them."""
    import numpy as np

    file = forced_samples(results, model)[name]["responses"][0][-1]["distribution"]
    (folder,) = results.root.glob(f"checks/runs/{model}-*")
    return np.load(folder / file)


def test_both_runs_show_their_log_probability_of_a_token(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    sample = results.runs["base compared"].samples(TEXTS)[2]
    page = screens.open("pair", a=uids["base compared"], b=uids["other compared"], t=sample["task"], id=sample["id"])
    page.locator(".filters").get_by_role("link", name="Tokens").click()
    expect(page.get_by_label("Tint by")).to_have_value("kl")
    expect(page.get_by_text("The baseline's text, scored by both runs.")).to_be_visible()
    name = f"{sample['task']}/{sample['id']}"
    first, second = (tokens_of(forced_samples(results, model)[name]) for model in ("base", "other"))
    distributions = [distribution(results, model, name) for model in ("base", "other")]
    shown = page.locator(".token-text button.token")
    expect(shown).to_have_count(len(first))
    for at in (0, len(first) - 1):
        shown.nth(at).click()
        expect(page.locator(".panel p").first).to_contain_text(f"log-probability {number(first[at][2])}")
        expect(page.locator(".panel p").first).to_contain_text(f" {number(second[at][2])}")
        for side, logprobs in enumerate(distributions):
            best = [float(value) for value in sorted(logprobs[at], reverse=True)[:ALTERNATIVES]]
            assert alternatives(page, side) == [[number(math.exp(value)), number(value)] for value in best]
    page.get_by_label("Tint by").select_option("logprob")
    assert params(page)["by"] == "logprob"


def test_the_worst_tokens_are_those_with_the_lowest_log_probability(
    screens: Any, results: ResultFiles, uids: dict[str, str]
) -> None:
    page = screens.open("tokens", a=uids["base"])
    expect(page.get_by_role("heading", name="Worst tokens")).to_be_visible()
    worst = []
    for sample in results.runs["base"].samples(TEXTS):
        value, at = min((token[2], at) for at, token in enumerate(tokens_of(sample)))
        worst.append((value, sample["id"], at + 1))
    worst.sort()
    expect(page.locator("table.list tbody tr")).to_have_count(len(worst))
    shown = rows(page)
    assert [row[3] for row in shown] == [number(value) for value, _, _ in worst]
    assert [(row[1].split()[-1], row[2]) for row in shown] == [(name, str(at)) for _, name, at in worst]
    page.locator("tbody button.link").first.click()
    expect(page.locator(".panel")).to_contain_text(f"log-probability {number(worst[0][0])}")
    page.locator("tbody a").first.click()
    expect(page.locator('.token[aria-pressed="true"]')).to_have_count(1)
    assert params(page)["at"] == str(worst[0][2])


def test_tokens_that_a_check_scored_are_compared_by_kl(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    """`mill compare` let both models score the same texts: their KL is that of the whole
    distributions that were stored, and the largest is that of the check."""
    import numpy as np
    from scipy.stats import entropy  # type: ignore[import-untyped]

    page = screens.open("tokens", a=uids["base compared"], b=uids["other compared"])
    expect(page.get_by_text("Largest KL over texts that both runs scored")).to_be_visible()
    shown = rows(page)
    metrics = results.check("compare")["variants"][0]["metrics"]
    values = [float(row[3]) for row in shown]
    assert values == sorted(values, reverse=True)
    assert len(shown) == min(100, metrics["kl_mean"]["n"])
    assert shown[0][3] == number(metrics["kl_max"]["value"])
    sides = [forced_samples(results, name) for name in ("base", "other")]
    for row in shown[:20]:
        name, at = row[1].replace(" ", "/"), int(row[2]) - 1
        p, q = (np.exp(distribution(results, model, name)[at].astype("float64")) for model in ("base", "other"))
        assert row[3] == number(float(entropy(p, q)))  # scipy's relative entropy
        assert row[4:6] == [number(tokens_of(side[name])[at][2]) for side in sides]
    page.locator("tbody a").first.click()
    expect(page.locator('.token[aria-pressed="true"]')).to_have_count(1)
    page.go_back()
    page.locator("tbody button.link").first.click()
    assert page.locator(".panel table.alternatives").count() == 2


def test_a_sample_that_no_check_scored_has_the_tokens_of_the_runs(
    screens: Any, results: ResultFiles, uids: dict[str, str]
) -> None:
    """`mill compare` scored texts of one task; the choices of the other have no tokens, which is no error."""
    page = screens.open("tokens", a=uids["base"], b=uids["other"], t=results.runs["base"].task(CHOICES), id="quiz-3")
    expect(page.get_by_text("--gen_kwargs logprobs=5")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
