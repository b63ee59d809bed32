"""Writes the screenshots of docs/view.md: every screen of `mill view` in both themes.

    python scripts/write_view_screenshots.py results RUN_A RUN_B [--task TASK --id ID]

RUN_A and RUN_B are labels of two runs of `mill compare` (with log-probabilities), as `mill.load(...).runs` lists them.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

import mill

DOCS = Path(__file__).parents[1] / "docs" / "view"
SIZE: ViewportSize = {"width": 1200, "height": 760}
COLOURS = 96  # of the palette: the files stay small


def routes(a: str, b: str, task: str, sample: str, check: str) -> dict[str, str]:
    both = f"a={a}&b={b}"
    return {
        "runs": "#/runs",
        "scores": f"#/scores?runs={a},{b}",
        "compare": f"#/compare?{both}",
        "pair": f"#/pair?{both}&t={task}&id={sample}",
        "samples": f"#/samples?run={a}",
        "sample": f"#/sample?run={a}&t={task}&id={sample}",
        "tokens": f"#/tokens?{both}&t={task}&id={sample}&at=8",
        "load": f"#/load?runs={a},{b}&price_in=0.15&price_out=0.6",
        "checks": f"#/checks?check={check}&fail_on=flip_rate>0.02",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("runs", nargs=2)
    parser.add_argument("--task", required=True)
    parser.add_argument("--id", required=True)
    given = parser.parse_args()
    results = mill.load(given.folder)
    uids = results.runs.set_index("run")["uid"]
    found = routes(uids[given.runs[0]], uids[given.runs[1]], given.task, given.id, results.checks["uid"].iloc[0])
    command = [sys.executable, "-m", "mill", "view", given.folder, "--no_browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split(": ", 1)[1].strip()
    DOCS.mkdir(exist_ok=True)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for theme in ("light", "dark"):
                context = browser.new_context(viewport=SIZE, color_scheme=theme)
                page = context.new_page()
                for name, route in found.items():
                    page.goto(address + route)
                    page.wait_for_selector("h1")
                    page.wait_for_selector(".loading", state="detached")
                    page.wait_for_timeout(300)  # charts and intervals
                    picture = Image.open(io.BytesIO(page.screenshot()))
                    small = picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=COLOURS)
                    small.save(DOCS / f"{name}-{theme}.png", optimize=True)
                context.close()
            browser.close()
    finally:
        server.terminate()
        server.wait(timeout=20)


if __name__ == "__main__":
    main()
