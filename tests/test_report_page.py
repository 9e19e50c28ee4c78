"""The page in a real browser: it loads alone and silently, and is usable by keyboard."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from harness.report.html import to_html
from harness.result import RunResult, Verdict
from harness.spread import encode
from tests.chromium import AXE, chromium, lack
from tests.chromium import EVIL as MARKUP

Make = Callable[..., RunResult]
EVIL = f"{MARKUP}{{{{7*7}}}}\u202e"
CULPRIT = "layers.1.attn.q_rope"


class Tab:
    """A browser's tab, and what it said and asked for since it was last opened."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def open(self, page: str, *, ready: bool = True) -> None:
        """Load a page from a file, and wait until its script has drawn."""
        path = self.folder / "page.html"
        path.write_bytes(page.encode("utf-8"))
        self.complaints()
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())
        if ready:
            WebDriverWait(self.driver, 60).until(
                lambda driver: driver.execute_script(
                    "return document.documentElement.dataset.ready === 'yes'"
                )
            )

    def complaints(self) -> list[str]:
        """What the console says."""
        log = self.driver.get_log("browser")
        return [entry["message"] for entry in log]

    def requests(self) -> list[str]:
        """Addresses asked for, but for the page itself and what it holds."""
        log = self.driver.get_log("performance")
        sent = [json.loads(entry["message"])["message"] for entry in log]
        urls = [m["params"]["request"]["url"] for m in sent if m["method"].endswith("BeSent")]
        own = (self.folder / "page.html").as_uri()
        return [url for url in urls if not url.startswith((own, "data:"))]

    def find(self, selector: str) -> WebElement:
        found: WebElement = self.driver.find_element(By.CSS_SELECTOR, selector)
        return found

    def all(self, selector: str) -> list[WebElement]:
        found: list[WebElement] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> WebElement:
        """Press keys wherever the focus is; returns where it is then."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)
        found: WebElement = self.driver.switch_to.active_element
        return found

    def detail(self) -> WebElement:
        """The details of a field, once what it says has been unpacked."""
        panel = self.find("#detail")
        WebDriverWait(self.driver, 30, 0.02).until(lambda _: not panel.get_attribute("aria-busy"))
        return panel

    def choose(self, box: str, text: str) -> None:
        Select(self.find(f"#{box}")).select_by_visible_text(text)

    def field(self, tap: str) -> WebElement:
        return self.find(f'#map-table button[data-tap="{tap}"]')

    def emulate(self, **features: str) -> None:
        media = features.pop("media", "")
        pairs = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        command = {"media": media, "features": pairs}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", command)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(1400, 1000) as browser:
        yield Tab(browser, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def page(sample: Make, spread_out: Make) -> str:
    made = sample(Verdict.FAIL, layers=3, prompts={"hello": "x", "second": "y"})
    return to_html(spread_out(made))


def test_page_loads_without_a_word_and_asks_for_nothing(tab: Tab, page: str) -> None:
    tab.open(page)
    assert tab.complaints() == []
    assert tab.requests() == []
    assert tab.find("#explorer").is_displayed()
    assert not tab.find("#static-maps").is_displayed()


def test_checks_of_console_and_network_can_fail(tab: Tab, page: str) -> None:
    bare = page[page.index("<header") :]
    tab.open(f"<!DOCTYPE html><img src='http://127.0.0.1:9/x.png'>{bare}")
    deadline = time.monotonic() + 30
    seen = tab.requests()
    while not seen and time.monotonic() < deadline:
        seen = tab.requests()
    assert "http://127.0.0.1:9/x.png" in seen
    assert tab.complaints()


def test_policy_refuses_any_other_script(tab: Tab, page: str) -> None:
    tab.open(page.replace('"use strict";', '"use strict"; ', 1), ready=False)
    assert any("Content Security Policy" in said for said in tab.complaints())
    assert not tab.find("#explorer").is_displayed()
    assert tab.find("#static-maps").is_displayed()


def test_page_says_so_when_its_data_is_damaged(tab: Tab, page: str) -> None:
    tab.open(page.replace('id="data">H4sI', 'id="data">AAAA'), ready=False)
    WebDriverWait(tab.driver, 30).until(lambda _: tab.find("#trouble").text)
    assert "cannot be drawn here" in tab.find("#trouble").text
    assert tab.find("#static-maps").is_displayed()


def test_details_say_so_when_they_are_damaged(tab: Tab, page: str) -> None:
    tab.open(page.replace('id="details-0">H4sI', 'id="details-0">AAAA'))
    tab.run("arguments[0].click()", tab.field(CULPRIT))
    assert "The details cannot be read here" in tab.detail().text
    assert tab.complaints() == []
    tab.choose("prompt", "second")
    tab.run("arguments[0].click()", tab.field(CULPRIT))
    assert "Added by this op" in tab.detail().text


def test_map_is_there_before_the_rest_of_the_page(tab: Tab, page: str) -> None:
    """What comes behind the map may be large: the script does not wait for it."""
    tab.run("window.name = ''")
    watch = (
        "new MutationObserver((_, watcher) => { watcher.disconnect();"
        " window.behind = document.getElementById('environment') !== null; })"
        ".observe(document, { attributes: true, subtree: true, attributeFilter: ['data-ready'] })"
    )
    command = "Page.addScriptToEvaluateOnNewDocument"
    added = tab.driver.execute_cdp_cmd(command, {"source": watch})
    try:
        tab.open(page.replace('id="static-maps">', f'id="static-maps"><!--{"x" * 20_000_000}-->'))
        assert tab.run("return window.behind") is False
    finally:
        tab.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_hostile_text_is_shown_as_text(tab: Tab, sample: Make, spread_out: Make) -> None:
    result = spread_out(sample(Verdict.FAIL))
    prompts = tuple(
        replace(
            p,
            name=EVIL,
            text=EVIL,
            tokens=((EVIL,) * len(p.tokens[0]),),
            greedy=tuple(replace(g, engine=EVIL, text=EVIL) for g in p.greedy),
            top=tuple(replace(t, engine=EVIL, texts=(EVIL,) * 3) for t in p.top),
            logits=tuple(replace(pair, b=EVIL) for pair in p.logits),
            pairs=tuple(replace(pair, a=EVIL, tap=EVIL) for pair in p.pairs),
            comparisons=tuple(
                replace(c, candidate=EVIL, op=EVIL, note=EVIL, tap=c.tap if i else EVIL)
                for i, c in enumerate(p.comparisons)
            ),
        )
        for p in result.prompts
    )
    candidates = tuple(
        replace(c, candidate=EVIL, reason=EVIL, unavailable={EVIL: EVIL}) for c in result.candidates
    )
    result = replace(result, case=EVIL, summary=EVIL, prompts=prompts, candidates=candidates)
    tab.open(to_html(replace(result, against=EVIL, stopped=EVIL)))
    shown = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    assert tab.run("return window.hacked") is None
    assert tab.complaints() == []
    assert tab.requests() == []
    assert tab.all("img, iframe, script[src]") == []
    assert len(tab.all("script")) == 2 + len(result.prompts)
    texts = tab.run("return document.body.innerText")
    assert texts.count(shown) > 10
    assert "\u202e" not in texts
    tab.run("arguments[0].click()", tab.all("#map-table .outside button")[0])
    assert shown in tab.detail().text
    assert "{{7*7}}\\u202e" in tab.detail().find_element(By.TAG_NAME, "h3").text


def test_map_opens_at_the_first_divergence_and_obeys_keys(tab: Tab, page: str) -> None:
    tab.open(page)
    tab.run("document.querySelector('#measure').focus()")
    at = tab.press(Keys.TAB)
    assert at.get_attribute("data-tap") == CULPRIT
    name = at.get_attribute("aria-label") or ""
    assert name.startswith(f"985, {CULPRIT}: 15,760 units, max abs ")
    assert "over the limit" in name
    assert tab.press(Keys.ARROW_RIGHT).get_attribute("data-tap") == "layers.1.attn.k_rope"
    assert tab.press(Keys.ARROW_UP).get_attribute("data-tap") == "layers.0.attn.k_rope"
    assert tab.press(Keys.ARROW_UP).get_attribute("data-tap") == "layers.0.attn.k_rope"
    assert tab.press(Keys.HOME).get_attribute("data-tap") == "layers.0.attn_norm"
    assert tab.press(Keys.END).get_attribute("data-tap") == "layers.0.resid_post"
    down = tab.press(*[Keys.ARROW_DOWN] * 3)
    assert down.get_attribute("data-tap") == "embed"
    assert len(tab.all('#map-table button[tabindex="0"]')) == 1


def test_enter_opens_the_details_and_escape_returns(tab: Tab, page: str) -> None:
    tab.open(page)
    tab.run("document.querySelector('#measure').focus()")
    tab.press(Keys.TAB)
    heading = tab.press(Keys.ENTER)
    panel = tab.detail()
    assert heading.text == CULPRIT
    assert panel.is_displayed()
    for part in (
        "rounding units, limit 16",
        "By position: largest",
        "By head: largest",
        "an octave",
    ):
        assert part in panel.text, part
    assert len(tab.all("#detail svg rect")) > 20
    assert len(tab.all("#detail .strip")[0].find_elements(By.CSS_SELECTOR, "span")) == 12
    assert len(tab.all("#detail .taps")[0].find_elements(By.CSS_SELECTOR, "tbody tr")) >= 5
    back = tab.press(Keys.ESCAPE)
    assert back.get_attribute("data-tap") == CULPRIT
    assert not panel.is_displayed()


def test_strips_show_which_head_and_position_is_worst(
    tab: Tab, sample: Make, spread_out: Make
) -> None:
    result = spread_out(sample(Verdict.ROUNDING))
    prompt = result.prompts[0]
    at = next(i for i, c in enumerate(prompt.comparisons) if c.tap == "layers.0.attn.q")
    c = prompt.comparisons[at]
    assert c.local is not None
    assert c.local.spread is not None
    heads = [1.0] * 9
    heads[4] = 1e9  # more than a sign can say
    odd = replace(c.local.spread, heads=encode(heads), positions=encode([4.0, *[1.0] * 11]))
    odd_one = replace(c, local=replace(c.local, units=1e9, spread=odd))
    others = (*prompt.comparisons[:at], odd_one, *prompt.comparisons[at + 1 :])
    tab.open(to_html(replace(result, prompts=(replace(prompt, comparisons=others),))))
    tab.run("arguments[0].click()", tab.field("layers.0.attn.q"))
    tab.detail()
    by_position, by_head = tab.all("#detail .columns > div")[0].find_elements(
        By.CSS_SELECTOR, ".strip"
    )
    assert by_position.accessible_name == "By position: largest at position 0, about 4.0 units"
    assert by_head.accessible_name == "By head: largest at head 4, at least 46,341 units"
    shades = [box.get_attribute("class") for box in by_head.find_elements(By.TAG_NAME, "span")]
    assert shades == ["g0"] * 4 + ["g7"] + ["g0"] * 4
    assert by_position.find_elements(By.TAG_NAME, "span")[1].get_attribute("class") == "g5"


def test_details_follow_the_keys_and_a_click_opens_them(tab: Tab, page: str) -> None:
    tab.open(page)
    tab.field("layers.2.mlp.gate").click()
    assert tab.detail().find_element(By.TAG_NAME, "h3").text == "layers.2.mlp.gate"
    assert tab.press(Keys.ARROW_RIGHT).get_attribute("data-tap") == "layers.2.mlp.up"
    assert tab.detail().find_element(By.TAG_NAME, "h3").text == "layers.2.mlp.up"


def test_worst_elements_have_the_values_of_the_result(
    tab: Tab, sample: Make, spread_out: Make
) -> None:
    result = spread_out(sample(Verdict.FAIL))
    found = next(c for c in result.comparisons if c.tap == CULPRIT and c.chunk == 0)
    assert found.local is not None
    assert found.local.spread is not None
    flat, reference, candidate = found.local.spread.worst[0]
    tab.open(to_html(result))
    tab.run("arguments[0].click()", tab.field(CULPRIT))
    tab.detail()
    choice = Select(tab.find("#detail select"))
    choice.select_by_visible_text("hello, prefill")
    tab.detail()
    row = tab.all("#detail .taps")[0].find_elements(By.CSS_SELECTOR, "tbody tr")[1]
    _, heads, positions, size = found.shape
    place = f"B=0, H={flat // (positions * size)}, T={flat // size % positions}, D={flat % size}"
    assert heads == 9
    assert row.find_element(By.TAG_NAME, "th").text == place
    values = [float(cell.text) for cell in row.find_elements(By.TAG_NAME, "td")[:2]]
    assert values == pytest.approx([reference, candidate], rel=1e-8)


def test_controls_switch_engines_prompts_passes_and_measures(tab: Tab, page: str) -> None:
    tab.open(page)
    before = tab.field(CULPRIT).text
    assert before == "985"
    tab.choose("measure", "local error, rounding units")
    assert tab.field(CULPRIT).text == "15,760"
    tab.choose("measure", "end to end, share of the largest value")
    scaled = float(tab.field(CULPRIT).text)
    tab.choose("measure", "end to end, absolute")
    assert float(tab.field(CULPRIT).text) > scaled
    tab.choose("prompt", "second")
    tab.choose("chunk", "decoding step 1")
    assert "decoding step 1 of second" in (tab.field(CULPRIT).get_attribute("title") or "")
    tab.choose("prompt", "worst of all prompts")
    tab.choose("view", "hf:sdpa against the float64 reference")
    assert tab.field("layers.0.attn.scores").text == "\u00b7"
    tab.choose("view", "hf:eager against hf:sdpa")
    assert tab.field("logits").text == "9.2e-5"
    assert len(tab.all("#map-table button")) == 1
    assert tab.complaints() == []


def test_growth_has_a_line_for_each_candidate_and_a_band(tab: Tab, page: str) -> None:
    tab.open(page)
    assert len(tab.all("#growth polyline")) == 3
    assert len(tab.all("#growth polygon.band")) == 1
    assert len(tab.all("#growth circle.line0")) == 4
    assert "hf:eager" in (tab.find("#growth").get_attribute("aria-label") or "")


def test_tokens_are_shaded_by_the_pair_that_is_chosen(tab: Tab, page: str) -> None:
    tab.open(page)
    box = Select(tab.find("#prompt-1 .by select"))
    assert len(box.options) == 6
    titles = [token.get_attribute("title") for token in tab.all("#prompt-1 .tokens span")]
    assert "logits of float64 and hf:eager differ by" in (titles[0] or "")
    box.select_by_visible_text("hf:sdpa and reference")
    token = tab.find("#prompt-1 .tokens span")
    assert "logits of hf:sdpa and reference differ by" in (token.get_attribute("title") or "")
    assert "differ by" not in (tab.all("#prompt-1 .tokens span")[12].get_attribute("title") or "")


def test_side_by_side_marks_what_differs(tab: Tab, page: str) -> None:
    tab.open(page)
    prompt = tab.find("#prompt-1")
    assert "token 4 is the first that differs: id 77, float64 has 3" in prompt.text
    assert prompt.find_element(By.TAG_NAME, "mark").text == "was"
    assert len(prompt.find_elements(By.CSS_SELECTOR, ".differs")) == 2


def test_result_of_an_earlier_release_is_explored_without_spreads(tab: Tab, sample: Make) -> None:
    tab.open(to_html(sample(Verdict.FAIL)))
    tab.run("arguments[0].click()", tab.field(CULPRIT))
    assert "was not kept" in tab.detail().text
    assert tab.complaints() == []


@pytest.mark.parametrize("verdict", list(Verdict))
def test_next_to_nothing_is_shown_without_a_word_too(
    tab: Tab, sample: Make, verdict: Verdict
) -> None:
    result = sample(verdict)
    tab.open(to_html(result))
    assert tab.complaints() == []
    tab.open(to_html(replace(result, candidates=(), prompts=())))
    assert tab.complaints() == []


def test_print_has_the_static_maps_and_not_the_controls(tab: Tab, page: str) -> None:
    tab.open(page)
    tab.emulate(media="print")
    assert tab.find("#static-maps").is_displayed()
    assert not tab.find("#map-table").is_displayed()
    assert not tab.find(".controls").is_displayed()
    assert tab.find("#growth").is_displayed()
    tab.emulate()


def serious(tab: Tab) -> list[str]:
    """What axe-core finds that is serious or worse."""
    if not AXE.is_file():
        lack("there is no axe-core here")
    tab.run(AXE.read_text("utf-8"))
    found = tab.driver.execute_async_script(
        "const done = arguments[0];"
        "axe.run().then((r) => done(r.violations), (e) => done([{impact: 'critical', id: String(e),"
        " nodes: []}]))"
    )
    return [
        f"{v['id']}: {[node['html'][:120] for node in v['nodes'][:3]]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(tab: Tab, page: str, scheme: str) -> None:
    tab.emulate(prefers_color_scheme=scheme)
    tab.open(page)
    tab.run("arguments[0].click()", tab.field(CULPRIT))
    tab.detail()
    assert serious(tab) == []
    tab.choose("measure", "end to end, absolute")
    assert serious(tab) == []
    tab.emulate()


def test_check_of_accessibility_can_fail(tab: Tab, page: str) -> None:
    tab.open(page)
    tab.run(
        "document.querySelector('#measure').parentNode"
        ".replaceWith(document.createElement('select'))"
    )
    assert any("select-name" in found for found in serious(tab))
