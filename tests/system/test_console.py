"""The console of a real box: its page in a real browser, its scrape, its manners."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from selenium import webdriver

from lab.browser import browser, complaints, leave, missing_browser, show_as
from lab.running_box import RunningBox, eventually
from services.console.dashboard import PANELS

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC = "shown"
GROUP = "readers"
SEARCHED = "searched"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One browser for all tests: a start costs a second and a half of CPU."""
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def page(driver: webdriver.Chrome) -> webdriver.Chrome:
    leave(driver)
    return driver


@pytest.fixture(scope="module")
def traffic(shared_box: RunningBox) -> Iterator[None]:
    """A producer whose pace changes, and a group that has committed and reads no more."""
    stopping = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": shared_box.bootstrap, "linger.ms": 5})
        rounds = 0
        while not stopping.wait(0.05):
            rounds += 1
            for _ in range(5 + rounds % 50):
                producer.produce(TOPIC, b"x" * 500)
            producer.flush(10)

    def has_read(consumer: Consumer) -> bool:
        """A topic that is not there yet comes as an event without an offset."""
        return any(message.error() is None for message in consumer.consume(1, 1))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        consumer = Consumer({"bootstrap.servers": shared_box.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        eventually(lambda: has_read(consumer), "the group reads a record")
        consumer.commit(asynchronous=False)
        consumer.close()
        yield
    finally:
        stopping.set()
        thread.join(20)


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_the_page_shows_values_that_change_while_records_are_produced(shared_box: RunningBox, traffic: None, page: webdriver.Chrome) -> None:
    origin = f"http://{shared_box.http}/"
    show_as(page)

    def text(selector: str) -> str:
        return str(page.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    page.get(origin)
    eventually(lambda: text("#ready") == "ready", "the page says that the box is ready")
    records = "[data-figure='Records in']"
    first = eventually(lambda: (shown := text(records)) not in ("", "0/s", "–/s") and shown, "records come in")
    eventually(lambda: text(records) != first and text(records), "the rate changes")
    assert [name for name in shared_box.box.process_names() if name not in text("#processes")] == []
    assert "2 online" in text("#disks-note") and TOPIC in text("#topics")
    shown_lag = re.compile(rf"{GROUP}empty{TOPIC}\d+([\d,]+)")
    eventually(lambda: (lag := shown_lag.search(text("#groups"))) and lag[1] != "0", "the group's lag is shown, and grows from 0")
    assert page.execute_script("return document.querySelectorAll('figure canvas').length") == 4
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.execute_script(ground)
    for _ in range(2):
        page.find_element("id", "theme").click()
    assert text("#theme") == "Theme: dark" and page.execute_script(ground) != light
    asked = page.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(asked) > 6 and [url for url in asked if not url.startswith(origin)] == []
    assert complaints(page) == []


def test_a_scrape_of_a_real_box_has_a_metric_for_every_counter(shared_box: RunningBox, traffic: None) -> None:

    def scrape() -> dict[str, Metric]:
        text = raw(shared_box, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").partition(b"\r\n\r\n")[2].decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def lag_of(families: dict[str, Metric]) -> float:
        lags = families["millrace_consumer_group_lag_records"].samples if "millrace_consumer_group_lag_records" in families else []
        return sum(sample.value for sample in lags if sample.labels == {"group": GROUP, "topic": TOPIC})

    families = eventually(lambda: found if lag_of(found := scrape()) > 0 else None, "the group is looked at, and is behind")
    unlisted = {sample.labels["counter"] for sample in families["millrace_unlisted"].samples} if "millrace_unlisted" in families else set()
    assert unlisted == set()
    assert all(sample.value == 1 for sample in families["millrace_process_serving"].samples)
    assert {sample.labels["topic"] for sample in families["millrace_partition_log_end_offset"].samples} >= {TOPIC, "syslog", "__consumer_offsets"}
    assert sum(sample.value for sample in families["millrace_log_writer_records"].samples) > 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not there (./install.sh test unpacks it)")
def test_every_query_of_the_dashboard_finds_something_in_what_a_box_exposes(shared_box: RunningBox, traffic: None, tmp_path: Path) -> None:
    """promtool plays two scrapes, five minutes apart for Prometheus, and asks each query whether it has a result."""
    send_lines(shared_box, 3)

    def scrape() -> dict[str, str]:
        text = raw(shared_box, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").partition(b"\r\n\r\n")[2].decode()
        return {series: value for series, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))}

    first = eventually(lambda: "millrace_consumer_group_lag_records" in str(found := scrape()) and found, "the group is looked at")
    last = scrape()
    given = []
    for series, value in first.items():
        name, _, labels = series.partition("{")
        given.append({"series": f'{name}{{instance="box:8080",job="millrace",{labels or "}"}', "values": " ".join([value] * 5 + [last.get(series, value)] * 5)})
    queries = [query for panel in PANELS for query, _ in panel.queries]
    rules = []
    for number, query in enumerate(queries):
        asked = query.replace("$__rate_interval", "5m").replace("$instance", ".+").removesuffix(" > 0")
        rules.append({"alert": f"Query{number}", "expr": f"count({asked}) > 0"})
    (tmp_path / "rules.yml").write_text(orjson.dumps({"groups": [{"name": "dashboard", "rules": rules}]}).decode())
    tests = [{"eval_time": "9m", "alertname": rule["alert"], "exp_alerts": [{"exp_labels": {}}]} for rule in rules]
    test = {"rule_files": ["rules.yml"], "tests": [{"interval": "1m", "input_series": given, "alert_rule_test": tests}]}
    (tmp_path / "test.yml").write_text(orjson.dumps(test).decode())
    checked = subprocess.run(["promtool", "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, f"{queries}\n{checked.stdout[-3000:]}{checked.stderr[-3000:]}"


def test_whatever_is_asked_is_answered_cleanly(shared_box: RunningBox) -> None:
    def status(request: bytes) -> int:
        answer = raw(shared_box, request)
        return int(answer.split()[1]) if answer else 0

    assert status(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") == 200
    assert status(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") == 404
    assert status(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") == 405
    assert status(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n") == 413
    assert status(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000) == 400, "the head is not whole, and too long already"
    assert status(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\r\n\r\n") == 400
    assert shared_box.get("/healthz") == (200, {"status": "alive"})
    assert "Traceback" not in shared_box.messages


def test_the_console_holds_nothing_of_a_log_disk(shared_box: RunningBox) -> None:
    pid = shared_box.pid("console")
    held = [os.readlink(f"/proc/{pid}/fd/{descriptor}") for descriptor in os.listdir(f"/proc/{pid}/fd")] + Path(f"/proc/{pid}/maps").read_text().splitlines()
    assert [name for name in held for disk in shared_box.disks if str(disk) in name] == []


def raw(box: RunningBox, request: bytes) -> bytes:
    """What comes back until the console hangs up."""
    received = b""
    with socket.create_connection(box.http, 10) as connection:
        connection.sendall(request)
        try:
            while data := connection.recv(1 << 16):
                received += data
        except ConnectionResetError:
            pass  # it did not read all that we sent
    return received


HOSTILE = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script> \x1b[31m \u202egnp.exe'
ODD = (b'{"severity":{"toString":0},"message":"odd severity"}', b'{"message":"nested","host":' + b"[" * 20_000 + b"]" * 20_000 + b"}")
"""What a page that converts values to text carelessly fails at."""


@pytest.fixture(scope="module")
def searched(shared_box: RunningBox) -> str:
    """A topic of ninety records of three hosts over ten minutes, one of them hostile; and four more: no JSON, not UTF-8, and `ODD`."""
    producer = Producer({"bootstrap.servers": shared_box.bootstrap})
    now_ms = time.time_ns() // 1_000_000
    for number in range(90):
        message = HOSTILE if number == 50 else f"request {number} timed out" if number % 9 == 0 else f"request {number} done"
        record = {"host": f"web{number % 3}", "app": "nginx", "severity": "err" if number % 9 == 0 else "info", "message": message, "fields": {"took": number}}
        producer.produce(SEARCHED, orjson.dumps(record), timestamp=now_ms - 600_000 + number * 6_000)
    producer.produce(SEARCHED, b"no object", timestamp=now_ms - 2_000)
    producer.produce(SEARCHED, b"\xff\xfe", timestamp=now_ms - 1_000)
    for value in ODD:
        producer.produce(SEARCHED, value, timestamp=now_ms - 1_000)
    assert producer.flush(60) == 0
    return SEARCHED


class SearchPage:
    """The search page in a browser."""

    def __init__(self, page: webdriver.Chrome, origin: str) -> None:
        self.page = page
        page.get(origin + "logs")
        eventually(
            lambda: self.text("#topic-names") is not None and self.run("return document.querySelectorAll('#topic-names option').length") > 0, "topics", 20
        )

    def run(self, script: str, *arguments: object) -> Any:
        return self.page.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def rows(self) -> int:
        return int(self.run("return document.querySelectorAll('#records tr.record').length"))

    def search(self, query: str, topic: str = "") -> str:
        """Type a query and press Enter; return what the page says when the answer is there."""
        if topic:
            self.run("document.getElementById('topic').value = arguments[0]", topic)
        field = self.page.find_element("id", "query")
        field.clear()
        field.send_keys(query + "\n")
        return self.answered()

    def answered(self) -> str:
        done = "const text = document.getElementById('state').textContent; return text.startsWith('Searching') ? '' : text"
        return str(eventually(lambda: self.run(done), "the search ends"))


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_the_search_page_finds_records_narrows_and_shows_hostile_ones_as_text(shared_box: RunningBox, searched: str, page: webdriver.Chrome) -> None:
    show_as(page)
    search = SearchPage(page, f"http://{shared_box.http}/")
    assert search.search("", searched).startswith("94 records")
    assert (
        search.rows() == 94
        and "odd severity" in search.text("#records")
        and "(not UTF-8)" in search.text("#records")
        and "no object" in search.text("#records")
    )
    assert "<script>window.harmed=1</script> \\u001b[31m \\u202egnp.exe" in search.text("#records")
    assert search.run("return [window.harmed ?? null, document.querySelectorAll('#records img, #records script').length]") == [None, 0]

    search.run("document.getElementById('context').value = '2'")
    assert search.search('"request 45"').startswith("1 record ·") and "context=2" in page.current_url
    around = search.run("return [...document.querySelectorAll('#records tr.record')].map((row) => row.classList.contains('context'))")
    assert around == [True, True, False, True, True], "the newest is on top"
    search.run("document.getElementById('context').value = '0'")
    assert search.search('"timed out" host=web0').startswith("10 records")
    assert search.text("#records mark") == "timed out"
    eventually(lambda: "10 matches" in search.text("#times-note"), "the times of the matches are counted")
    assert search.run("return document.querySelectorAll('#times i.bad').length") > 0
    assert "query=%22timed+out%22+host%3Dweb0" in page.current_url

    page.find_element("css selector", "#records tr.record").click()
    assert "fields.took" in search.text("#records .whole") and '"took":81' in search.text("#records .whole pre")
    button = "return [...document.querySelectorAll('.whole dt')].find((name) => name.textContent === 'fields.took').nextElementSibling.children[1]"
    search.run(button).click()
    assert search.answered().startswith("9 records")
    assert search.run("return document.getElementById('query').value") == '"timed out" host=web0 fields.took!=81'

    eventually(
        lambda: search.run("return document.querySelector(\"#times i.bad[style*='min-height']\")?.clientHeight ?? 0") > 0, "the times are shown again", 20
    )
    bar = page.find_element("css selector", "#times > div:has(i.bad[style*='min-height'])")
    count = int(str(bar.get_attribute("title")).partition(": ")[2].split()[0])
    bar.click()
    assert search.answered().split()[0] == str(count) and count < 9
    assert search.run("return document.getElementById('range').value") == "fixed"

    page.refresh()
    eventually(lambda: search.run("return document.querySelectorAll('#topic-names option').length") > 0, "topics")
    assert search.text("#state").startswith("The address has filled the form in")
    asked = search.run("return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).pathname)")
    assert "/api/topics" in asked and not [path for path in asked if path.startswith("/api/search")], "a link alone starts no search"
    page.find_element("id", "query").send_keys("\n")
    assert search.answered().split()[0] == str(count) == str(search.rows()), "the address has the search"
    for days in ("1d", "7d"):
        search.run("document.getElementById('range').value = arguments[0]; document.getElementById('times-note').textContent = ''", days)
        assert search.search('"timed out" host=web0').startswith("10 records")
        eventually(lambda: "10 matches" in search.text("#times-note"), "they are counted by the hour")
    search.search("host=(")
    eventually(lambda: "^" in search.text("#problem"), "the mistake is shown at its place")
    # The browser notes the mistake, and each 429 after which the page asks again: a search ends a moment after its connection.
    assert [each for each in complaints(page) if not re.search(r"status of (400|429)", each["message"])] == []


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_the_search_page_follows_and_pauses(shared_box: RunningBox, searched: str, page: webdriver.Chrome) -> None:
    show_as(page, width=390, theme="dark")
    search = SearchPage(page, f"http://{shared_box.http}/")
    search.run("document.getElementById('topic').value = arguments[0]", searched)
    page.find_element("id", "follow").click()
    producer = Producer({"bootstrap.servers": shared_box.bootstrap})

    def sent(text: str) -> bool:
        producer.produce(searched, text.encode())
        producer.flush(5)
        return text in search.text("#records tr.record")

    for value in ODD:
        producer.produce(searched, value)
    eventually(lambda: sent("the first"), "a later record is on top")
    page.find_element("id", "follow").click()
    shown = search.rows()
    eventually(lambda: sent("another") or "paused" in search.text("#state"), "it is paused")
    assert search.rows() == shown and "another" not in search.text("#records")
    page.find_element("id", "follow").click()
    eventually(lambda: "another" in search.text("#records"), "what waited is shown")
    assert search.run("return document.documentElement.scrollWidth <= innerWidth")
    assert complaints(page) == []


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_the_page_of_senders_shows_them_and_why_lines_are_refused(shared_box: RunningBox, page: webdriver.Chrome) -> None:
    show_as(page, width=390)
    page.get(f"http://{shared_box.http}/senders")

    def text(selector: str) -> str:
        return str(page.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    eventually(lambda: "syslog-tcp" in text("#listeners"), "the listeners are shown")
    send_lines(shared_box, 3)
    with socket.create_connection((shared_box.ingest.host, shared_box.ingest.port)) as stranger:
        stranger.sendall(b"POST /ingest/syslog HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1\r\n\r\nx")
        assert b" 421 " in stranger.recv(100)
    eventually(lambda: "127.0.0.1" in text("#senders") and "unknown host" in text("#senders"), "the sender and the reason are shown")
    row = text("#senders tbody tr")
    assert "heard" in row and "syslog-tcp" in row and "unknown host" in text("#listeners")
    field = page.find_element("id", "only")
    field.send_keys("10.9.")
    assert "No sender is called so" in text("#senders")
    field.clear()
    field.send_keys("REFUSED")
    assert "127.0.0.1" in text("#senders")
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert complaints(page) == []


def send_lines(box: RunningBox, count: int) -> None:
    with socket.create_connection((box.syslog.host, box.syslog.port)) as sender:
        sender.sendall(b"<11>1 - web7 app - - - hello\n" * count)
