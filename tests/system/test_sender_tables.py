"""A box with a table: its listeners, its routes, its counts to the line, through a kill -9 of
ingest; and what `millrace ingest` says of it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.base.settings import load_box
from appliance.senders.ingest_figures import gather
from lab.reconcile import Reconciliation, balances_of
from lab.running_box import RunningBox, environment, eventually, listener, run_and_wait, run_arguments, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]

SENDERS = {
    "listener": [listener("lines", "syslog", topic="lines", key="app"), listener("gelf", "gelf", "udp")],
    "route": [
        {"listener": "lines", "min-severity": "err", "topic": ["errors", "all"]},
        {"label": {"job": "x"}, "topic": "named"},
        {"listener": "gelf", "field": {"drop": "yes"}, "topic": "gone", "key": "field.user", "key-required": True},
    ],
    "default": {"topic": "rest"},
    "dead-letter": {"topic": "dead"},
}
TOPICS = ("lines", "errors", "all", "gone", "rest", "dead", "named")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    directory = tmp_path_factory.mktemp("table")
    box = start_shared(directory / "box", senders=SENDERS)
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
    answer = subprocess.run([*command, "--data", str(box.disks[0])], env=environment(), capture_output=True, text=True, timeout=60, check=False)
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
        sender.sendall(b"POST /ingest/named HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
        assert sender.recv(100).startswith(b"HTTP/1.1 200 ")
    lines, gelf, http = books.hold("lines", 540, copies=40), books.hold("gelf", 3, copies=1), books.hold("http", 2)
    assert (lines.stored, lines.copies, gelf.stored, gelf.counted, gelf.copies, http.stored, http.acknowledged) == (540, 40, 2, 1, 1, 2, 2)
    found = books.hold_topics()
    counts = {topic: len(records) for topic, records in found.items()}
    assert counts == {"lines": 500, "errors": 40, "all": 40, "gone": 1, "rest": 1, "dead": 1, "named": 2}
    assert {record["severity_name"] for record in found["errors"]} == {"err"} and found["gone"][0]["fields"]["user"] == "ann"


def test_the_ledger_of_every_listener_balances_after_a_kill_of_ingest_and_the_senders_are_known(box: RunningBox, books: Reconciliation) -> None:
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
    known = gather(box.layout, load_box(box.layout), None, 0).senders
    assert {sender.host for sender in known} <= {"127.0.0.1"}
    return sum(sender.received for sender in known)


def test_the_command_shows_the_ledger_silent_senders_and_the_table(box: RunningBox, books: Reconciliation) -> None:
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


def test_a_start_with_wrong_tables_names_every_mistake_at_once(tmp_path: Path) -> None:
    tls = {"certificate": "/no/c.pem", "private_key": "/no/k.pem"}
    senders = {"listener": [listener("a", "relp", "udp"), listener("b", "syslog", "tls", **tls)], "route": [{"severity": "loud", "topic": "x"}]}
    refused = run_and_wait(run_arguments(tmp_path, senders=senders))
    assert refused.returncode == 2 and refused.stdout == ""
    file = tmp_path / "millrace.toml"
    told = [line.partition(f"{file}: ")[2].partition(": ")[0] for line in refused.stderr.splitlines() if f"{file}: " in line]
    assert told == ["[[ingest.listener]] 1", "[[ingest.route]] 1", "[[ingest.listener]] 2", "[[ingest.listener]] 2"], refused.stderr
    checked = run_command(tmp_path, "config", "check", str(file))
    assert checked.returncode == 1 and [line.split(":")[1] for line in checked.stdout.splitlines()[::2]] == lines_of_mistakes(file), checked.stdout


def lines_of_mistakes(file: Path) -> list[str]:
    wrong = ('transport = "udp"', "certificate =", "private-key =", 'severity = "loud"')
    return [str(number) for number, line in enumerate(file.read_text().splitlines(), 1) if line.startswith(wrong)]


def test_a_start_moves_the_table_of_release_0_1_into_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "ingest.table").write_text("listen old syslog tcp :0 topic=old\n")
    (tmp_path / "ingest.table").chmod(0o640)
    box = start_box(tmp_path, by_command=True, disks=1, settings={"ingest.table.file": str(tmp_path / "ingest.table")})
    try:
        with socket.create_connection(box.sender("old")) as sender:
            sender.sendall(b"<13>1 - host app - - - by the old table\n")
        eventually(lambda: balances_of(box)["old"].stored == 1, "the line is stored")
        assert f"moved the table of senders {tmp_path}/ingest.table into {tmp_path}/millrace.toml" in box.messages
        assert not (tmp_path / "ingest.table").exists() and (tmp_path / "ingest.table.converted").exists()
        settings = tmp_path / "millrace.toml"
        assert 'name = "old"' in settings.read_text() and "ingest.table.file" not in settings.read_text() and settings.stat().st_mode & 0o777 == 0o640
    finally:
        assert box.stop() == 0


def run_command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()", *arguments]
    return subprocess.run(command, cwd=directory, env={**os.environ, **environment()}, capture_output=True, text=True, timeout=60, check=False)
