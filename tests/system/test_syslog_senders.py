"""Real senders: logger, loggen, rsyslog and syslog-ng, over UDP and TCP, in both framings; and the
ledger, also when ingest is killed meanwhile.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from appliance.senders.accounting import Ledger, read_ledger
from lab.real_zookeeper import free_port
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

LOGGEN_COUNT = re.compile(r"count=(\d+)")


def _ledger(box: RunningBox) -> Ledger:
    return read_ledger(box.counters("ingest@0").values)


def _await_books(box: RunningBox, received: int) -> Ledger:
    """The ledger once `received` lines are in it and none is in flight."""
    eventually(lambda: _ledger(box).received >= received and _ledger(box).in_flight == 0, f"{received} lines are settled: {_ledger(box)}")
    return _ledger(box)


class Stored:
    """The records of topic syslog that came after this was made, read with librdkafka."""

    def __init__(self, box: RunningBox, from_beginning: bool = False) -> None:
        options = {"bootstrap.servers": box.bootstrap, "group.id": "test", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
        self._consumer = Consumer(options)
        partitions = self._consumer.list_topics("syslog", 10).topics["syslog"].partitions
        starts = [TopicPartition("syslog", partition) for partition in partitions]
        for start in starts:
            start.offset = 0 if from_beginning else self._consumer.get_watermark_offsets(start, 10)[1]
        self._consumer.assign(starts)
        self._partitions = starts
        self.values: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Everything so far."""
        ends = sum(self._consumer.get_watermark_offsets(partition, 10)[1] - partition.offset for partition in self._partitions)
        deadline = time.monotonic() + 60
        while len(self.values) < ends and time.monotonic() < deadline:
            for message in self._consumer.consume(1000, 0.2):
                value = message.value()
                assert message.error() is None and value is not None, message.error()
                self.values.append(json.loads(value))
        return self.values

    def with_word(self, word: str) -> list[dict[str, Any]]:
        return [value for value in self.read() if word in (value["message"] or "")]

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def stored(shared_box: RunningBox) -> Iterator[Stored]:
    stored = Stored(shared_box)
    yield stored
    stored.close()


def _need(command: str) -> str:
    path = shutil.which(command)
    assert path, f"{command} is not there; ./install.sh test unpacks it under .venv/peers"
    return path


@contextmanager
def _daemon(arguments: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(directory / "daemon.log", "wb") as log:
        process = subprocess.Popen(arguments, cwd=directory, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def _loggen(box: RunningBox, *options: str, seconds: int = 1, rate: int = 5000) -> int:
    """Lines sent."""
    command = [_need("loggen"), "-i", "-s", "300", "-I", str(seconds), "-r", str(rate), *options, box.syslog.host, str(box.syslog.port)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(LOGGEN_COUNT.findall(finished.stdout + finished.stderr)[-1])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["-d", "--rfc5424"], id="udp-5424"),
        pytest.param(["-d", "--rfc3164"], id="udp-3164"),
        pytest.param(["-T", "--rfc5424"], id="tcp-lines-5424"),
        pytest.param(["-T", "--octet-count", "--rfc5424=notq"], id="tcp-octets-5424"),
        pytest.param(["-T", "--rfc3164"], id="tcp-lines-3164"),
        pytest.param(["-d", "--rfc5424", "--sd-id", "disk@32473", "--sd-param", 'name="d3 \\"x\\""', "--msgid", "TEMP"], id="udp-structured"),
    ],
)
def test_logger_in_its_forms(shared_box: RunningBox, stored: Stored, options: list[str], request: pytest.FixtureRequest) -> None:
    word = f"warm-{request.node.callspec.id}"
    host, port = shared_box.syslog
    command = [_need("logger"), "-n", host, "-P", str(port), "-t", "smartd", "-p", "daemon.warning", *options, f"disk d3 is {word}"]
    subprocess.run(command, check=True, timeout=60)
    value = eventually(lambda: stored.with_word(word), "the line is stored")[0]
    assert (value["app"], value["severity_name"], value["facility_name"]) == ("smartd", "warning", "daemon")
    assert value["message"] == f"disk d3 is {word}"
    if "--msgid" in options:
        assert value["msg_id"] == "TEMP"
        assert value["structured_data"]["disk@32473"] == {"name": 'd3 "x"'}


@pytest.mark.parametrize("options", [["-S"], ["-S", "--syslog-proto"], ["-S", "--active-connections=4"]], ids=["lines", "octets", "four-connections"])
def test_loggen_over_tcp_and_every_line_is_stored(shared_box: RunningBox, options: list[str]) -> None:
    before = _ledger(shared_box)
    sent = _loggen(shared_box, *options)
    after = _await_books(shared_box, before.received + sent)
    assert after.stored - before.stored == after.received - before.received == sent


def test_loggen_over_udp_and_every_line_is_stored_or_counted(shared_box: RunningBox) -> None:
    before, drops = _ledger(shared_box), shared_box.counters("ingest@0").values.get("ingest.kernel_drops", 0)
    sent = _loggen(shared_box, "-D")

    def settled() -> bool:
        dropped = shared_box.counters("ingest@0").values.get("ingest.kernel_drops", 0) - drops
        ledger = _ledger(shared_box)
        return ledger.in_flight == 0 and ledger.received - before.received + dropped == sent

    eventually(settled, "sent = received + dropped by the kernel, received = stored + counted")


def test_rsyslog_in_both_framings_and_by_udp_and_through_its_restart(shared_box: RunningBox, stored: Stored, tmp_path: Path) -> None:
    entrance, (host, port) = free_port(), shared_box.syslog
    (tmp_path / "rsyslog.conf").write_text(f"""
global(workDirectory="{tmp_path}")
module(load="imudp")
input(type="imudp" address="127.0.0.1" port="{entrance}" ruleset="out")
ruleset(name="out") {{
  action(type="omfwd" target="{host}" port="{port}" protocol="tcp" TCP_Framing="octet-counted" template="RSYSLOG_SyslogProtocol23Format")
  action(type="omfwd" target="{host}" port="{port}" protocol="tcp" TCP_Framing="traditional" template="RSYSLOG_TraditionalForwardFormat")
  action(type="omfwd" target="{host}" port="{port}" protocol="udp" template="RSYSLOG_ForwardFormat")
}}
""")
    command = [_need("rsyslogd"), "-n", "-f", str(tmp_path / "rsyslog.conf"), "-i", str(tmp_path / "pid")]
    for life in ("first", "second"):
        with _daemon(command, tmp_path):
            word = f"rsyslog-{life}"
            values = _send_until_stored(stored, entrance, word, 3)
    assert {value["host"] for value in values} == {"sender"}
    assert {value["app"] for value in values} == {"prog"}
    assert {value["message"].strip() for value in values} == {"rsyslog-second [x]"}


def test_syslog_ng_with_both_of_its_drivers(shared_box: RunningBox, stored: Stored, tmp_path: Path) -> None:
    entrance, (host, port) = free_port(), shared_box.syslog
    (tmp_path / "syslog-ng.conf").write_text(f"""@version: 3.38
options {{ keep-hostname(yes); use-dns(no); stats-freq(0); }};
source s_in {{ network(ip("127.0.0.1") port({entrance}) transport("udp")); }};
destination d_5424 {{ syslog("{host}" persist-name("d5424") port({port}) transport("tcp")); }};
destination d_3164 {{ network("{host}" persist-name("d3164") port({port}) transport("tcp")); }};
log {{ source(s_in); destination(d_5424); destination(d_3164); }};
""")
    names = {option: str(tmp_path / name) for option, name in (("-f", "syslog-ng.conf"), ("-R", "persist"), ("-c", "control"), ("-p", "pid"))}
    with _daemon([_need("syslog-ng"), "-F", *[part for pair in names.items() for part in pair]], tmp_path):
        values = _send_until_stored(stored, entrance, "syslog-ng", 2)
    assert {(value["host"], value["app"], value["message"]) for value in values} == {("sender", "prog", "syslog-ng [x]")}


def _send_until_stored(stored: Stored, entrance: int, word: str, copies: int) -> list[dict[str, Any]]:
    """A daemon takes a moment until it listens: send a line to its entrance until `copies` of it came out at the other end."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(100):
            sender.sendto(b"<29>Jan  5 12:00:00 sender prog[7]: %s [x]" % word.encode(), ("127.0.0.1", entrance))
            time.sleep(0.1)
            if len(values := stored.with_word(word)) >= copies:
                return values
    raise AssertionError(f"{word}: {len(values)} of {copies} copies came")


def _stored_more_than(box: RunningBox, lines: int) -> bool:
    return _ledger(box).stored > lines


def test_a_flood_from_loggen_is_accounted_for_while_ingest_is_killed(box: RunningBox) -> None:
    """Senders cannot know what was lost with a connection; the box can, and its ledger has it:
    received = stored + counted.
    """
    options = ["-i", "-S", "-s", "300", "-I", "20", "-r", "60000", "--active-connections=2"]
    command = [_need("loggen"), *options, box.syslog.host, str(box.syslog.port)]
    for _ in range(3):
        before = _ledger(box).stored
        with _daemon(command, box.directory):
            eventually(partial(_stored_more_than, box, before + 10_000), "the flood runs")
            box.await_restart("ingest@0", box.kill("ingest@0"))
    eventually(lambda: _ledger(box).in_flight == 0, f"the ledger balances: {_ledger(box)}")
    ledger = _ledger(box)
    reader = Stored(box, from_beginning=True)
    stored = len(reader.read())
    reader.close()
    assert ledger.stored <= stored <= ledger.stored + ledger.counted + ledger.resent, f"{stored} records are in the log, the ledger has {ledger}"
    assert ledger.received == ledger.stored + ledger.counted
    print(f"{stored} records in the log, {ledger}")
