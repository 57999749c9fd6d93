"""What scrubbers found is fetched from another box and repaired by the real log-writer; the other box is played by the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.ipc.disk_reports import NOTHING, FoundDamage, report_file, write_report
from appliance.protocol.fetch import CONSUMER_REPLICA_ID, FetchRequest, decode_fetch, encode_fetch_response
from appliance.records.batch import BATCH_LENGTH_AT
from appliance.storage.scrub import SegmentScrub
from lab.scratch_layout import scratch_layout
from tests.support.real_log_writer import BROKER_ID, DISK, TOPIC_ID
from tests.support.scripted_leader import LedLog
from tests.support.scripted_peer import ScriptedPeer
from tests.support.stepped_follower import LEADER_ID, SteppedFollower

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_waiting_for_the_disk")]

BATCHES = 6


class Damaged:
    """A follower of one partition with six batches in one segment, all committed, and the line on which repairs ask the other box."""

    def __init__(self, box: SteppedFollower) -> None:
        self.box = box
        self.led = led = box.follow(0)
        for _ in range(BATCHES):
            led.append()
        led.high_watermark = BATCHES
        while box.row(0).high_watermark < BATCHES:
            box.leader.serve()
            box.turns(3)
        self.size = len(led.batches[0].batch)
        self.file = box.path / "t-0" / "00000000000000000000.log"
        self.line = ScriptedPeer.__new__(ScriptedPeer)
        self.line.__dict__ |= box.leader.peer.__dict__
        self.line.sock, self.line.received = None, b""
        """Its own connection to the same port."""

    def damage(self, number: int, at: int = 40) -> None:
        content = bytearray(self.led.content())
        content[number * self.size + at] ^= 0x40
        with open(self.file, "r+b") as file:
            file.write(content)

    def report(self, found_ms: int = 1) -> None:
        """As the scrubber does, if the segment were closed."""
        scrub = SegmentScrub(str(self.file.parent), 0, BATCHES)
        assert sum(scrub)
        found = tuple(
            FoundDamage("t", 0, **damage._asdict(), found_ms=found_ms, is_rebuildable=False) for damage in scrub.damages if damage.file.endswith("log")
        )
        assert found
        write_report(report_file(self.box.layout, DISK), NOTHING._replace(damages=found))

    def serve(self, led: LedLog | None = None) -> FetchRequest:
        """Answer the next request for a healthy copy."""
        request = self.line.next_request()
        fetch = decode_fetch(request.body, 0, len(request.body), request.version)
        results = [(led or self.led).answer(wanted) for wanted in fetch.partitions]
        pieces = encode_fetch_response(request.version, request.correlation_id, 0, 0, results)
        self.line.send(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]
        return fetch

    def is_whole(self) -> bool:
        return self.file.read_bytes() == self.led.content()


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Damaged]:
    with scratch_layout() as layout:
        box = SteppedFollower(layout, tmp_path / "d0", {"replica.socket.timeout.ms": 3_600_000})
        made = Damaged(box)
        yield made
        made.line.hang_up()
        box.until(box.arena_is_free)
        box.close()


@pytest.mark.parametrize("is_led_here", [False, True])
@pytest.mark.parametrize("at", [3, BATCH_LENGTH_AT, 40])
def test_a_damaged_batch_is_fetched_from_a_replica_in_sync_and_repaired(damaged: Damaged, is_led_here: bool, at: int) -> None:
    box = damaged.box
    if is_led_here:
        box.isr = (BROKER_ID, LEADER_ID)
        box.publish(leaders=[BROKER_ID])
    damaged.damage(2, at)
    damaged.report()
    fetch = damaged.serve()
    (wanted,) = fetch.partitions
    assert (fetch.replica_id, wanted.topic_id, wanted.partition) == (CONSUMER_REPLICA_ID, TOPIC_ID, 0) and wanted.fetch_offset < 2
    box.until(damaged.is_whole)
    box.until(lambda: "t-0 at offset 2 repaired with the copy of broker 2" in box.writer.said)
    assert box.writer.counters.counter("log_writer.batches_repaired").value == 1 and not box.counted("repairs_left")


def test_two_damaged_batches_are_repaired_one_after_the_other(damaged: Damaged) -> None:
    damaged.damage(1)
    content = bytearray(damaged.file.read_bytes())
    content[4 * damaged.size + 40] ^= 1
    damaged.file.write_bytes(content)
    damaged.report()
    damaged.serve()
    damaged.serve()
    damaged.box.until(damaged.is_whole)


def test_a_copy_that_is_damaged_or_another_one_is_never_written_and_that_is_said_once(damaged: Damaged) -> None:
    damaged.damage(2)
    damaged.report()
    before = damaged.file.read_bytes()
    other = LedLog()
    for number in range(BATCHES):
        other.append(value=b"x" * (20 if number < 1 else 30))
    other.high_watermark = BATCHES
    damaged.serve(other)
    damaged.box.until(lambda: damaged.box.counted("repairs_left") == 1)
    assert "damage in t-0 at offset 2 could not be repaired, no healthy copy fits: broker 2: its copy differs" in damaged.box.said
    for _ in range(5):
        damaged.box.clock.advance_ms(30_000)
        damaged.box.turns(3)
    assert (damaged.box.counted("repairs_left"), damaged.file.read_bytes()) == (1, before)
    damaged.report(found_ms=2)
    damaged.serve()
    damaged.box.until(damaged.is_whole)


def test_a_box_that_cannot_be_asked_is_asked_again_later(damaged: Damaged) -> None:
    damaged.damage(2)
    damaged.box.isr = ()
    damaged.box.publish(leaders=[BROKER_ID])
    damaged.report()
    damaged.box.clock.advance_ms(2_000)
    damaged.box.turns(60)
    assert "cannot be repaired yet: no other replica is in sync" in damaged.box.said
    damaged.box.isr = (BROKER_ID, LEADER_ID)
    damaged.box.publish(leaders=[BROKER_ID])
    damaged.box.clock.advance_ms(30_000)
    damaged.serve()
    damaged.box.until(damaged.is_whole)
    assert not damaged.box.counted("repairs_left")


def test_a_log_writer_that_dies_over_it_costs_nothing(damaged: Damaged) -> None:
    damaged.damage(2)
    damaged.report()
    damaged.box.writer_is_held = True
    damaged.serve()
    damaged.box.turns(10)
    damaged.box.writer_is_held = False
    damaged.box.restart_log_writer()
    damaged.box.turns(10)
    damaged.box.writer.agent.partitions.find(TOPIC_ID, 0).update_high_watermark(BATCHES, False)  # type: ignore[union-attr]
    if not damaged.is_whole():
        damaged.box.clock.advance_ms(30_000)
        damaged.serve()
    damaged.box.until(damaged.is_whole)
