"""The index page in a real browser: silent, filtered by keyboard, a plain table without script."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from harness.report.folder import read_folder
from harness.report.index import to_index
from harness.result import RunResult, Verdict, to_json
from tests.chromium import AXE, EVIL, chromium, lack

Sample = Callable[..., RunResult]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(1400, 700) as found:
        yield found


@pytest.fixture(scope="module")
def page(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    for verdict in Verdict:
        stem = verdict.value.replace(" ", "-")
        (folder / f"{stem}.json").write_bytes(to_json(sample(verdict, case=f"{stem} case")))
    (folder / "evil.json").write_bytes(to_json(sample(Verdict.FAIL, case=EVIL)))
    (folder / "cost.json").write_text("{}")
    target = folder / "index.html"
    target.write_text(to_index(read_folder(folder), beside=folder, folder=Path("reports")))
    return target


def shown(browser: Any) -> list[str]:
    rows = browser.find_elements(By.CSS_SELECTOR, "#results tr")
    return [row.get_attribute("data-verdict") for row in rows if row.is_displayed()]


def test_index_page_loads_without_a_word(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked") is None
    assert len(shown(browser)) == 6
    assert browser.find_element(By.ID, "shown").text == "6 of 6"


def test_index_page_filters_by_verdict_and_words(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    Select(browser.find_element(By.ID, "by-verdict")).select_by_visible_text("fail")
    assert shown(browser) == ["fail", "fail"]
    text = browser.find_element(By.ID, "by-text")
    text.send_keys("q_rope CASE smollm2")
    assert shown(browser) == ["fail"]
    assert browser.find_element(By.ID, "shown").text == "1 of 6"
    text.send_keys(Keys.ENTER)  # sends no form anywhere
    assert browser.current_url == page.as_uri()
    text.send_keys(" nowhere")
    assert shown(browser) == []


def test_index_page_is_used_by_keyboard(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    reached = []
    for _ in range(5):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focus = browser.switch_to.active_element
        reached.append(focus.get_attribute("id") or focus.get_attribute("class") or focus.tag_name)
    assert reached == ["a", "by-verdict", "by-text", "wide", "a"]


def test_index_page_is_a_plain_table_without_script(browser: Any, page: Path) -> None:
    bare = page.with_name("bare.html")
    bare.write_text(page.read_text().replace('"use strict";', '"use strict"; ', 1))
    browser.get(bare.as_uri())
    assert any("Content Security Policy" in e["message"] for e in browser.get_log("browser"))
    assert not browser.find_element(By.ID, "filters").is_displayed()
    assert len(shown(browser)) == 6


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_the_index_page(browser: Any, page: Path, scheme: str) -> None:
    if not AXE.is_file():
        lack("there is no axe-core here")
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    browser.get(page.as_uri())
    if folder := os.environ.get("PARITY_SCREENSHOTS"):
        browser.save_screenshot(str(Path(folder) / f"index-{scheme}.png"))
    browser.execute_script(AXE.read_text())
    script = "const done = arguments[0]; axe.run().then((r) => done(r.violations.map((v) => v.id)))"
    assert browser.execute_async_script(script) == []


def test_axe_can_find_something(browser: Any, page: Path) -> None:
    if not AXE.is_file():
        lack("there is no axe-core here")
    browser.get(page.as_uri())
    browser.execute_script(AXE.read_text())
    browser.execute_script("document.documentElement.removeAttribute('lang')")
    script = "const done = arguments[0]; axe.run().then((r) => done(r.violations.map((v) => v.id)))"
    assert browser.execute_async_script(script) == ["html-has-lang"]
