"""A box against the web pages that its users visit: what a page of another site could do in release 0.1.0, done again by a real browser."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from selenium import webdriver

from lab.browser import browser, missing_browser
from lab.running_box import RunningBox, eventually, listener
from lab.topic_documents import read_documents

pytestmark = [pytest.mark.system, pytest.mark.slow]
needs_browser = pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))

FETCH = """
const [url, options, done] = arguments;
fetch(url, options).then(async (answer) => done([answer.type, answer.status, await answer.text()]), (error) => done(["refused", 0, String(error)]));
"""
PROTOCOLS = ("relp", "fluent", "lumberjack", "gelf")


class EmptyPage(BaseHTTPRequestHandler):
    """The web server of another site, under every name."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Site(NamedTuple):
    """A box, and a web server that is another site to it. The pages of `app.example` may send to the box."""

    box: RunningBox
    port: int

    def url(self, name: str) -> str:
        return f"http://{name}:{self.port}/"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    allowed = {"name": "http", "allow-origin": [f"http://app.example:{server.server_port}"]}
    streams = [listener(name, name, "tcp", topic="syslog") for name in PROTOCOLS]
    settings = {"http.details.allowed.networks": "127.0.0.1"}
    box = start_shared(tmp_path_factory.mktemp("pages") / "box", settings=settings, senders={"listener": [allowed, *streams]})
    yield Site(box, server.server_port)
    assert box.stop() == 0
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with browser(tmp_path_factory.mktemp("profile"), loopback_names="*.example") as driver:
        driver.set_script_timeout(20)
        yield driver


def fetched(page: webdriver.Chrome, url: str, **options: Any) -> list[Any]:
    """Type of the answer ("refused": the browser got, or gives, none), status, text."""
    return list(page.execute_async_script(FETCH, url, options))


def counted(box: RunningBox, process: str, name: str, reason: str) -> int:
    values = box.counters(process).values
    return sum(value for label, value in values.items() if label.startswith(name) and f'reason="{reason}"' in label)


def messages_of(box: RunningBox) -> list[str]:
    """All messages of the topic of syslog, to the one that this sends last."""
    with socket.create_connection(box.syslog, 10) as sender:
        sender.sendall(b"<13>the last one\n")
    documents: list[Any] = []

    def read() -> list[str]:
        documents[:] = read_documents(box, "syslog")
        return [str(document["message"]) for document in documents]

    return list(eventually(lambda: (found := read()) and "the last one" in found and found, "the last line is stored"))


@needs_browser
def test_a_page_of_another_site_stores_no_line_through_any_listener(site: Site, page: webdriver.Chrome) -> None:
    box = site.box
    page.get(site.url("evil.example"))
    paths = ("/ingest/syslog", "/_bulk", "/gelf", "/v1/logs", "/services/collector/raw", "/loki/api/v1/push")
    simple = {"method": "POST", "mode": "no-cors", "body": "<10>1 - forged forged - - - forged\n"}
    for path in paths:
        fetched(page, f"http://{box.ingest}{path}", **simple)
    assert counted(box, "ingest@0", "ingest.refused", "cross_site") == len(paths)
    streams = [box.syslog, *(box.sender(name) for name in PROTOCOLS)]
    for address in streams:
        assert fetched(page, f"http://{address}/", **simple)[0] == "refused"
    eventually(lambda: counted(box, "ingest@0", "ingest.closed", "http-on-plain-port") >= len(streams), "each connection is closed and counted")
    assert not [message for message in messages_of(box) if "forged" in message or "HTTP/1.1" in message]


@needs_browser
def test_a_page_whose_name_leads_to_the_box_reads_and_stores_nothing(site: Site, page: webdriver.Chrome) -> None:
    """DNS rebinding: to the browser, the box is the page's own site."""
    box = site.box
    for path in ("/api/overview", "/metrics"):
        page.get(f"http://rebound.example:{box.http.port}{path}")
        assert fetched(page, path)[1] == 421 and "processes" not in page.page_source
    assert counted(box, "console", "console.refused", "unknown_host") >= 4
    page.get(f"http://rebound.example:{box.ingest.port}/health")
    assert fetched(page, "/ingest/syslog", method="POST", body='{"message":"forged"}')[1] == 421
    assert "forged" not in messages_of(box)


@needs_browser
def test_a_page_of_an_allowed_site_sends_and_reads_its_answer(site: Site, page: webdriver.Chrome) -> None:
    page.get(site.url("app.example"))
    sent = {"method": "POST", "headers": {"Content-Type": "application/json", "Idempotency-Key": "1"}, "body": '{"message":"from an allowed page"}'}
    kind, status, text = fetched(page, f"http://{site.box.ingest}/ingest/syslog", **sent)
    assert (kind, status) == ("cors", 200) and '"stored":1' in text
    assert "from an allowed page" in messages_of(site.box)


@needs_browser
def test_a_link_to_the_console_opens_it_and_no_other_site_embeds_it(site: Site, page: webdriver.Chrome) -> None:
    console = f"http://{site.box.http}/"
    page.get(site.url("evil.example"))
    assert fetched(page, f"{console}api/overview")[0] == "refused"
    assert fetched(page, f"{console}assets/page.css", mode="no-cors")[0] == "refused"
    page.execute_script("location.href = arguments[0]", console)
    eventually(lambda: page.execute_script("return document.querySelector('#ready')?.textContent") == "ready", "the console is shown")


@needs_browser
def test_a_page_of_another_site_changes_nothing_by_the_console(site: Site, page: webdriver.Chrome) -> None:
    """A form can send no JSON, a fetch with JSON or the header of the page is asked about first, and a name that leads to the box is not the box's."""
    console, admin = f"http://{site.box.http}", AdminClient({"bootstrap.servers": site.box.bootstrap})
    body = json.dumps({"topic": "forged", "key": None, "value": "forged"})
    page.get(site.url("evil.example"))
    for path in ("/api/topic/create", "/api/records/produce", "/api/group/reset", "/api/disk/drain"):
        assert fetched(page, console + path, method="POST", mode="no-cors", body=body)[0] in ("opaque", "refused")
        for headers in ({"Content-Type": "application/json"}, {"X-Millrace": "console"}, {"Content-Type": "application/json", "X-Millrace": "console"}):
            assert fetched(page, console + path, method="POST", headers=headers, body=body)[0] == "refused"
    form = "const form = document.createElement('form'); form.method = 'post'; form.enctype = 'text/plain'; form.action = arguments[0]; "
    form += "const field = document.createElement('input'); field.name = arguments[1]; form.append(field); document.body.append(form); form.submit();"
    page.execute_script(form, f"{console}/api/topic/create", body)
    eventually(lambda: "other sites" in page.page_source, "the form is refused")
    page.get(f"http://rebound.example:{site.box.http.port}/topics")
    ours = {"Content-Type": "application/json", "X-Millrace": "console"}
    assert fetched(page, "/api/topic/create", method="POST", headers=ours, body=body)[1] == 421
    assert "forged" not in admin.list_topics(timeout=20).topics
    page.get(f"{console}/topics")
    assert fetched(page, "/api/topic/create", method="POST", headers=ours, body='{"topic": "our-own"}')[1] == 200
    eventually(lambda: "our-own" in admin.list_topics(timeout=20).topics, "each acceptor has seen it come")


def test_nothing_above_disturbs_programs(site: Site, tmp_path: Path) -> None:
    for name in ("localhost", socket.gethostname(), "127.0.0.1"):
        with socket.create_connection(site.box.ingest, 10) as sender:
            body = b'{"message":"by the name %b"}' % name.encode()
            sender.sendall(b"POST /ingest/syslog HTTP/1.1\r\nHost: %b:8081\r\nContent-Length: %d\r\n\r\n%b" % (name.encode(), len(body), body))
            assert sender.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert f"by the name {name}" in messages_of(site.box)


def readiness(site: Site, source: str = "", path: str = "") -> int:
    """Status of `/readyz`, asked from an address of loopback or by a Unix socket; 0: the console hung up."""
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as sock:
        sock.settimeout(5)
        try:
            if source:
                sock.bind((source, 0))
            sock.connect(path or site.box.http)
            sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = sock.recv(4096)
        except (ConnectionError, TimeoutError):
            return 0
    return int(answer.split()[1]) if answer else 0


def test_idle_sockets_shut_neither_probes_nor_an_upgrade_out(site: Site) -> None:
    """260 sockets with an unfinished header: /readyz was 503 for as long as they stayed, and install.sh took an upgrade back."""
    with ExitStack() as idle:
        for _ in range(260):
            sock = idle.enter_context(socket.create_connection(site.box.http, 5))
            with suppress(ConnectionError):
                sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: loc")
        eventually(lambda: counted(site.box, "console", "console.closed", "connection-limit") >= 260 - 32, "an address has 32 connections")
        assert readiness(site, source="127.0.0.2") == 200
        assert readiness(site, path=site.box.layout.console_socket) == 200
        eventually(lambda: counted(site.box, "console", "console.closed", "header-timeout") >= 20, "sockets without a header are closed", 15)
        eventually(lambda: readiness(site) == 200, "the same address is served again while its sockets stay", 10)


def test_the_console_shows_other_networks_no_path_no_process_id_and_no_release(site: Site) -> None:
    """Which file to aim at, which process, and which release's mistakes: every address that reached the console read them."""

    def read(path: str, source: str) -> str:
        with closing(HTTPConnection(*site.box.http, timeout=10, source_address=(source, 0))) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def complete() -> dict[str, Any] | None:
        document: dict[str, Any] = json.loads(read("/api/overview", "127.0.0.1"))
        return document if all(process["pid"] for process in document["processes"]) else None

    document = eventually(complete, "the sample after the start")
    details = [document["version"], *(disk["path"] for disk in document["disks"])]
    assert len(details) == 3
    assert document["version"] in read("/metrics", "127.0.0.1")
    for path in ("/api/overview", "/metrics"):
        answer = read(path, "127.0.0.66")
        assert answer and not [detail for detail in details if detail in answer], path
    stranger = json.loads(read("/api/overview", "127.0.0.66"))
    assert [process["pid"] for process in stranger["processes"]] == [None] * len(stranger["processes"])


def test_a_sender_writes_to_the_topics_of_its_listener_alone(site: Site) -> None:
    """`POST /ingest/TOPIC` went around the routes, into every topic that exists."""
    admin = AdminClient({"bootstrap.servers": site.box.bootstrap})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(60)
    statuses = []
    for topic in ("orders", "millrace-host", "__consumer_offsets", "nothing", "syslog"):
        with closing(HTTPConnection(*site.box.ingest, timeout=10)) as connection:
            connection.request("POST", f"/ingest/{topic}", b'{"message":"anything"}', {"Content-Type": "application/json"})
            statuses.append(connection.getresponse().status)
    assert statuses == [403, 403, 403, 403, 200]
    assert read_documents(site.box, "orders") == []
    assert counted(site.box, "ingest@0", "ingest.refused", "forbidden_topic") == 4
