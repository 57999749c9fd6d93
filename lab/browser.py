"""A real browser without a window: Debian's chromium by its chromedriver, for pages of a box. `./install.sh test` unpacks both.

Its profile is a directory of its own, it asks no other site, and it ends with the block. Weak spot: run by root it has no sandbox, so it is for our pages only.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

COMMANDS = ("chromium", "chromedriver")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
)


def missing_browser() -> str | None:
    """Why there is no browser here; None if there is."""
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    return f"{' and '.join(missing)} not there (./install.sh test unpacks Debian's)" if missing else None


@contextmanager
def browser(profile: Path, width: int = 1440, height: int = 1500, theme: str = "light", loopback_names: str = "") -> Iterator[webdriver.Chrome]:
    """`theme`: the colour scheme that the system is said to prefer. `loopback_names`: a pattern (`*.example`) of names that resolve to 127.0.0.1."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (*_OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    if loopback_names:
        options.add_argument(f"--host-resolver-rules=MAP {loopback_names} 127.0.0.1")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        show_as(driver, width, height, theme)
        yield driver
    finally:
        driver.quit()


def show_as(driver: webdriver.Chrome, width: int = 1440, height: int = 1500, theme: str = "light") -> None:
    """Change the size of the window, and the colour scheme that the system is said to prefer."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})


def complaints(driver: webdriver.Chrome) -> list[dict[str, Any]]:
    """What the page has written to the browser's console since the last look, warnings included."""
    return list(driver.get_log("browser"))  # type: ignore[no-untyped-call]  # selenium declares no type for it


def leave(driver: webdriver.Chrome) -> None:
    """Leave the page of the test before, which asks again and again, and forget what it complained of."""
    driver.get("about:blank")
    complaints(driver)
