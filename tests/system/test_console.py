"""The console of a real box: its page in a real browser, its scrape, its manners."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from lab.browser import browser, complaints, missing_browser
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC = "shown"
GROUP = "readers"


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
        eventually(lambda: has_read(consumer), "the group reads a record", 30)
        consumer.commit(asynchronous=False)
        consumer.close()
        yield
    finally:
        stopping.set()
        thread.join(20)


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_the_page_shows_values_that_change_while_records_are_produced(shared_box: RunningBox, traffic: None, tmp_path: Path) -> None:
    origin = f"http://{shared_box.http}/"
    with browser(tmp_path / "profile") as page:

        def text(selector: str) -> str:
            return str(page.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

        page.get(origin)
        eventually(lambda: text("#ready") == "ready", "the page says that the box is ready", 20)
        records = "[data-figure='Records in']"
        first = eventually(lambda: (shown := text(records)) not in ("", "0/s", "–/s") and shown, "records come in", 20)
        eventually(lambda: text(records) != first and text(records), "the rate changes", 20)
        assert [name for name in shared_box.box.process_names() if name not in text("#processes")] == []
        assert "2 online" in text("#disks-note") and TOPIC in text("#topics")
        shown_lag = re.compile(rf"{GROUP}empty{TOPIC}\d+([\d,]+)")
        eventually(lambda: (lag := shown_lag.search(text("#groups"))) and lag[1] != "0", "the group's lag is shown, and grows from 0", 20)
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
    text = raw(shared_box, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").partition(b"\r\n\r\n")[2].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    unlisted = {sample.labels["counter"] for sample in families["millrace_unlisted"].samples} if "millrace_unlisted" in families else set()
    assert unlisted == set()
    assert all(sample.value == 1 for sample in families["millrace_process_serving"].samples)
    assert {sample.labels["topic"] for sample in families["millrace_partition_log_end_offset"].samples} >= {TOPIC, "syslog", "__consumer_offsets"}
    lag = next(sample for sample in families["millrace_consumer_group_lag_records"].samples if sample.labels == {"group": GROUP, "topic": TOPIC})
    assert lag.value > 0
    assert sum(sample.value for sample in families["millrace_log_writer_records"].samples) > 0


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
