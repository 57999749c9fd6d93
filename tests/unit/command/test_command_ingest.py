from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from appliance.base.clock import ManualClock
from appliance.base.errors import MillraceError
from appliance.command import ingest_tap
from appliance.command.failures import UsageProblem
from appliance.command.finding import FoundBox
from appliance.command.ingest import build_app, duration_ms
from appliance.command.ingest_tap import Taps, tap_json, tap_line
from appliance.command.ingest_view import status_text
from appliance.ipc.frames import listen_unix
from appliance.senders.accounting import LossReason
from appliance.senders.ingest_figures import IngestFigures, document_of, gather
from appliance.senders.sender_accounts import OTHERS, SenderFigures, senders_file, write_senders
from appliance.shm.counters import Counters
from lab.running_box import listener
from lab.scratch_layout import scratch_layout
from services.ingest.records.ingest_ledger import ListenerLedgers
from services.ingest.records.intake import Oddity, RefusedReason
from tests.unit.base.test_settings import make_box

NOW_MS = 1_800_000_000_000


class Ingests:
    """Counters and senders' files of a box with two ingests, made by this very process."""

    def __init__(self, layout: Any) -> None:
        self.layout = layout
        self.box = box = make_box(
            ingests=2, sender_tables={"listener": [listener("relp", "relp", port=2514, address="::1")]}, settings={"ingest.sender.silent.ms": 60_000}
        )
        self.found = FoundBox(layout, json.loads(box.to_json()))
        self.counters = [Counters.create_or_adopt(layout, f"ingest@{index}", 1, ManualClock().wall_ms()) for index in range(2)]

    def ledgers(self, index: int, listener: str) -> ListenerLedgers:
        return ListenerLedgers(self.counters[index], listener, is_datagram=listener == "syslog-udp")

    def look(self, silent_ms: int | None = None) -> IngestFigures:
        return gather(self.layout, self.box, silent_ms, NOW_MS)


@pytest.fixture
def ingests() -> Iterator[Ingests]:
    with scratch_layout() as layout:
        made = Ingests(layout)
        yield made
        for counters in made.counters:
            counters.close()


def test_a_crash_loses_for_good_only_what_no_sender_sends_again(ingests: Ingests) -> None:
    for name in ("relp", "syslog-tcp"):
        ingests.ledgers(0, name).received.add(1)
        ingests.ledgers(0, name).counted(LossReason.CRASH).add(1)
    lines = status_text(ingests.look(), None, with_senders=False).splitlines()
    assert "relp: 1 lost: crash (what was not acknowledged, senders that wait send again)" in lines and "syslog-tcp: 1 lost: crash" in lines


def test_all_ingests_are_added_up_by_listener_and_the_remarks_say_why(ingests: Ingests) -> None:
    before = ingests.look()
    for index in range(2):
        ledgers = ingests.ledgers(index, "relp")
        ledgers.received.add(1000)
        ledgers.stored.add(900)
        ledgers.duplicate.add(50)
        ledgers.counted(LossReason.TOO_LARGE).add(20)
        ledgers.refused(RefusedReason.BUSY).add(7)
        ledgers.odd[Oddity.TRUNCATED].add(3)
        ledgers.copies.add(4)
    ingests.ledgers(0, "syslog-udp").kernel_drops.add(11)  # type: ignore[union-attr]
    ingests.ledgers(1, "gone").received.add(1)
    figures = ingests.look()
    assert (figures.total.received, figures.total.stored, figures.total.duplicate, figures.total.counted, figures.total.in_flight) == (2001, 1800, 100, 40, 61)
    text = status_text(figures, before, with_senders=False)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["relp"] == ["relp", "relp", "tcp", "[::1]:2514", "2,000", "1,800", "100", "40", "14", "0", "60", "2,000"]
    assert rows["syslog-udp"][-3:] == ["11", "0", "0"] and rows["gone"][1:3] == ["-", "-"]
    assert "relp: 40 lost: too_large, 14 refused: busy, 6 cut short, 8 copies in further topics" in text
    assert "2,001 received = 1,800 stored + 100 duplicate + 40 lost + 61 in flight; 0 connections, 0 senders" in text
    document = document_of(figures, with_senders=False)
    (relp,) = [listener for listener in document["listeners"] if listener["name"] == "relp"]
    assert (relp["received"], relp["in_flight"], relp["counted"], relp["refused"]) == (2000, 60, {"too_large": 40}, {"busy": 14}) and "senders" not in document


def test_refused_connections_are_reported_and_ended_ones_are_not(ingests: Ingests) -> None:
    for index, counters in enumerate(ingests.counters):
        for reason in ("tls-plaintext", "ended", "relp-closed", *["proxy-header"][index:]):
            counters.counter(f'ingest.closed{{reason="{reason}"}}').add(2)
    figures = ingests.look()
    assert document_of(figures, with_senders=False)["closed"] == {"proxy-header": 2, "tls-plaintext": 4}
    assert "connections that were turned away or broken off: 2 proxy-header, 4 tls-plaintext" in status_text(figures, None, with_senders=False).splitlines()


def sender(host: str, received: int, silent_s: int) -> SenderFigures:
    return SenderFigures(host, received, received, 0, 0, 2, {"busy": 2}, ["relp"], NOW_MS - silent_s * 1000)


def test_a_sender_that_any_ingest_has_heard_is_not_silent(ingests: Ingests) -> None:
    write_senders(senders_file(ingests.layout, "ingest@0"), [sender("10.0.0.1", 5, 600), sender("10.0.0.2", 9, 3700), sender(OTHERS, 99, 9999)])
    write_senders(senders_file(ingests.layout, "ingest@1"), [sender("10.0.0.1", 6, 1)])
    figures = ingests.look()
    assert [(known.host, known.received) for known in figures.senders] == [("10.0.0.1", 11), ("10.0.0.2", 9), (OTHERS, 99)]
    assert [known.host for known in figures.silent] == ["10.0.0.2"]
    assert ingests.look(silent_ms=3_700_001).silent == [] and len(ingests.look(silent_ms=1000).silent) == 2
    text = status_text(figures, None, with_senders=True)
    assert text.endswith("silent: 10.0.0.2 (1h 1m)\n") and "2 senders" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["10.0.0.1"] == ["10.0.0.1", "11", "11", "0", "4", "1s", "ago", "relp"]
    assert document_of(figures, with_senders=True)["senders"][0]["silent_ms"] == 1000


@pytest.mark.parametrize(("text", "duration"), [("90s", 90_000), ("10m", 600_000), ("1h", 3_600_000), ("2d", 172_800_000), ("250ms", 250), ("1 h", 3_600_000)])
def test_a_duration_is_a_number_and_a_unit(text: str, duration: int) -> None:
    assert duration_ms(text) == duration


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "1.5h", "10 minutes"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="90s, 10m, 1h"):
        duration_ms(text)


def test_the_removed_command_says_what_to_use() -> None:
    with pytest.raises(UsageProblem, match="use `millrace config check FILE`"):
        CliRunner().invoke(build_app(None), ["check", "/etc/millrace/ingest.table", "--config", "x"], catch_exceptions=False)


def test_a_tapped_line_shows_fields_and_one_that_was_refused_shows_why() -> None:
    origin = {"time_ms": NOW_MS, "listener": "relp", "sender": "10.0.0.7:4000"}
    record = {
        "host": "web",
        "app": "nginx",
        "proc_id": "7",
        "severity": 3,
        "severity_name": "err",
        "message": "down\x1b[2J",
        "structured_data": {"a": {"b": "c"}},
    }
    stored = origin | {"topic": "syslog", "value": json.dumps(record), "size_bytes": 1}
    line = tap_line(stored, is_coloured=False)
    assert line.startswith("relp 10.0.0.7:4000 -> syslog: ") and " web nginx[7] err: down" in line and line.endswith('{"a": {"b": "c"}}') and "\x1b" not in line
    unparsed = json.dumps({"message": "junk", "parsed": False, "parse_error": "no priority"})
    assert tap_line(stored | {"value": unparsed}, is_coloured=False).endswith("junk (not parsed: no priority)")
    assert tap_line(stored | {"value": "raw \x1b[2J"}, is_coloured=False).count("\x1b") == 0
    assert tap_line(origin | {"what": "refused: malformed", "count": 2}, is_coloured=False).endswith("relp 10.0.0.7:4000: refused: malformed (2 records)")
    assert json.loads(tap_json(stored))["value"]["app"] == "nginx" and json.loads(tap_json(stored | {"value": "{"}))["value"] == "{"


@pytest.mark.parametrize("structured_data", [["a"], "a", 7, {"a": "\x9b2J"}])
def test_a_tapped_line_of_any_record_acts_on_no_terminal(structured_data: object) -> None:
    record = {"message": "m", "structured_data": structured_data, "parsed": False, "parse_error": "no \x1b[2J\x9b", "fields": ["b"]}
    document = {"time_ms": NOW_MS, "listener": "relp", "sender": "10.0.0.7:4000", "topic": "syslog", "value": json.dumps(record, ensure_ascii=False)}
    line = tap_line(document, is_coloured=False)
    assert line.endswith("(not parsed: no \\x1b[2J\\x9b)") and line.isprintable()
    assert tap_json(document).isprintable() and json.loads(tap_json(document))["value"] == record
    raw = tap_json(document | {"value": "raw \x9b\u2028é"})
    assert raw.isprintable() and "é" in raw and json.loads(raw)["value"] == "raw \x9b\u2028é"


def test_a_tap_goes_on_with_a_new_ingest_and_ends_with_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_tap, "RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(ingest_tap, "GONE_SECONDS", 0.02)
    runs = True
    with scratch_layout() as layout:
        path = layout.tap_socket(0)
        with listen_unix(path, socket.SOCK_SEQPACKET) as first:
            first.setblocking(True)
            documents = Taps([path], b"{}", lambda: runs).documents()
            with first.accept()[0] as connection:
                assert connection.recv(10) == b"{}"
                connection.send(b'{"of": 1}')
                assert next(documents) == {"of": 1}
        with listen_unix(path, socket.SOCK_SEQPACKET) as second:
            second.setblocking(True)

            def answer() -> None:
                with second.accept()[0] as connection:
                    assert connection.recv(10) == b"{}"
                    connection.send(b'{"of": 2}')

            answering = threading.Thread(target=answer)
            answering.start()
            assert next(documents) == {"of": 2}, "the box runs, and its ingest has been started again"
            answering.join()
        runs = False
        with pytest.raises(MillraceError, match="the box has ended"):
            next(documents)
