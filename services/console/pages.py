"""The pages of the console: which there are, and the frame around them: head, navigation, theme.

Pure. A page's file in `assets` has only what is its own; the frame is put around it once, when the
console starts, so the navigation is the same everywhere and works without JavaScript. Pages lie in
one folder and name others relative to it, so a proxy may put a prefix before their paths.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

ASSETS = Path(__file__).parent / "assets"
FRAME = "frame.html"
COMMON_STYLES = ("page.css",)
COMMON_SCRIPTS = ("words.js", "pieces.js", "ask.js")


class Page(NamedTuple):
    """A page: its file, path, and name in the navigation; `styles` and `scripts` beside the common."""

    file: str
    path: str
    name: str
    scripts: tuple[str, ...]
    styles: tuple[str, ...] = ("logs.css",)


PAGES = (
    Page("index.html", "/", "Overview", ("uPlot.iife.min.js", "charts.js", "page.js"), ("logs.css", "uPlot.min.css")),
    Page("logs.html", "/logs", "Search", ("logs.js",)),
    Page("topics.html", "/topics", "Topics", ("topics.js",)),
    Page("messages.html", "/messages", "Messages", ("messages.js",)),
    Page("groups.html", "/groups", "Groups", ("groups.js",)),
    Page("transactions.html", "/transactions", "Transactions", ("transactions.js",)),
    Page("disks.html", "/disks", "Disks", ("disks.js",)),
    Page("alarms.html", "/alarms", "Alarms", ("alarms.js",)),
    Page("settings.html", "/settings", "Settings", ("settings.js",)),
    Page("audit.html", "/audit", "Audit", ("audit.js",)),
    Page("senders.html", "/senders", "Senders", ("senders.js",)),
)


def whole_page(page: Page, assets: Path = ASSETS) -> bytes:
    """Return the HTML of a page, in its frame."""
    styles = [f'<link rel="stylesheet" href="assets/{name}">' for name in (*COMMON_STYLES, *page.styles)]
    scripts = [f'<script src="assets/{name}" defer></script>' for name in (*COMMON_SCRIPTS, *page.scripts)]
    parts = {
        "TITLE": escape("Millrace" if page.path == "/" else f"{page.name} · Millrace"),
        "LINKS": "\n".join(styles + scripts),
        "NAVIGATION": "\n    ".join(_link(other, other is page) for other in PAGES),
        "PAGE": (assets / page.file).read_text().rstrip("\n"),
    }
    text = (assets / FRAME).read_text()
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part)
    return text.encode()


def _link(page: Page, is_current: bool) -> str:
    return f'<a href="{page.path[1:] or "./"}"{" aria-current=" + chr(34) + "page" + chr(34) if is_current else ""}>{escape(page.name)}</a>'
