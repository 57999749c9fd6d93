"""The pages of alarms and transactions in a real browser, of one box whose log-writers take what no coordinator knows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from selenium import webdriver

from appliance.base.clock import SystemClock
from lab.browser import browser, complaints, leave, missing_browser
from lab.console_page import HOSTILE, ConsolePage
from lab.raw_coordination import RawCoordination
from lab.raw_transactions import transactional_batch
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))]


class AlarmsReceiver(BaseHTTPRequestHandler):
    """Stands where an Alertmanager would; `got` has the names of the alarms."""

    got: list[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.got += [alert["labels"]["alertname"] for alert in body]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def sent_alarms() -> Iterator[tuple[str, list[str]]]:
    """The URL of a server for alarms, and those that it got."""
    got: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Receiver", (AlarmsReceiver,), {"got": got}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api/v2/alerts", got
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox], sent_alarms: tuple[str, list[str]]) -> Iterator[RunningBox]:
    settings = {"transaction.partition.verification.enable": False, "alerts.url": sent_alarms[0]}
    box = start_shared(tmp_path_factory.mktemp("operations") / "box", disks=1, settings=settings)
    yield box
    box.stop()
    assert box.leftovers() == []


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with browser(tmp_path_factory.mktemp("profile"), width=390) as made:
        yield made


@pytest.fixture
def page(driver: webdriver.Chrome, keeper: RunningBox) -> ConsolePage:
    leave(driver)
    return ConsolePage(driver, f"http://{keeper.http}")


def test_open_and_hanging_transactions_are_shown_marked_and_aborted(page: ConsolePage, keeper: RunningBox) -> None:
    topic, name = "in-transactions", f"loader {HOSTILE}"
    admin = AdminClient({"bootstrap.servers": keeper.bootstrap})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(20)
    producer = Producer({"bootstrap.servers": keeper.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    assert producer.flush(20) == 0
    with closing(RawCoordination(keeper.kafka)) as client:
        batch = transactional_batch(987_654, 0, 0, b"hangs", timestamp_ms=SystemClock.wall_ms() - 60_000)
        eventually(lambda: client.produce_batch(topic, 0, batch, "of no coordinator")[0] == 0, "the partition is led")
    page.open("/transactions")
    page.wait("#transactions", "Ongoing")
    assert name in page.text("#transactions") and f"{topic}-1" in page.text("#transactions") and "over its time-out" not in page.text("#transactions")
    page.run("document.getElementById('topic').value = arguments[0]; document.getElementById('minutes').value = '1'", topic)
    page.press("Show")
    page.wait("#producers-note", "2 producers, 1 hanging")
    assert page.text("#producers tbody tr").startswith(f"{topic}-0hangs987654") and f"{topic}-1open" in page.text("#producers")
    page.press(f"Abort producer 987654 in {topic}-0")
    page.press("Abort it", "dialog")
    page.wait("#producers-note", "2 producers, 0 hanging")
    page.run("document.getElementById('topic').value = ''")
    page.press("Show")
    page.wait("#producers", "None hangs")
    page.press(f"Abort {name}")
    page.type(Type="other")
    page.press("Abort it", "dialog")
    page.wait("dialog .problem", "must be the transactional id")
    page.press("Cancel", "dialog")
    page.press(f"Abort {name}")
    page.type(Type=name)
    page.press("Abort it", "dialog")
    eventually(lambda: "Ongoing" not in page.text("#transactions"), "nothing is open")
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
    page.run("document.getElementById('open').click()")
    page.wait("#transactions", "No such transaction")
    assert [each for each in complaints(page.driver) if "status of 400" not in each["message"]] == [] and page.is_quiet()


def test_an_alarm_is_shown_with_its_runbook_sent_and_remembered_over_a_restart(
    page: ConsolePage, keeper: RunningBox, sent_alarms: tuple[str, list[str]]
) -> None:
    page.open("/alarms")
    page.wait("#present", "Nothing is the matter")
    eventually(lambda: keeper.get("/api/overview")[1]["history"]["time_ms"], "the console has looked once: a rise is counted from there")

    def starts() -> int:
        return keeper.counters("log-reader@d0").values["runtime.starts"]

    for number in range(starts(), starts() + 4):
        keeper.kill("log-reader@d0")
        eventually(lambda number=number: starts() > number, "it runs again, and has counted that")  # type: ignore[misc]
    page.wait("#present", "log-reader@d0 was started more than three times in 15 minutes")
    eventually(lambda: "MillraceProcessRestarts" in sent_alarms[1], "the alarm is sent")
    page.wait("#push", "Sent to http://127.0.0.1:")
    link = "return [...document.querySelectorAll('#present a')].find((each) => each.textContent === 'MillraceProcessRestarts')"
    page.run(link).click()
    assert page.run("return document.getElementById('MillraceProcessRestarts').open") and "Act: log-writer" in page.text("#MillraceProcessRestarts")
    began = page.text("#present tbody tr td:nth-child(4)")
    state = Path(keeper.box.state_directory) / "console" / "alarms"
    eventually(lambda: b"MillraceProcessRestarts" in (state.read_bytes() if state.exists() else b""), "it is on the disk")
    keeper.await_restart("console", keeper.kill("console"))
    page.open("/alarms")
    page.wait("#past", "log-reader@d0 was started more than three times in 15 minutes")
    assert began in page.text("#past") and page.text("#problems") == ""
    page.driver.find_element("id", "only").send_keys("no alarm is called so")
    page.wait("#past", "No past alarm has this text")
    complaints(page.driver)  # of requests while the console did not run
    assert page.is_quiet()
