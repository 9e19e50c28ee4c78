"""The page of a gate in a real browser: silent, alone, used by keyboard, light, dark, printed."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from harness.report.gate_html import to_html
from tests.chromium import AXE, EVIL, chromium, lack
from tests.gate_results import EXAMPLES, changed, hostile

RUN_AXE = "const done = arguments[0]; axe.run().then((r) => done(r.violations.map((v) => v.id)))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(1300, 900) as found:
        yield found


def open_page(browser: Any, folder: Path, page: str, *, scheme: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    path = folder / "page.html"
    path.write_text(page)
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())


def requests(browser: Any, folder: Path) -> list[str]:
    """Addresses asked for, but for the page itself and what it holds."""
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in sent if m["method"].endswith("BeSent")]
    own = (folder / "page.html").as_uri()
    return [url for url in urls if not url.startswith((own, "data:"))]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_gate_page_is_silent_alone_and_accessible(
    browser: Any, tmp_path: Path, scheme: str
) -> None:
    if not AXE.is_file():
        lack("there is no axe-core here")
    for page in (*(make() for make in EXAMPLES.values()), hostile(EVIL)):
        open_page(browser, tmp_path, to_html(page, replay="replay.html"), scheme=scheme)
        assert browser.get_log("browser") == []
        assert requests(browser, tmp_path) == []
        assert browser.execute_script("return window.hacked") is None
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        browser.execute_script(AXE.read_text())
        assert browser.execute_async_script(RUN_AXE) == []


def test_checks_of_the_gate_page_can_fail(browser: Any, tmp_path: Path) -> None:
    if not AXE.is_file():
        lack("there is no axe-core here")
    page = to_html(changed()).replace("<html lang", "<html data-lang")
    planted = "<script>window.hacked=1</script><p style='width: 9000px'>x</p>"
    open_page(browser, tmp_path, page.replace("</main>", f"{planted}</main>"))
    said = [entry["message"] for entry in browser.get_log("browser")]
    assert len(said) == 2  # the policy refuses both
    assert all("Content Security Policy" in message for message in said)
    assert browser.execute_script("return window.hacked") is None
    browser.execute_script(AXE.read_text())
    assert browser.execute_async_script(RUN_AXE) == ["html-has-lang"]


def test_gate_page_is_read_by_keyboard(browser: Any, tmp_path: Path) -> None:
    open_page(browser, tmp_path, to_html(changed()))
    links = browser.find_elements(By.CSS_SELECTOR, "nav a")
    for _ in links:
        browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element == links[-1]
    closed = browser.find_element(By.CSS_SELECTOR, "details:not([open]) > summary")
    browser.execute_script("arguments[0].focus()", closed)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert closed.find_element(By.XPATH, "..").get_attribute("open") is not None


def test_gate_page_prints_what_is_folded_away(browser: Any, tmp_path: Path) -> None:
    open_page(browser, tmp_path, to_html(changed()))
    row = browser.find_element(By.XPATH, "//details[not(@open)]//th[.='model.layers.0.part3']")
    seen = (
        "return arguments[0].checkVisibility() && arguments[0].getBoundingClientRect().height > 0"
    )
    assert not browser.execute_script(seen, row)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.execute_script(seen, row)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")


def test_bars_are_as_long_as_the_differences(browser: Any, tmp_path: Path) -> None:
    open_page(browser, tmp_path, to_html(changed()))

    def width(tap: str) -> float:
        path = f"//th[starts-with(., '{tap}')]/..//*[name()='rect']"
        rect = browser.find_element(By.XPATH, path)
        return float(browser.execute_script(
            "return arguments[0].getBoundingClientRect().width", rect
        ))  # fmt: skip

    assert 0 < width("model.layers.0.part2") < width("model.layers.1.part0")
