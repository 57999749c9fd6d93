"""All pages of the console in a real browser: axe-core's rules, a proxy with a prefix; alarms, transactions, charts of days, settings.

Of one box, whose log-writers take what no coordinator knows.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from selenium import webdriver

from appliance.base.clock import SystemClock
from lab.browser import browser, complaints, leave, missing_browser, show_as
from lab.client_packages import JS, missing_js
from lab.console_page import HOSTILE, READY, ConsolePage, PrefixProxy, prefix_proxy
from lab.raw_coordination import RawCoordination
from lab.raw_transactions import transactional_batch
from lab.running_box import RunningBox, eventually
from services.console.figure_history import KEPT_SERIES, POINTS_MAX, FigureHistory
from services.console.pages import PAGES

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
    settings = {"transaction.partition.verification.enable": False, "alerts.url": sent_alarms[0].replace("://", "://me:pa55word@")}
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
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    producer = Producer({"bootstrap.servers": keeper.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    assert producer.flush(60) == 0
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


AXE = "const done = arguments[0]; axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => done(violations.map((each) => "
AXE += "[each.id, ...each.nodes.map((node) => node.html)])), (error) => done([String(error)]))"
UNREACHABLE = """
return [...document.querySelectorAll('a, button, input, select, summary, textarea, [onclick]')].filter((each) => each.checkVisibility() && each.tabIndex < 0)
"""


@pytest.mark.skipif(missing_js() is not None, reason=str(missing_js()))
def test_all_pages_keep_the_rules_of_axe_core_in_both_themes_and_on_a_phone(page: ConsolePage) -> None:
    assert {path.partition("?")[0] for path in READY} == {each.path for each in PAGES}
    rules = (JS / "node_modules" / "axe-core" / "axe.min.js").read_text()
    page.driver.set_script_timeout(60)
    for path, selector in READY.items():
        show_as(page.driver, 1440)
        page.open(path)
        eventually(lambda selector=selector: page.run("return document.querySelector(arguments[0]) !== null", selector), f"{path} is there", 60)  # type: ignore[misc]
        page.run(rules)
        for width, theme in ((1440, "light"), (390, "dark")):
            show_as(page.driver, width, theme=theme)
            assert page.driver.execute_async_script(AXE) == [], f"{path} with {width} pixels, {theme}"
        assert page.run(UNREACHABLE) == [] and page.is_quiet(), path
        if path == "/topics":
            page.press("Create a topic")
            assert page.driver.execute_async_script(AXE) == [], "a dialog"


def test_all_pages_work_behind_a_proxy_with_a_prefix(driver: webdriver.Chrome, keeper: RunningBox) -> None:
    with prefix_proxy(keeper.http) as (origin, asked):
        leave(driver)
        page = ConsolePage(driver, origin)
        for path, selector in READY.items():
            page.open(path)
            eventually(lambda selector=selector: page.run("return document.querySelector(arguments[0]) !== null", selector), f"{path} is there", 60)  # type: ignore[misc]
            assert page.run("return [...document.querySelectorAll('nav a')].map((each) => each.pathname)") == [PrefixProxy.prefix + each.path for each in PAGES]
            assert page.is_quiet(), path
        page.run("[...document.querySelectorAll('nav a')].find((each) => each.textContent === 'Topics').click()")
        page.wait("#topics", "syslog")
        page.run("[...document.querySelectorAll('#topics a')].find((each) => each.textContent === 'syslog').click()")
        page.wait("#title", "syslog")
        leave(driver)
    assert [path for path in asked if not path.startswith(f"{PrefixProxy.prefix}/") and path != "/favicon.ico"] == []


def test_settings_have_their_sources_and_no_secret(page: ConsolePage, keeper: RunningBox) -> None:
    _, document = keeper.get("/api/settings")
    found = {each["name"]: each for each in document["settings"]}
    assert {name: (found[name]["value"], found[name]["source"]) for name in ("alerts.url", "num.partitions", "transaction.partition.verification.enable")} == {
        "alerts.url": (None, "file"),
        "num.partitions": ("1", "default"),
        "transaction.partition.verification.enable": ("false", "file"),
    }
    assert "pa55word" not in json.dumps([document, keeper.get("/api/alarms")[1]])
    admin = AdminClient({"bootstrap.servers": keeper.bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, str(keeper.box.broker_id))
    resource.add_incremental_config(ConfigEntry("log.retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(60)
    page.open("/settings")
    page.wait("#settings", "not shownfile")
    page.driver.find_element("id", "only").send_keys("retention.ms")
    page.wait("#settings", "7200000 2hdynamic, this box")
    page.run("const chosen = document.getElementById('source'); chosen.value = 'default'; chosen.dispatchEvent(new Event('input'))")
    assert "7200000" not in page.text("#settings") and page.is_quiet()


def test_charts_of_days_are_zoomed_moved_compared_and_read_as_a_table_in_a_chosen_zone(page: ConsolePage, keeper: RunningBox) -> None:
    history, now = FigureHistory(), SystemClock.wall_ms() // 60_000
    for back in range(1, 2_880):
        history.minutes.put(now - back, (1024.0 * (2 if back > 1_400 else 1), *[1.0] * (len(KEPT_SERIES) - 1)))
    for back in range(1, 2_880):
        history.quarters.put(now // 15 - back, (3072.0, *[1.0] * (len(KEPT_SERIES) - 1)))
    console = keeper.stop_process("console")  # it writes no file while this is replaced
    Path(keeper.box.state_directory, "console", "figures").write_bytes(history.take()[0].content)
    os.kill(console, signal.SIGKILL)
    keeper.await_restart("console", console)
    asked = f"/api/history?from={(now - 60) * 60_000}&to={now * 60_000}"
    eventually(lambda: any(keeper.get(asked)[1]["received_bytes_per_s"]), "the console has read them")
    show_as(page.driver, 1440)
    page.open("/")
    choose = "const [id, value] = arguments, field = document.getElementById(id); "
    choose += "field[field.type === 'checkbox' ? 'checked' : 'value'] = value; field.dispatchEvent(new Event('change'))"
    table = "#chart-bytes + details table"
    span = "show({ from: 60000 * (arguments[0] - arguments[1]), to: 60000 * (arguments[0] - arguments[2]) })"
    page.run(span, now, 360, 120)  # the present minute is not in it: the console measures that one itself
    page.wait(table, "received1.0 KiB/s1.0 KiB/s1.0 KiB/s1.0 KiB/s")
    page.run(choose, "yesterday", True)
    page.wait(table, "received, a day before2.0 KiB/s2.0 KiB/s2.0 KiB/s2.0 KiB/s")
    page.run(choose, "log", True)
    assert "received: last 1.0 KiB/s" in page.run("return document.querySelector('#chart-bytes canvas').ariaLabel")
    page.press("Zoom in")
    page.wait("#range-note", " to ")
    begins = page.run("return span.from")
    page.press("← Earlier")
    eventually(lambda: page.run("return span.from") < begins, "it shows an earlier time")
    page.run(span, now, 20 * 1_440, 3 * 1_440)
    page.wait(table, "received3.0 KiB/s3.0 KiB/s3.0 KiB/s3.0 KiB/s")
    assert page.driver.find_element("id", "chart-lag").is_displayed() and not page.driver.find_element("id", "chart-disks").is_displayed()
    page.run(choose, "range", "2592000000")
    eventually(lambda: page.run("return long?.times.length") == POINTS_MAX, "thirty days are shown")
    page.run(choose, "range", "live")
    eventually(page.driver.find_element("id", "chart-disks").is_displayed, "the last minutes are shown again")
    page.run(choose, "time-zone", "Asia/Tehran")
    page.wait("#footer", "times are of Asia/Tehran")
    assert page.run("return [timeText(0), momentOf('1970-01-01T03:30:00')]") == ["1970-01-01 03:30:00.000", 0]
    page.run("localStorage.clear()")
    show_as(page.driver, 390)
    complaints(page.driver)  # of requests while the console did not run
    assert page.is_quiet()
