"""A power cut over the files in an ingest's state directory.

The next incarnation recognises files torn anywhere, uses nothing false, and loses nothing before the tear.

Nothing of journal and spool is ever synced, so of each file any prefix, any blocks and any zeros may be left (`support/volatile_files.py`); so may of the log.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.records.ack_group import digest_of
from services.ingest.replay.journal_records import Begun, Damaged, JournalledBatch, JournalRecord, decode_all
from services.ingest.replay.replays import Replays
from tests.support.ingest_state import IngestState, WaitingBatch
from tests.support.played_leaders import PlayedLeaders
from tests.support.volatile_files import VolatileFiles
from tests.unit.services.ingest.test_replays import IMAGE

RECORDS = 3
"""in each batch"""


@contextmanager
def volatile_state() -> Iterator[tuple[IngestState, VolatileFiles]]:
    with tempfile.TemporaryDirectory(prefix="millrace-test-") as directory:
        state = IngestState(Path(directory))
        try:
            with VolatileFiles(directory) as files:
                yield state, files
        finally:
            state.close()


def contents(state: IngestState, kind: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in state.files(kind)} if (state.directory / kind).exists() else {}


def common_bytes(one: bytes, other: bytes) -> int:
    """How many of the first bytes are the same."""
    return next((place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other)))


def whole_records(content: bytes) -> tuple[list[JournalRecord], bool]:
    """Those of a file of the journal, and whether something behind them does not hold together."""
    found: list[JournalRecord] = []
    try:
        for record in decode_all(content):
            found.append(record)
    except Damaged:
        return found, True
    return found, False


class Chunks:
    """An incarnation of an ingest that stores chunk after chunk, each a batch with an identity of
    its own, under one producer.
    """

    def __init__(self, state: IngestState) -> None:
        self.state = state
        self.leaders = PlayedLeaders()
        self.stored: list[bytes] = []
        self.begin()

    def begin(self) -> None:
        state = self.state
        directory = str(state.directory / "journal")
        self.replays = Replays(directory, "incarnation", state.boot, 40, 600_000, self.leaders, state.clock, state.counters, state.log)
        while not self.replays.is_loaded:
            self.replays.do_work(state.clock.monotonic_ms(), IMAGE, True)

    def store(self, chunk: bytes, is_said: bool) -> None:
        """`is_said`: its end is written down as well."""
        batch = WaitingBatch(RECORDS, [(chunk, 0, RECORDS)], sequence=RECORDS * len(self.stored))
        self.replays.before_offer(batch)
        self.stored.append(chunk)
        if is_said:
            self.replays.stored(batch)

    def resolve(self, in_log: int) -> None:
        """The leader has so many batches."""
        self.leaders.last = {7: (0, RECORDS * in_log - 1)} if in_log else {}
        while not self.replays.is_resolved:
            self.replays.do_work(self.state.clock.monotonic_ms(), IMAGE, True)
            self.leaders.answer()
            self.state.clock.advance_ms(50)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 2**32), st.floats(0, 1))
def test_after_a_power_cut_a_chunk_counts_as_stored_exactly_if_the_log_has_it_and_the_journal_kept_it(said: list[bool], seed: int, share: float) -> None:
    with volatile_state() as (state, files):
        incarnation = Chunks(state)
        for number, is_said in enumerate(said):
            incarnation.store(digest_of(b"chunk %d" % number), is_said)
        incarnation.replays.close()
        before = contents(state, "journal")
        files.cut(random.Random(seed))
        state.boot = digest_of(b"another boot")
        kept: set[bytes] = set()
        torn = 0
        for name, content in contents(state, "journal").items():
            records, is_torn = whole_records(content)
            assert records == whole_records(before[name])[0][: len(records)], "what is read was written, from the first record on"
            assert isinstance(records[0], Begun) if records else True
            torn += is_torn
            kept |= {part[0] for record in records if isinstance(record, JournalledBatch) for part in record.parts}
        incarnation.begin()
        assert state.counter("ingest.replay_journal_damages") == torn
        in_log = int(share * len(said))
        incarnation.resolve(in_log)
        memory = incarnation.replays.memory
        known = {chunk for chunk in incarnation.stored if memory.has(chunk, "syslog", 0)}
        assert known == kept & set(incarnation.stored[:in_log])
        incarnation.store(digest_of(b"after"), True)
        incarnation.replays.close()
        incarnation.begin()
        assert {chunk for chunk in incarnation.stored if incarnation.replays.memory.has(chunk, "syslog", 0)} == known | {digest_of(b"after")}
        incarnation.replays.close()


def left_in(spool: IngestSpool) -> dict[int, bytes | None]:
    """Batches by number."""
    found = {}
    for left in spool.left_over:
        carrier = object()
        spool.adopt(carrier, left)
        found[left.number] = spool.read(carrier)
    return found


@given(st.lists(st.tuples(st.integers(1, 900), st.booleans()), min_size=1, max_size=40), st.integers(0, 2**32))
def test_after_a_power_cut_the_spool_has_what_stands_before_the_tear_and_nothing_false(steps: list[tuple[int, bool]], seed: int) -> None:
    """A step is a batch of that size, and whether the oldest that waits is done then."""
    with volatile_state() as (state, files):
        spool = state.spool(limit_bytes=40_000)
        written: dict[int, bytes] = {}
        ends: dict[int, tuple[str, int]] = {}
        waiting: list[tuple[int, WaitingBatch]] = []
        seen: set[tuple[str, bytes]] = set()
        for size_bytes, is_done in steps:
            batch, data = WaitingBatch(parts=[(digest_of(b"%d" % len(written)), 0, 1)]), bytes([len(written) % 251]) * size_bytes
            number = len(written)
            if spool.write(batch, data):
                written[number] = data
                last = state.files("spool")[-1]
                ends[number] = last.name, last.stat().st_size
                waiting.append((number, batch))
            seen.update(contents(state, "spool").items())
            if is_done and waiting:
                spool.done(waiting.pop(0)[1])
            seen.update(contents(state, "spool").items())  # a file that was removed may be back after the cut
        spool.close()
        files.cut(random.Random(seed))
        after = contents(state, "spool")
        same = {name: max(common_bytes(content, known) for other, known in seen if other == name) for name, content in after.items()}
        damages = state.counter("ingest.spool_damages")
        again = state.spool(limit_bytes=40_000)
        found = left_in(again)
        is_torn = any(same[name] < len(content) for name, content in after.items())
        assert state.counter("ingest.spool_damages") > damages or not is_torn, "a tear is counted"
        assert list(found) == sorted(found), "in order"
        assert all(data in (None, written[number]) for number, data in found.items()), "and as it was written, or known to be lost"
        must = {number for number, _ in waiting if ends[number][1] <= same.get(ends[number][0], 0)}
        assert must <= {number for number, data in found.items() if data is not None}, "what stands before the tear is there"
        new = WaitingBatch()
        assert again.write(new, b"new")
        third = state.spool(limit_bytes=40_000)
        *numbers, newest = [left.number for left in third.left_over]
        assert numbers == list(found) and newest > max(found, default=-1)
        again.close()
        third.close()
