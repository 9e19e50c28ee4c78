"""How long the page takes to open in Chromium, cold.

Run it with ``python benchmarks/opening.py [RESULT.json ...] [--loads 10]``; without results, on a
made-up one of 32 layers, 10 prompts of 64 tokens and a decoding step, and 4 engines. Each load is
by a browser that has just been started, with a profile of its own. Measured from the start of the
navigation, in the page's own clock:

- paint: the first contentful paint, which has the verdict;
- usable: the second frame after the map has been drawn, its buttons answering.
"""

import argparse
import importlib.util
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from harness.report.html import to_html
from harness.result import RunResult, Verdict, from_json

ROOT = Path(__file__).parent.parent
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")

#: Runs before the page's script: notes when the frame after the one that shows the map begins.
WATCH = """
new MutationObserver((_, watcher) => {
  if (!document.documentElement.dataset.ready) return;
  watcher.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.usable = performance.now(); }));
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["data-ready"] });
"""


@dataclass(frozen=True, slots=True)
class Opening:
    """Milliseconds from the start of a load."""

    paint: float
    usable: float


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("results", nargs="*", type=Path)
    options.add_argument("--loads", type=int, default=10)
    given = options.parse_args()
    table = Table(title=f"Cold loads of the page, {given.loads} each, milliseconds")
    for n, heading in enumerate(("result", "page", "paint", "most", "usable", "most")):
        table.add_column(heading, justify="right" if n else "left")
    for name, result in _results(given.results):
        page = to_html(result).encode()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            path.write_bytes(page)
            loads = [_load(path) for _ in range(given.loads)]
        paint, usable = [load.paint for load in loads], [load.usable for load in loads]
        times = (statistics.median(paint), max(paint), statistics.median(usable), max(usable))
        table.add_row(name, f"{len(page) / 1e6:.1f} MB", *(f"{time:.0f}" for time in times))
    Console().print(table)


def _results(paths: list[Path]) -> Iterator[tuple[str, RunResult]]:
    for path in paths:
        yield path.stem, from_json(path.read_bytes(), where=str(path))
    if not paths:
        yield "made up", _made_up()


def _made_up() -> RunResult:
    """What the tests hold to the limit of the page's size."""
    path = ROOT / "tests" / "conftest.py"
    spec = importlib.util.spec_from_file_location("making", path)
    assert spec is not None
    assert spec.loader is not None
    making: Any = importlib.util.module_from_spec(spec)
    sys.modules["making"] = making
    spec.loader.exec_module(making)
    result: RunResult = making.make_result(
        Verdict.FAIL,
        layers=32,
        prompts={f"prompt {i}": "text" for i in range(10)},
        engines=("hf:eager", "hf:sdpa", "reference", "trace:candle"),
    )
    spread: RunResult = making.Spreader(64).result(result)
    return spread


def _load(path: Path) -> Opening:
    """Load a page in a new browser."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        sys.exit("chromium and chromedriver are needed: `make browser` installs them")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, "--window-size=1400,1000"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        browser.get(path.as_uri())
        wait = WebDriverWait(browser, 60)
        usable = wait.until(lambda tab: tab.execute_script("return window.usable"))
        paint = browser.execute_script(
            "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        return Opening(float(paint), float(usable))
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
