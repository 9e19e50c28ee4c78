"""What tests of pages share: Chromium without a window, the accessibility checker, hostile text."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

AXE = Path(__file__).parents[1] / ".venv" / ".axe" / "axe.min.js"
EVIL = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


def lack(what: str) -> None:
    """Skip a test that this machine cannot run; where a browser is required, that is a failure.

    Whoever works on something else need not install a browser. CI sets the variable.
    """
    if os.environ.get("PARITY_BROWSER") == "required":
        pytest.fail(f"{what}; `make browser` installs it")
    pytest.skip(f"{what}; `make browser` installs it")


@contextmanager
def chromium(width: int, height: int) -> Iterator[Any]:
    """A browser of a window's size, which is closed behind it; its logs have all that it says.

    It is Any, for Selenium does not say of which type its logs are.
    """
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        lack("there is no chromium with a chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = str(binary)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(driver)))
    try:
        yield found
    finally:
        found.quit()
