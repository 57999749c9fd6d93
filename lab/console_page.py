"""A page of the console in a real browser, used as a person with a keyboard uses it; and a proxy with a prefix before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import ElementNotInteractableException, StaleElementReferenceException
from selenium.webdriver.common.keys import Keys

from lab.browser import complaints
from lab.running_box import Address, eventually

HOSTILE = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'

READY = {
    "/": "#topics tbody tr",
    "/logs": "#topic-names option",
    "/topics": "#topics tbody tr",
    "/topics?topic=syslog": "#settings tbody tr",
    "/messages": "#topic-names option",
    "/groups": "#groups tbody tr",
    "/transactions": "#topic-names option",
    "/disks": "#boxes tbody tr",
    "/alarms": "#runbook details",
    "/settings": "#settings tbody tr",
    "/audit": "#events tbody tr",
    "/senders": "#listeners tbody tr",
}
"""By address: what is there when the page has its first answer."""


class ConsolePage:
    """A page of the console in the browser; it complains of nothing, and does not scroll sideways on a phone."""

    def __init__(self, driver: webdriver.Chrome, origin: str) -> None:
        self.driver, self.origin = driver, origin

    def open(self, path: str) -> None:
        self.driver.get(self.origin + path)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def wait(self, selector: str, text: str) -> None:
        try:
            eventually(lambda: text in self.text(selector), f"{text!r} in {selector}", 60)
        except AssertionError as late:
            raise AssertionError(f"{late}, but {self.text(selector)[:300]!r}; trouble: {self.text('#trouble')}") from None

    def press(self, name: str, within: str = "body") -> None:
        """Press the button of this name, as one with a keyboard does."""
        script = "const [name, within] = arguments, named = (each) => [each.textContent, each.ariaLabel].includes(name); "
        script += "return [...(document.querySelector(within)?.querySelectorAll('button') ?? [])].find(named)"

        def pressed() -> bool:
            try:
                button = self.run(script, name, within)
                if button is None or not button.is_displayed() or not button.is_enabled():
                    return False
                button.send_keys(Keys.ENTER)
                return True
            except (StaleElementReferenceException, ElementNotInteractableException):
                return False  # the page has drawn it again, or a dialog still waits for its answer

        eventually(pressed, f"button {name}")

    def type(self, **values: str) -> None:
        """Fill in the fields of the open dialog, by their labels' first words."""
        for label, value in values.items():
            script = "return [...document.querySelectorAll('dialog label')].find((each) => each.textContent.startsWith(arguments[0]))"
            field = self.run(script, label).find_element("css selector", "input, select, textarea")
            if field.tag_name != "select":
                field.clear()
            field.send_keys(value)

    def is_quiet(self) -> bool:
        assert self.run("return window.harmed ?? null") is None
        assert self.run("return document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling of the page"
        return complaints(self.driver) == []


class PrefixProxy(BaseHTTPRequestHandler):
    """A proxy as nginx is by default: takes the prefix away, and names the console as the host, unless `keeps_host`."""

    console: Address
    prefix = "/boxes/first"
    asked: list[str]
    keeps_host = False

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if not self.path.startswith(f"{self.prefix}/"):
            self.send_error(404)
            return
        with closing(HTTPConnection(self.console.host, self.console.port, timeout=30)) as connection:
            dropped = ("connection",) if self.keeps_host else ("connection", "host")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            connection.request(self.command, self.path.removeprefix(self.prefix), body, headers)
            answer = connection.getresponse()
            body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def prefix_proxy(console: Address, keeps_host: bool = False) -> Iterator[tuple[str, list[str]]]:
    """A proxy before a console: the address of its folder, without the last slash, and the paths that it was asked for."""
    asked: list[str] = []
    known = {"console": console, "asked": asked, "keeps_host": keeps_host}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Proxy", (PrefixProxy,), known))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PrefixProxy.prefix}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
