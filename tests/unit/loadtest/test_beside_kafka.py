"""Ours beside Kafka: whose turn it is, which way a ratio points, and what the page says of rows that are ahead, behind and not measured."""

from __future__ import annotations

import socket
import struct
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtest.benchmark import BenchmarkFailed
from loadtest.beside_kafka.behind import REASONS, UNKNOWN, Reason, reason_for
from loadtest.beside_kafka.command import OTHERS_MAX, quiet_turn
from loadtest.beside_kafka.contenders import OURS, Appliance, Contender
from loadtest.beside_kafka.page import lines_of, page, table
from loadtest.beside_kafka.parts import PARTS, rows_of
from loadtest.beside_kafka.probe import await_produces
from loadtest.beside_kafka.ratio_chart import draw_ratios, place_of
from loadtest.beside_kafka.rows import Cell, Findings, Part, Row, Turn, order_of, ratio_of, verdict
from loadtest.generators.produce_frame import reply_layout

SPEED, SECONDS = Row("speed", "MB/s", True), Row("seconds", "s")
MACHINE = {"cpu": "a CPU", "cores": 2, "memory_gib": 8.0, "kernel": "6.1", "python": "3.11", "file_system": "ext4", "version": "0.1.0"}


class _Rows(Cell):
    name, rows = "a load", (SPEED, SECONDS)

    def measure(self, contender: Contender, tools: Any) -> Turn:
        raise NotImplementedError


class _Part(Part):
    name, title = "sample", "a sample"

    @property
    def cells(self) -> Sequence[Cell]:
        return [_Rows()]


def document(rows: dict[str, dict[str, list[float]]], part: str = "sample") -> dict[str, Any]:
    names = {name: f"settings of {name}" for by in rows.values() for name in by}
    return {"benchmark": "beside_kafka", "part": part, "date": "2026-01-01T00:00:00", "machine": MACHINE, "others": 0.1, "rounds": 3,
            "contenders": names, "rows": rows}  # fmt: skip


def test_a_ratio_above_one_is_ahead_whichever_way_the_row_counts() -> None:
    assert ratio_of(SPEED, 200.0, 100.0) == 2.0 and ratio_of(SPEED, 50.0, 100.0) == 0.5
    assert ratio_of(SECONDS, 1.0, 4.0) == 4.0 and ratio_of(SECONDS, 4.0, 1.0) == 0.25
    assert ratio_of(SECONDS, 0.0, 1.0) == float("inf")
    assert [verdict(ratio) for ratio in (0.5, 0.94, 0.96, 1.04, 1.06, 2.0)] == ["behind", "behind", "even", "even", "ahead", "ahead"]


def test_contenders_take_turns_and_each_round_begins_with_another(tmp_path: Path) -> None:
    contenders: list[Contender] = [Appliance(tmp_path / name) for name in "abc"]
    orders = ["".join(contender.directory.name for contender in order_of(contenders, number)) for number in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


def test_a_turn_that_others_disturbed_is_made_again_and_the_last_attempt_stays_as_it_is() -> None:
    said: list[str] = []
    turns = [Turn({"speed": float(number)}, others) for number, others in enumerate((0.9, OTHERS_MAX + 0.01, OTHERS_MAX, 0.0))]
    assert quiet_turn(iter(turns).__next__, 3, said.append) is turns[2] and len(said) == 2
    assert quiet_turn(iter(turns).__next__, 2, said.append) is turns[1]


def test_findings_keep_every_round_of_every_contender() -> None:
    findings = Findings()
    for value in (1.0, 2.0):
        findings.add(OURS, Turn({"speed": value}, 0.0))
    findings.add("Kafka", Turn({"speed": 3.0}, 0.0))
    assert findings.values == {"speed": {OURS: [1.0, 2.0], "Kafka": [3.0]}}


def test_a_line_compares_medians_of_one_run_only() -> None:
    first = document({"speed": {OURS: [100.0, 900.0, 110.0], "Kafka 3.9": [50.0, 55.0, 60.0], "Kafka 4.3": [220.0]}})
    second = document({"speed": {OURS: [200.0], "Kafka 3.9": [400.0]}})
    (line,) = lines_of([first, {"benchmark": "another"}, second], [_Part()])
    assert line.ours == 200.0
    assert line.theirs["Kafka 4.3"] == (220.0, 0.5), "of the first run, where ours was 110"
    assert line.theirs["Kafka 3.9"] == (400.0, 0.5), "of the latest run"
    assert line.worst == 0.5


def test_a_row_without_ours_or_without_a_kafka_has_no_line() -> None:
    assert lines_of([document({"speed": {OURS: [1.0]}, "seconds": {"Kafka 3.9": [1.0]}})], [_Part()]) == []
    assert lines_of([document({"speed": {OURS: [1.0], "Kafka 3.9": [1.0]}}, part="another")], [_Part()]) == []


def test_the_table_has_each_ratio_and_the_least_of_them_decides() -> None:
    lines = lines_of([document({"speed": {OURS: [100.0], "Kafka 3.9": [50.0], "Kafka 4.3": [200.0]}, "seconds": {OURS: [1.0], "Kafka 3.9": [3.0]}})], [_Part()])
    assert table(lines) == [
        "| row | Millrace | Kafka 3.9 | Kafka 4.3 | × at least |",
        "|---|---|---|---|---|",
        "| **sample**: a sample | | | | |",
        "| speed (MB/s) | 100 | 50 (×2.00) | 200 (×0.50) | 0.50 **behind** |",
        "| seconds (s) | 1 | 3 (×3.00) |  | 3.00 ahead |",
    ]


def test_the_page_counts_names_what_is_behind_with_its_reason_and_what_is_not_measured() -> None:
    part = PARTS["start"]
    behind, ahead, *rest = rows_of(part)
    said = page([document({behind.name: {OURS: [4.0], "Kafka 4.3": [2.0]}, ahead.name: {OURS: [1.0], "Kafka 4.3": [2.0]}}, part="start")])
    assert "1 rows are ahead of every Kafka that they were measured with, 0 even, 1 behind." in said
    section = said.partition("## Rows that are behind")[2].partition("\n## ")[0]
    assert f"{behind.name} (×0.50): {reason_for('start', behind.name)}" in section and f"* {ahead.name} (" not in section
    unmeasured = said.partition("## Rows that are not measured yet")[2].partition("\n## ")[0]
    assert all(f"* `start`: {row.name}\n" in unmeasured for row in rest) and f"`start`: {ahead.name}\n" not in unmeasured
    assert "settings of Kafka 4.3" in said and "a CPU, 2 cores" in said


def test_a_reason_is_found_by_part_and_words_and_its_absence_is_said() -> None:
    reasons = (Reason("start", "stop", "because"), Reason("start", "", "otherwise"))
    assert [reason_for("start", row, reasons) for row in ("orderly stop", "start")] == ["because", "otherwise"]
    assert reason_for("produce", "orderly stop", reasons) == UNKNOWN


def test_every_reason_is_for_a_row_that_there_is() -> None:
    for reason in REASONS:
        assert any(reason.words in row.name for row in rows_of(PARTS[reason.part])), reason


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for part in PARTS.values() for row in rows_of(part)]
    assert len(names) == len(set(names)) and len(names) > 40


def test_in_the_picture_what_is_ahead_stands_right_of_what_is_behind() -> None:
    assert place_of(0.001) == 0.0 and place_of(0.5) < place_of(1.0) < place_of(2.0) and place_of(float("inf")) == 1.0
    assert place_of(1.0) == pytest.approx(0.5)
    picture = ElementTree.fromstring(draw_ratios([("a <row>", {"Kafka 3.9": 0.5, "Kafka 4.3": 2.0})]))
    points = {element[0].text: float(element.attrib["cx"]) for element in picture.iter() if element.tag.endswith("circle") and len(element)}
    assert points["a <row>, Kafka 3.9: ×0.50"] < points["a <row>, Kafka 4.3: ×2.00"]


class _Broker(threading.Thread):
    """Hangs up on its first client, refuses the first produce of the second, then acknowledges."""

    def __init__(self, good: int) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.produces = 0
        self._good = good

    def run(self) -> None:
        self.listening.accept()[0].close()
        layout = reply_layout("t")
        connection, _ = self.listening.accept()
        with connection:
            while head := connection.recv(4, socket.MSG_WAITALL):
                connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
                self.produces += 1
                reply = bytearray(layout.size_bytes)
                struct.pack_into(">i", reply, 0, layout.size_bytes - 4)
                if self.produces == 1 or self.produces > self._good + 1:
                    struct.pack_into(">h", reply, layout.error_at, 6)
                connection.sendall(reply)


def test_a_broker_serves_when_each_partition_has_acknowledged_a_produce() -> None:
    broker = _Broker(3)
    broker.start()
    await_produces(broker.listening.getsockname(), "t", 3, 10.0)
    broker.join(10)
    broker.listening.close()
    assert broker.produces == 4


def test_a_broker_that_acknowledges_some_partitions_only_does_not_serve() -> None:
    broker = _Broker(2)
    broker.start()
    with pytest.raises(BenchmarkFailed, match=r"[123] of 3 partitions of t took no produce"):
        await_produces(broker.listening.getsockname(), "t", 3, 0.1)
    broker.join(10)
    broker.listening.close()
