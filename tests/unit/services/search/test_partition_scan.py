"""The scan of a partition's segment files against a plain loop over all their records; and a search over several partitions."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.layout import BoxLayout
from appliance.base.model import LeaderEpoch, Offset, Position, TopicId
from appliance.base.settings import Box, Disk
from appliance.cluster.metadata_image import PartitionImage, TopicImage
from appliance.pipeline.local_rows import LocalRow
from appliance.records.compression import Codec
from appliance.records.record import iterate_records
from appliance.shm.partition_table import DISK_OFFLINE, DISK_ONLINE, DISK_STARTING, ROLE_LEADER, PartitionTableWriter, Row
from appliance.storage.directory_identity import encode_partition_metadata
from appliance.storage.transaction_index import AbortedTxn, encode_transaction_index
from lab.scratch_layout import scratch_layout
from services.search import partition_scan, search_run
from services.search.agent import Places, SearchAgent, SearchRefused, SearchRequest
from services.search.context import ContextReader
from services.search.partition_scan import Match, PartitionScan, Wanted
from services.search.search_run import NEWEST, SearchOptions, SearchRun
from tests.unit.pipeline.made_batches import made_of, marker, with_append_time

TOPIC_ID = TopicId(b"0123456789abcdef")
FOREVER = 1 << 60


class OneRow(NamedTuple):
    """A partition table with one row."""

    row: Row
    end_of_aborted: int

    def read(self, _index: int) -> Row:
        return self.row

    def aborted_end(self, _index: int) -> int:
        return self.end_of_aborted

    def close(self) -> None:
        pass


def partition_at(directory: Path, segments: Sequence[tuple[int, bytes]], limit: int, aborted: Sequence[AbortedTxn] = (), log_start: int = 0) -> LocalRow:
    """Write a partition whose records below `limit` may be read."""
    directory.mkdir()
    (directory / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    for base_offset, content in segments:
        (directory / f"{base_offset:020d}.log").write_bytes(content)
        for suffix in ("index", "timeindex"):
            (directory / f"{base_offset:020d}.{suffix}").write_bytes(b"")
    if aborted:
        (directory / f"{segments[-1][0]:020d}.txnindex").write_bytes(encode_transaction_index(aborted))
    last, content = segments[-1]
    row = Row(
        TOPIC_ID, 0, 1, ROLE_LEADER, LeaderEpoch(0), Offset(log_start), Offset(limit), Offset(limit), Offset(limit), 1, 1, 0,
        Offset(last), Position(len(content)), Offset(last), Position(len(content)), 1,
    )  # fmt: skip
    table: Any = OneRow(row, aborted[-1].last_offset + 1 if aborted else 0)
    return LocalRow(TOPIC_ID, str(directory), table, 0, row)


def wanted_of(query: str, since_ms: int = 0, until_ms: int = FOREVER) -> Wanted:
    return Wanted.of(query, since_ms, until_ms)


def found_in(found: LocalRow, wanted: Wanted, window_bytes: int = 1 << 20, partition: int = 0) -> tuple[list[Match], PartitionScan]:
    scan = PartitionScan(found, "searched", partition, wanted, window_bytes)
    return [match for window in scan.windows() for match in window.matches], scan


def line(number: int, message: str) -> bytes:
    return orjson.dumps({"host": f"web{number % 3}", "severity": number % 8, "message": message})


messages = st.sampled_from(["timed out", "timeout", "Error: disk", "x" * 300, "debug", "ERROR", ""])
batches = st.lists(
    st.tuples(st.sampled_from(list(Codec)), st.booleans(), st.lists(st.tuples(st.integers(0, 9), messages), min_size=1, max_size=5)), min_size=1, max_size=12
)
queries = st.sampled_from(
    ["", "error", "host=web1", "severity<=1", "severity<=6", '"timed out" or disk', "-error", "debug -host=web0", "/tim(ed|eout)/", "absent"]
)
fresh = itertools.count()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partitions")


@given(batches, queries, st.integers(1, 3), st.sampled_from([1, 700, 1 << 20]), st.integers(0, 12), st.integers(0, 30))
def test_the_scan_finds_what_a_loop_over_all_records_finds(
    place: Path, given_batches: Any, query: str, rolls: int, window_bytes: int, since: int, span: int
) -> None:
    segments: list[tuple[int, bytes]] = []
    stored: list[bytes] = []
    offset = 0
    for number, (codec, is_stamped, records) in enumerate(given_batches):
        batch = made_of(offset, [(offset + index, b"key", line(*record), (("name", b"error"),)) for index, record in enumerate(records)], codec)
        batch = with_append_time(batch) if is_stamped else batch
        if number % rolls == 0:
            segments.append((offset, b""))
        segments[-1] = (segments[-1][0], segments[-1][1] + batch)
        stored.append(batch)
        offset += len(records)
    until = since + span
    wanted = wanted_of(query, since, until)
    found, scan = found_in(partition_at(place / str(next(fresh)), segments, offset), wanted, window_bytes)
    everything = [record for batch in stored for record in iterate_records(batch, 1 << 24)]
    predicate = wanted.predicate
    from services.search.matching import Document

    expected = [record.offset for record in everything if since <= record.timestamp < until and predicate(Document(record.value or b""))]
    assert sorted(match.offset for match in found) == expected
    assert scan.notes == []


def test_aborted_transactions_markers_and_records_from_the_last_stable_offset_on_are_left_out(tmp_path: Path) -> None:
    def batch(offset: int, message: str, producer_id: int = -1) -> bytes:
        return made_of(offset, [(offset, None, line(1, message), ())], producer_id=producer_id)

    content = batch(0, "plain error") + batch(1, "aborted error", 7) + batch(2, "committed error", 8) + marker(3, 7, False) + marker(4, 8, True)
    content += batch(5, "later error", 7) + marker(6, 7, True) + batch(7, "undecided error")
    found = partition_at(tmp_path / "p", [(0, content)], 7, [AbortedTxn(7, Offset(1), Offset(3), Offset(4))])  # type: ignore[arg-type]
    matches, _ = found_in(found, wanted_of("error"))
    assert [match.offset for match in matches] == [0, 2, 5]


def test_the_scan_ends_when_much_of_the_log_in_a_row_lies_an_hour_behind_the_time_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hour = 3_600_000
    times = [0, 10, hour, 20, 2 * hour, 30, 3 * hour, 4 * hour, 5 * hour, 40]
    content = [made_of(offset, [(time, None, line(1, "error"), ())]) for offset, time in enumerate(times)]
    monkeypatch.setattr(partition_scan, "LATE_BYTES", 3 * len(content[0]))
    matches, scan = found_in(partition_at(tmp_path / "p", [(0, b"".join(content))], len(times)), wanted_of("error", 5, 100), len(content[0]))
    assert [match.offset for match in matches] == [1, 3, 5], "single records of a wrong clock end no scan, three in a row do"
    assert scan.notes == []


def test_a_record_of_the_future_hides_none_behind_it(tmp_path: Path) -> None:
    minute, day = 60_000, 86_400_000
    content = b"".join(made_of(offset, [(day if offset == 2 else offset * minute, None, line(1, "error"), ())]) for offset in range(10))
    matches, _ = found_in(partition_at(tmp_path / "p", [(0, content)], 10), wanted_of("error", 0, 60 * minute))
    assert [match.offset for match in matches] == [0, 1, 3, 4, 5, 6, 7, 8, 9]


def test_a_damaged_batch_is_named_and_passed_over(tmp_path: Path) -> None:
    good, bad, behind = (made_of(number, [(number, None, line(1, "an error"), ())]) for number in range(3))
    damaged = bad[:-3] + bytes([bad[-3] ^ 1]) + bad[-2:]
    matches, scan = found_in(partition_at(tmp_path / "p", [(0, good + damaged + behind)], 3), wanted_of("error"))
    assert [match.offset for match in matches] == [0, 2]
    assert len(scan.notes) == 1 and "at offset 1" in scan.notes[0]
    garbled, scan = found_in(partition_at(tmp_path / "q", [(0, good + bytes(len(bad)) + behind)], 3), wanted_of("error"))
    assert [match.offset for match in garbled] == [0, 2] and "passed over" in scan.notes[0]


def search(scans: list[PartitionScan], **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    documents: list[dict[str, Any]] = []
    run = SearchRun(scans, SearchOptions(**options), documents.append, ManualClock(), lambda _ms: None)
    return documents, run.run()._asdict()


@pytest.fixture
def three_partitions(tmp_path: Path) -> list[LocalRow]:
    """Their times interleave: 0, 3, 6 …, 1, 4, 7 … and 2, 5, 8 … seconds."""

    def content(partition: int) -> bytes:
        return b"".join(made_of(offset, [((3 * offset + partition) * 1_000, None, line(offset, f"error {offset}"), ())]) for offset in range(100))

    return [partition_at(tmp_path / str(partition), [(0, content(partition))], 100) for partition in range(3)]


def scans_of(rows: list[LocalRow], query: str = "error") -> list[PartitionScan]:
    return [PartitionScan(row, "searched", number, wanted_of(query), 400) for number, row in enumerate(rows)]


def test_records_of_several_partitions_come_in_time_order(three_partitions: list[LocalRow]) -> None:
    documents, totals = search(scans_of(three_partitions), hold_ms=10_000)
    assert [each["record"]["timestamp"] for each in documents] == [1_000 * number for number in range(300)]
    assert totals["matches"] == 300 and totals["unordered"] == 0 and totals["stopped"] is None


def test_a_limit_takes_the_first_records_or_the_last(three_partitions: list[LocalRow]) -> None:
    documents, totals = search(scans_of(three_partitions), limit=5)
    assert [each["record"]["timestamp"] for each in documents] == [0, 1_000, 2_000, 3_000, 4_000] and totals["stopped"] == "limit"
    documents, totals = search(scans_of(three_partitions), limit=2, order=NEWEST)
    assert [each["record"]["timestamp"] for each in documents] == [298_000, 299_000] and totals["stopped"] == "limit"


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60),
    st.integers(0, 4), st.integers(0, 4), st.integers(1, 7), st.sampled_from([0, 3]), st.sampled_from(["oldest", NEWEST]),
)  # fmt: skip
def test_records_around_matches_come_once_and_in_the_order_of_the_log(
    place: Path, given_records: list[tuple[bool, bool]], before: int, after: int, batch_records: int, limit: int, order: str
) -> None:
    """Of each record: whether it matches, and whether it has a value at all."""
    records = [
        (number, None, line(number, "an error" if wanted else "calm") if has_value else None, ()) for number, (wanted, has_value) in enumerate(given_records)
    ]
    batches = [records[at : at + batch_records] for at in range(0, len(records), batch_records)]
    content = b"".join(made_of(batch[0][0], batch, Codec.LZ4 if number % 2 else Codec.NONE) for number, batch in enumerate(batches))  # type: ignore[arg-type]
    found = partition_at(place / str(next(fresh)), [(0, content)], len(records))
    wanted = wanted_of("error")
    context = ContextReader(lambda _partition: found, "searched", wanted, before, after)
    limit = limit or (1_000 if order == NEWEST else 0)
    documents, totals = search([PartitionScan(found, "searched", 0, wanted, 300)], limit=limit, order=order, context=context)
    matches = [number for number, (wanted, has_value) in enumerate(given_records) if wanted and has_value]
    matches = matches[-limit:] if order == NEWEST else matches[: limit or None]
    shown = [each["record"] for each in documents]
    assert [each["offset"] for each in shown] == matches
    everything = [each["offset"] for match in shown for each in (*match.get("before", ()), match, *match.get("after", ()))]
    there = [number for number, (_, has_value) in enumerate(given_records) if has_value]
    near = [number for number in there if any(match - before <= number <= match + after for match in matches)]
    if not (limit and order != NEWEST):
        assert everything == near
    assert everything == sorted(set(everything)) and set(everything) <= set(near), "with a limit, what follows the last ends at the next match"
    assert totals["matches"] == len(matches) and all(len(each.get("before", ())) <= before and len(each.get("after", ())) <= after for each in shown)


def test_what_surrounds_a_match_lies_in_other_segments_and_outside_of_the_time_range_but_never_in_an_aborted_transaction(tmp_path: Path) -> None:
    def batch(offset: int, message: str, producer_id: int = -1) -> bytes:
        return made_of(offset, [(offset, None, line(1, message), ())], producer_id=producer_id)

    first = batch(0, "calm") + batch(1, "aborted", 7) + marker(2, 7, False) + batch(3, "calm")
    segments = [(0, first), (4, batch(4, "an error")), (5, batch(5, "calm") + batch(6, "an error"))]
    found = partition_at(tmp_path / "p", segments, 6, [AbortedTxn(7, Offset(1), Offset(2), Offset(3))])  # type: ignore[arg-type]
    wanted = wanted_of("error", 4, 5)
    context = ContextReader(lambda _partition: found, "searched", wanted, 4, 4)
    documents, _ = search([PartitionScan(found, "searched", 0, wanted)], context=context)
    (record,) = [each["record"] for each in documents]
    assert [each["offset"] for each in record["before"]] == [0, 3] and [each["offset"] for each in record["after"]] == [5]
    gone = ContextReader(lambda _partition: "disk d1 (/srv/d1), on which it lies, is offline", "searched", wanted, 1, 1)
    run = SearchRun(scans_of([found]), SearchOptions(context=gone), documents.append, ManualClock(), lambda _ms: None)
    assert run.run().matches == 1
    assert run.notes == ["the records around 1 of the matches were not read; partition 0: disk d1 (/srv/d1), on which it lies, is offline"]


@pytest.mark.parametrize(("limit", "order"), [(0, "oldest"), (1, "oldest"), (1, NEWEST)])
def test_a_disk_that_hangs_while_surroundings_are_read_keeps_no_search_from_its_end(three_partitions: list[LocalRow], limit: int, order: str) -> None:
    answers = threading.Event()
    clock = ManualClock()

    def find(_partition: int) -> str:
        clock.advance_ms(1_000)
        answers.wait(60)
        return "it answers"

    documents: list[dict[str, Any]] = []
    options = SearchOptions(limit, order, duration_ms_max=1_000, context=ContextReader(find, "searched", wanted_of("error"), 1, 1))
    run = SearchRun(scans_of(three_partitions[:1]), options, documents.append, clock, lambda _ms: None)
    try:
        totals = run.run()
    finally:
        answers.set()
    assert totals.matches == (limit or 100) and not any("after" in each.get("record", ()) for each in documents)
    assert run.notes == [f"the records around {limit or 100} of the matches were not read; partition 0: the search ended first"]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "has no log-writer at the moment"), (DISK_OFFLINE, "is offline"), (DISK_STARTING, "is being read by its log-writer"),
        (DISK_ONLINE, "does not serve it at the moment"),
    ],
)  # fmt: skip
def test_a_partition_that_is_not_served_is_named_with_its_disk_and_the_state_of_that(state: int | None, words: str) -> None:
    image = PartitionImage(0, LeaderEpoch(0), (0,), (0,), "d1")
    topic = TopicImage("searched", TOPIC_ID, (image, image._replace(disk="d9"), image._replace(replicas=(3,))), {})
    with scratch_layout() as layout:
        box = Box(layout.box, 0, [Disk("d0", "/srv/d0"), Disk("d1", "/srv/d1")], "", "", "", 0, 0, 0)
        table = None if state is None else PartitionTableWriter.create(layout.shared_memory_name("table", "d1", 1), 1)
        if table is not None and state is not None:
            table.set_disk_state(state)
        _, absent = Places(layout, box, topic).scans((0, 1, 2), wanted_of("error"))
        if table is not None:
            table.close()
    assert [each["reason"] for each in absent] == [
        f"disk d1 (/srv/d1), on which it lies, {words}; look at `millrace disk list`",
        "it lies on disk d9, which this box does not have any more",
        "it is on box 3; search there",
    ]


@pytest.mark.parametrize("more", ['"before":101', '"after":-1', '"after":1,"follow":true', '"before":1,"is_count":true', '"before":1,"by":["host"]'])
def test_a_request_for_records_around_counts_or_for_too_many_is_refused(more: str) -> None:
    with pytest.raises(SearchRefused, match="before"):
        SearchRequest.decode(b'{"query":"","topic":"t",' + more.encode() + b"}")


def test_counts_are_grouped_by_time_and_fields(three_partitions: list[LocalRow]) -> None:
    documents, totals = search(scans_of(three_partitions), by=("minute", "host"))
    counts = {tuple(each["count"]["by"]): each["count"]["count"] for each in documents}
    assert sum(counts.values()) == totals["matches"] == 300 and counts["1970-01-01T00:00Z", "web1"] == 21
    documents, _ = search(scans_of(three_partitions, "severity=0"), is_count=True)
    assert documents == [{"count": {"by": [], "count": 39}}]


def test_a_partition_that_is_named_twice_is_searched_once(three_partitions: list[LocalRow]) -> None:
    scans = [PartitionScan(three_partitions[0], "searched", 0, wanted_of("error"), 400) for _ in range(2)]
    assert search(scans)[1]["matches"] == 100
    assert SearchRequest.decode(b'{"query":"","topic":"t","partitions":[1,0,1]}').partitions == (1, 0)


def test_a_time_that_no_calendar_has_is_counted_as_such(tmp_path: Path) -> None:
    content = made_of(0, [(253_402_300_800_000, None, line(1, "error"), ())])
    documents, _ = search([PartitionScan(partition_at(tmp_path / "p", [(0, content)], 1), "searched", 0, wanted_of("error"))], by=("hour",))
    assert documents == [{"count": {"by": ["(no time)"], "count": 1}}]


class Held:
    """A scan whose disk answers when `answers` is set."""

    def __init__(self, inner: PartitionScan) -> None:
        self.answers = threading.Event()
        self._inner = inner
        self.partition, self.range, self.notes = inner.partition, inner.range, inner.notes
        self.sampled_records, self.sampled_fields, self.wanted_fields, self.skipped_bytes = 0, set[str](), (), 0

    def windows(self) -> Iterator[Any]:
        self.answers.wait(60)
        yield from self._inner.windows()


@pytest.mark.slow
def test_a_search_whose_disk_does_not_answer_reports_progress_and_ends_in_time(three_partitions: list[LocalRow], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_run, "LEAVE_SECONDS", 0.05)
    held = Held(scans_of(three_partitions)[0])
    documents: list[dict[str, Any]] = []
    scans: Any = [held]
    try:
        run = SearchRun(scans, SearchOptions(duration_ms_max=600), documents.append, SystemClock(), lambda _ms: None)
        totals = run.run()
    finally:
        held.answers.set()
    assert totals.stopped == "duration" and "progress" in documents[0]
    assert "had not answered" in run.failed[0]


def test_a_search_with_a_limited_rate_reports_progress_while_it_pauses(three_partitions: list[LocalRow]) -> None:
    documents: list[dict[str, Any]] = []
    clock = ManualClock()
    run = SearchRun(scans_of(three_partitions, "absent"), SearchOptions(bytes_per_second=1_000), documents.append, clock, clock.advance_ms)
    run.run()
    times = [each["progress"]["bytes"] for each in documents if "progress" in each]
    assert len(times) > 2 * 3 * 4, "several for each window of 400 bytes, which take 0.4 s each"


def test_the_newest_records_that_do_not_fit_in_memory_are_counted(three_partitions: list[LocalRow]) -> None:
    documents: list[dict[str, Any]] = []
    options = SearchOptions(limit=1_000, order=NEWEST, waiting_bytes_max=2_500)
    run = SearchRun(scans_of(three_partitions), options, documents.append, ManualClock(), lambda _ms: None)
    run.run()
    times = [each["record"]["timestamp"] for each in documents]
    assert times == [1_000 * number for number in range(300 - len(times), 300)] and 5 < len(times) < 15
    assert run.notes == [f"the newest {len(times)} records only: {300 - len(times)} more do not fit in search.memory.bytes"]


def test_a_window_with_many_matches_is_handed_on_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"".join(made_of(offset, [(offset, None, line(1, "an error"), ())], Codec.LZ4) for offset in range(50))
    monkeypatch.setattr(partition_scan, "MATCHES_BYTES", 1_000)
    scan = PartitionScan(partition_at(tmp_path / "p", [(0, content)], 50), "searched", 0, wanted_of("error"))
    windows = list(scan.windows())
    assert [match.offset for window in windows for match in window.matches] == list(range(50))
    assert max(len(window.matches) for window in windows) < 6 and windows[-1].next_offset == 50


def test_a_batch_that_does_not_fit_in_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"".join(made_of(offset, [(offset, None, line(1, "an error"), ())], Codec.LZ4) for offset in range(2))

    def decompress(*_: Any) -> bytes:
        raise MemoryError

    monkeypatch.setattr(partition_scan, "decompress", decompress)
    _, scan = found_in(partition_at(tmp_path / "p", [(0, content)], 2), wanted_of("error"))
    assert len(scan.notes) == 2 and "needs more memory than search.memory.bytes" in scan.notes[0]


def test_a_field_that_no_record_has_is_named(three_partitions: list[LocalRow]) -> None:
    run = SearchRun(scans_of(three_partitions, "id=7 host=web1"), SearchOptions(), lambda _document: None, ManualClock(), lambda _ms: None)
    run.run()
    assert run.notes == ["none of the first 300 records has a field id; they have host, message, severity"]


def test_the_value_of_a_group_is_cut(tmp_path: Path) -> None:
    content = made_of(0, [(0, None, line(1, "x" * 10_000), ())])
    documents, _ = search([PartitionScan(partition_at(tmp_path / "p", [(0, content)], 1), "searched", 0, wanted_of(""))], by=("message",))
    assert len(documents[0]["count"]["by"][0]) == 200


def test_an_exception_in_the_process_becomes_a_document(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(b'{"query":"","topic":"t"}\n')
        with theirs:
            SearchAgent(BoxLayout(str(tmp_path)), theirs).serve()
        error = orjson.loads(ours.recv(1 << 16))["error"]
    assert error["status"] == 500 and "the search failed: FileNotFoundError" in error["message"]
    assert "Traceback" in capfd.readouterr().err
