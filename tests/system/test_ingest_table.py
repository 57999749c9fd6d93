"""A box with a table: its listeners, its routes, its books to the line, through a kill -9 of ingest; and what `millrace ingest` says of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.command.finding import FoundBox
from appliance.command.ingest_figures import gather
from lab.reconcile import Reconciliation, balances_of
from lab.running_box import RunningBox, environment, eventually, run_and_wait, run_arguments, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]

TABLE = """
listen lines syslog tcp :0 topic=lines key=app
listen gelf gelf udp :0
route listener=lines severity<=err -> errors,all
route label.job=x -> named
route listener=gelf field.drop=yes -> gone key=field.user key-required=yes
default -> rest
dead-letter -> dead
"""
TOPICS = ("lines", "errors", "all", "gone", "rest", "dead", "named")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("table")
    (directory / "t").write_text(TABLE)
    box = start_box(directory / "box", settings={"ingest.table.file": str(directory / "t")})
    yield box
    assert box.stop() == 0, box.messages
    assert box.leftovers() == []


@pytest.fixture
def books(box: RunningBox) -> Iterator[Reconciliation]:
    made = Reconciliation(box, *TOPICS)
    yield made
    made.close()


def send_lines(box: RunningBox, count: int, priority: int = 14) -> None:
    with socket.create_connection(box.sender("lines")) as sender:
        sender.sendall(b"".join(b"<%d>1 - host%d app - - - line %d\n" % (priority, number % 7, number) for number in range(count)))


def send_gelf(box: RunningBox, **fields: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps({"version": "1.1", "host": "h", "short_message": "m", **fields}).encode(), box.sender("gelf"))


def ask(box: RunningBox, *arguments: str) -> str:
    command = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()", "ingest", *arguments]
    answer = subprocess.run([*command, "--data", str(box.disks[0])], env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_every_record_goes_where_the_first_route_says_and_is_counted_at_its_listener(box: RunningBox, books: Reconciliation) -> None:
    send_lines(box, 500)
    send_lines(box, 40, priority=11)
    send_gelf(box, _drop="yes", _user="ann")
    send_gelf(box, _drop="yes")
    send_gelf(box, _drop="no")
    with socket.create_connection(box.ingest) as sender:
        body = b'{"message":"a"}\n{"message":"b"}\n'
        sender.sendall(b"POST /ingest/named HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
        assert sender.recv(100).startswith(b"HTTP/1.1 200 ")
    lines, gelf, http = books.hold("lines", 540, copies=40), books.hold("gelf", 3, copies=1), books.hold("http", 2)
    assert (lines.stored, lines.copies, gelf.stored, gelf.counted, gelf.copies, http.stored, http.acknowledged) == (540, 40, 2, 1, 1, 2, 2)
    found = books.hold_topics()
    counts = {topic: len(records) for topic, records in found.items()}
    assert counts == {"lines": 500, "errors": 40, "all": 40, "gone": 1, "rest": 1, "dead": 1, "named": 2}
    assert {record["severity_name"] for record in found["errors"]} == {"err"} and found["gone"][0]["fields"]["user"] == "ann"


def test_the_books_of_every_listener_balance_after_a_kill_of_ingest_and_the_senders_are_known(box: RunningBox, books: Reconciliation) -> None:
    send_lines(box, 1000)
    books.hold("lines", 1000)
    accounted = sum(balance.received for balance in balances_of(box).values())
    eventually(lambda: received_of_senders(box) == accounted, "the sender's account is written")
    pid = box.kill("ingest@0")
    box.await_restart("ingest@0", pid)
    send_lines(box, 1000)
    balance = books.hold("lines", 2000)
    assert balance.stored == 2000 and balance.counted == 0
    assert sum(one.in_flight for one in balances_of(box).values()) == 0
    books.hold_topics()
    eventually(lambda: received_of_senders(box) == accounted + 1000, "its account goes on")


def received_of_senders(box: RunningBox) -> int:
    known = gather(FoundBox(box.layout, box.layout.read_box()), None, 0).senders
    assert {sender.host for sender in known} <= {"127.0.0.1"}
    return sum(sender.received for sender in known)


def test_the_command_shows_the_books_and_who_is_silent_and_what_the_table_means(box: RunningBox, books: Reconciliation) -> None:
    send_gelf(box)
    books.hold("gelf", 1)
    eventually(lambda: received_of_senders(box), "the sender's account is written")
    text = ask(box, "status", "--senders", "--silent", "0s")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["gelf"][1:3] == ["gelf", "udp"] and rows["gelf"][3] == str(box.sender("gelf"))
    received = balances_of(box)["gelf"].received
    assert rows["gelf"][4] == str(received) and "127.0.0.1" in rows and text.splitlines()[-1].startswith("silent: 127.0.0.1 (")
    document = json.loads(ask(box, "status", "--json"))
    assert document["silent"] == [] and {listener["name"]: listener["received"] for listener in document["listeners"]}["gelf"] == received
    with urllib.request.urlopen(f"http://{box.http}/metrics", timeout=10) as answer:
        samples = [sample for family in text_string_to_metric_families(answer.read().decode()) for sample in family.samples]
    assert [sample.value for sample in samples if sample.name == "millrace_ingest_received_lines_total" and sample.labels["listener"] == "gelf"] == [received]
    assert [sample.value for sample in samples if sample.name == "millrace_ingest_senders"] == [1]


def test_a_start_with_a_wrong_table_names_every_line_at_once(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("listen a relp udp :0\nroute severity=loud -> x\nlisten b syslog tls :0 certificate=/no/c.pem private-key=/no/k.pem\n")
    refused = run_and_wait(run_arguments(tmp_path, settings={"ingest.table.file": str(tmp_path / "t")}))
    assert refused.returncode == 2 and refused.stdout == ""
    told = [line.strip() for line in refused.stderr.splitlines() if f"{tmp_path}/t:" in line]
    assert [line.partition(f"{tmp_path}/t:")[2].split(":")[0] for line in told] == ["1", "2", "3", "3"], refused.stderr
    checked = subprocess.run(
        [sys.executable, "-P", "-c", "from appliance.command.main import main; main()", "ingest", "check", str(tmp_path / "t")],
        env={**os.environ, **environment()}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert checked.returncode == 1 and len(checked.stdout.splitlines()) == 4
