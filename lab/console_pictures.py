"""Pictures of each page of the console, light, dark and on a phone: `python -m lab.console_pictures [DIRECTORY]` (default docs/pictures).

They show a real box with two hours of made-up lines of six hosts, in Debian's chromium.
"""

from __future__ import annotations

import base64
import random
import re
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import orjson
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from selenium import webdriver

from lab.browser import browser, show_as
from lab.console_page import READY, ConsolePage
from lab.running_box import RunningBox, eventually, start_box

TARGET = Path(__file__).parents[1] / "docs" / "pictures"
FORMS = (("light", 1280, 800, "light"), ("dark", 1280, 800, "dark"), ("phone", 390, 844, "light"))
"""Name, width, height, colour scheme."""
SHOWN = {
    **{path: ready for path, ready in READY.items() if path not in ("/logs", "/messages")},
    "/logs#topic=syslog&query=severity%3C%3Derr&range=6h&limit=200": "#topic-names option",
    "/messages?topic=orders": "#topic-names option",
}
APPS = ("nginx", "postgres", "sshd", "cron")
SEVERITIES = ("info", "info", "info", "info", "notice", "warning", "err")
LINES, PACE_SECONDS = 6_000, 60


def fill(box: RunningBox) -> None:
    """Two hours of lines, orders, and a group that is behind."""
    admin = AdminClient({"bootstrap.servers": box.bootstrap})
    for made in admin.create_topics([NewTopic("orders", 6), NewTopic("payments", 3)]).values():
        made.result(20)
    producer = Producer({"bootstrap.servers": box.bootstrap, "client.id": "shop", "compression.type": "lz4"})
    chance, now_ms = random.Random(1), time.time_ns() // 1_000_000
    for number in range(LINES):
        severity = chance.choice(SEVERITIES)
        message = "upstream timed out while reading from 10.0.3.7" if severity == "err" else f"request {number} answered in {chance.randrange(400)} ms"
        line = {"host": f"web{chance.randrange(1, 7)}", "app": chance.choice(APPS), "severity": severity, "message": message}
        producer.produce("syslog", orjson.dumps(line), timestamp=now_ms - (LINES - number) * 7_200_000 // LINES)
        order = {
            "order": 10_000 + number,
            "customer": f"c{chance.randrange(900)}",
            "items": chance.randrange(1, 9),
            "total": f"{chance.randrange(500, 90_000) / 100:.2f}",
        }
        producer.produce("orders", orjson.dumps(order), key=str(order["customer"]))
        producer.poll(0)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    eventually(lambda: sum(message.error() is None for message in consumer.consume(2_000, 2)), "the group reads")
    consumer.commit(asynchronous=False)
    consumer.close()


def keep_busy(box: RunningBox, stopping: threading.Event) -> None:
    """Senders by syslog and a producer whose pace changes, so that charts show something."""
    producer = Producer({"bootstrap.servers": box.bootstrap, "client.id": "shop"})
    senders = [socket.create_connection((box.syslog.host, box.syslog.port), 10, source_address=(f"127.0.0.{number}", 0)) for number in range(1, 5)]
    chance = random.Random(2)
    while not stopping.wait(0.2):
        for number, sender in enumerate(senders):
            sender.sendall(b"<134>1 - web%d nginx - - - request answered\n" % number * chance.randrange(5, 40))
        for _ in range(chance.randrange(20, 400)):
            producer.produce("payments", chance.randbytes(200))
        producer.flush(10)
    for sender in senders:
        sender.close()


def take(driver: webdriver.Chrome, path: Path) -> None:
    picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 70})
    path.write_bytes(base64.b64decode(picture["data"]))


def main(target: Path = TARGET) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        box = start_box(Path(scratch) / "box", settings={"auto.create.topics.enable": True})
        fill(box)
        stopping = threading.Event()
        traffic = threading.Thread(target=keep_busy, args=(box, stopping))
        traffic.start()
        time.sleep(PACE_SECONDS)
        with browser(Path(scratch) / "profile") as driver:
            page = ConsolePage(driver, f"http://{box.http}")
            for address, selector in SHOWN.items():
                name = re.split("[?#]", address.strip("/"))[0] or "overview"
                name += "-of-one" if address.startswith("/topics?") else ""
                for form, width, height, theme in FORMS:
                    show_as(driver, width, height, theme)
                    page.open(address)
                    eventually(lambda selector=selector: page.run("return document.querySelector(arguments[0]) !== null", selector), address, 60)  # type: ignore[misc]
                    if name == "logs":
                        driver.find_element("id", "query").send_keys("\n")
                    time.sleep(3)  # charts are drawn with their second figures
                    take(driver, target / f"{name}-{form}.webp")
                    print(name, form, flush=True)
        stopping.set()
        traffic.join()
        box.stop()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
