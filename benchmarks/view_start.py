"""From `mill view` to a rendered page, on a folder of 20 runs.

    python benchmarks/view_start.py

Chromium is open already; the time is from the start of the process to the moment at which the page lists all runs. Cold is
without an index in the cache, warm is with it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright
from view_index import TOKEN, Server, make_run

RUNS, SAMPLES = 20, 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        results = Path(folder) / "results"
        for number in range(RUNS):
            make_run(results, f"model-{number}", SAMPLES, number)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        for state in ("cold", "warm"):
            times = []
            for repeat in range(given.repeats):
                server = Server(results, Path(folder) / (f"cache-{repeat}" if state == "cold" else "cache"))
                try:
                    page.goto(f"{server.address}/?token={TOKEN}")
                    page.locator("table.list tbody tr").nth(RUNS - 1).wait_for()
                    times.append(time_since(server))
                finally:
                    server.close()
            print(f"{state}: {RUNS} runs of {SAMPLES:,} samples listed after {statistics.median(times):.2f} s, of {times}")
        browser.close()


def time_since(server: Server) -> float:
    return round(time.perf_counter() - server.began, 2)


if __name__ == "__main__":
    main()
