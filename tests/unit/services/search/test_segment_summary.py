"""Summaries of segments: a search with them finds what a search without them finds."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.clock import ManualClock
from appliance.base.model import Offset, TopicId
from appliance.records.batch import RECORDS_AT
from appliance.records.compression import Codec
from appliance.records.record import encode_varint
from appliance.senders.record_query import QueryProblem
from appliance.storage.segment_files import SUMMARY_SUFFIX, segment_path
from services.search import partition_scan, summarizer
from services.search.partition_scan import PartitionScan, Wanted
from services.search.summarizer import WordFilter, run_job
from services.search.summary import SegmentIdentity, SegmentSummary, SummaryHeader, read_header, token_hash
from tests.unit.pipeline.made_batches import made_of, marker, stamped, with_append_time
from tests.unit.services.search.test_partition_scan import TOPIC_ID, found_in, line, partition_at

RANDOM = bytes(range(48))
fresh = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def small_segments() -> Iterator[None]:
    """Let the smallest segment have a summary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summarizer, "SEGMENT_BYTES_MIN", 1)
        patch.setattr(partition_scan, "SEGMENT_BYTES_MIN", 1)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partitions")


def summarize(*directories: str, share_percent: int = 30_000, checks_pages: bool = False, topic_id: TopicId = TOPIC_ID) -> list[dict[str, int]]:
    """Make the summaries of all segments but the last."""
    reports: list[dict[str, int]] = []
    partitions = [
        {
            "directory": directory,
            "topic_id": topic_id.hex(),
            "bases": sorted(int(path.stem) for path in Path(directory).glob("*.log"))[:-1],
            "checks_pages": checks_pages,
        }
        for directory in directories
    ]
    run_job({"share_percent": share_percent, "bytes_per_second": 0, "partitions": partitions}, reports.append, ManualClock(), lambda _seconds: None)
    return reports


def offsets_of(found: Any, query: str, since_ms: int, until_ms: int, uses_summaries: bool) -> tuple[list[int], PartitionScan]:
    matches, scan = found_in(found, Wanted.of(query, since_ms, until_ms, uses_summaries))
    return [match.offset for match in matches], scan


words = st.sampled_from(["timeout", "TimeOut", "ntimeout", "u0041x", "timed", "café", "a_b", "web1", "7", "id", "host", "é", "x" * 130, "K", "\u212a", ""])
joints = st.sampled_from(["", " ", "\n", "\t", "/", "\\", '"', "→", "é", "_", "-", ".", "\x1b", "\\n", '":"', "{"])
texts = st.lists(st.tuples(words, joints), min_size=1, max_size=4).map(lambda parts: "".join(word + joint for word, joint in parts))
scalars = st.one_of(texts, st.integers(-12, 12), st.sampled_from([None, True, 1.5, 1e25]))
names = st.sampled_from(["host", "app", "severity", "message", "id", "Host", "labels"])
documents = st.dictionaries(names, st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(names, scalars, max_size=2)), max_size=4)
FORMS: list[dict[str, Any]] = [{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"separators": (",", ":"), "ensure_ascii": False}]


def letters_escaped(document: Any) -> bytes:
    return "".join(f"\\u{ord(each):04x}" if each in "emw" else each for each in json.dumps(document)).encode()


values = st.one_of(
    st.builds(lambda document, form: json.dumps(document, **form).encode(), documents, st.sampled_from(FORMS)),
    st.builds(lambda document: json.dumps(document, separators=(",", ":")).encode(), documents),
    texts.map(str.encode),
    st.builds(letters_escaped, st.dictionaries(names, st.just("timed"), max_size=1)),
    st.binary(max_size=20),
    st.none(),
)
keys = st.sampled_from([None, b"timeout", b"k"])
records = st.lists(st.tuples(st.integers(0, 9), keys, values, st.sampled_from([(), (("h", b"timeout"),)])), min_size=1, max_size=4)
given_segments = st.lists(st.lists(st.tuples(st.sampled_from(list(Codec)), st.booleans(), records), min_size=1, max_size=3), min_size=2, max_size=4)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


one_word = st.sampled_from(["timeout", "timed", "café", "a_b", "web1", "7", "-3", "K", "x" * 130, "u0041x", "true", "1.5"])
conditions = st.one_of(
    one_word,
    st.builds(lambda word: f"{word}*", one_word),
    st.builds(lambda word: f"*{word[1:]}*", one_word),
    texts.map(quoted),
    st.builds(lambda name, operator, word: f"{name}{operator}{word}", names, st.sampled_from(["=", "!=", ":", "<=", ">"]), one_word),
    st.builds(lambda name, word: f"{name}={word[:2]}*", names, one_word),
    st.builds(lambda name, text: f"{name}={quoted(text)}", names, texts),
    st.builds(lambda word: f"/{word} ?timed|{word}$/", st.sampled_from(["timeout", "out", "web[0-9]"])),
    st.builds(lambda name: f"labels.{name}=*", names),
    st.sampled_from(["severity<=err", "severity>=3"]),
)
queries = st.recursive(
    conditions,
    lambda inner: st.one_of(st.builds("({} or {})".format, inner, inner), st.builds("({} {})".format, inner, inner), inner.map("not {}".format)),
    max_leaves=3,
)


def segments_of(given: Any) -> tuple[list[tuple[int, bytes]], int]:
    segments, offset = [], 0
    for batches in given:
        first, content = offset, b""
        for codec, is_stamped, made in batches:
            batch = made_of(offset, [(time, key, value, headers) for time, key, value, headers in made], codec)
            content += with_append_time(batch) if is_stamped else batch
            offset += len(made)
        segments.append((first, content))
    return segments, offset


@pytest.mark.slow
@given(given_segments, st.lists(queries, min_size=1, max_size=4), st.integers(0, 6), st.integers(1, 12))
def test_a_search_with_summaries_finds_what_one_without_finds(place: Path, given: Any, asked: list[str], since: int, span: int) -> None:
    segments, end = segments_of(given)
    found = partition_at(place / str(next(fresh)), segments, end)
    summarize(found.directory)
    for query in asked:
        for times in ((0, 1 << 60), (since, since + span)):
            try:
                expected, _ = offsets_of(found, query, *times, uses_summaries=False)
            except QueryProblem:
                continue
            assert offsets_of(found, query, *times, uses_summaries=True)[0] == expected, query


@pytest.fixture
def four_segments(tmp_path: Path) -> Any:
    """A hundred records each, a second apart, and a word of its own."""
    segments = []
    for number in range(4):
        batches = [made_of(offset, [(1_000 * offset, None, line(offset, f"of{number} n{offset}"), ())]) for offset in range(100 * number, 100 * number + 100)]
        segments.append((100 * number, b"".join(batches)))
    return partition_at(tmp_path / "p", segments, 400)


def test_summaries_skip_segments_by_word_field_value_and_time(four_segments: Any) -> None:
    assert len(summarize(four_segments.directory)) == 3
    sizes = [os.stat(segment_path(four_segments.directory, Offset(100 * number), ".log")).st_size for number in range(4)]
    expected = {"of1": {0, 2}, "-of1": set(), "host=web1": set()} | {query: {0, 1, 2} for query in ("absent", "host=db*", "id=7", "severity>7")}
    for query, skipped in expected.items():
        _, scan = offsets_of(four_segments, query, 0, 1 << 60, True)
        assert scan.skipped_bytes == sum(sizes[number] for number in skipped), query
    _, scan = offsets_of(four_segments, "", 0, 50_000, True)
    assert sizes[1] + sizes[2] + sizes[0] // 4 < scan.skipped_bytes < sizes[0] + sizes[1] + sizes[2], "behind the time range"


def test_of_a_segment_with_the_word_only_the_blocks_are_read_that_may_have_it(four_segments: Any) -> None:
    summarize(four_segments.directory)
    first_bytes, size_bytes = (os.stat(segment_path(four_segments.directory, Offset(base), ".log")).st_size for base in (0, 100))
    for number in (100, 101, 150, 198, 199):
        found, scan = offsets_of(four_segments, f"n{number}", 0, 1 << 60, True)
        assert found == [number] and 3 * size_bytes - scan.skipped_bytes <= size_bytes // 4, "one block of eight, or two"
    found, scan = offsets_of(four_segments, "n110 or n190", 0, 1 << 60, True)
    assert found == [110, 190] and 3 * size_bytes - scan.skipped_bytes <= size_bytes // 2
    assert offsets_of(four_segments, "n110 n190", 0, 1 << 60, True)[1].skipped_bytes == first_bytes + 2 * size_bytes, "no block has both"
    found, scan = offsets_of(four_segments, "of1", 130_000, 140_000, True)
    assert found == list(range(130, 140)) and scan.skipped_bytes > size_bytes, "the other blocks behind the time range, too"


def test_a_word_that_a_summary_lost_would_be_missed(four_segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation that the comparison of searches has to notice."""
    lost, add = token_hash(b"n150"), WordFilter.add
    monkeypatch.setattr(WordFilter, "add", lambda words, hashed: add(words, hashed[hashed != np.uint64(lost)]))
    summarize(four_segments.directory)
    assert offsets_of(four_segments, "n150", 0, 1 << 60, False)[0] == [150]
    assert offsets_of(four_segments, "n150", 0, 1 << 60, True)[0] == []
    assert offsets_of(four_segments, "n151", 0, 1 << 60, True)[0] == [151]


def test_a_summary_of_another_file_or_a_torn_one_rules_nothing_out_and_is_made_again(four_segments: Any) -> None:
    directory = four_segments.directory
    summarize(directory)
    assert summarize(directory) == [], "nothing is missing"
    first, second, third = (Path(segment_path(directory, Offset(100 * number), SUMMARY_SUFFIX)) for number in range(3))
    whole = first.read_bytes()
    first.write_bytes(whole[:100])
    second.write_bytes(whole)
    content = bytearray(third.read_bytes())
    content[-100] ^= 0xFF  # in the filter
    third.write_bytes(content)
    matches, scan = offsets_of(four_segments, "absent", 0, 1 << 60, True)
    assert matches == [] and scan.skipped_bytes == 0 and scan.lacks_summaries and scan.has_broken_summaries
    assert len(summarize(directory)) == 2
    assert len(summarize(directory, checks_pages=True)) == 1
    _, scan = offsets_of(four_segments, "absent", 0, 1 << 60, True)
    assert scan.skipped_bytes and not scan.lacks_summaries and not scan.has_broken_summaries
    log = Path(segment_path(directory, Offset(0), ".log"))
    with log.open("r+b") as file:  # as a repair of a batch
        file.write(log.read_bytes()[:8])
    assert SegmentSummary.open(str(first), SegmentIdentity.of(log.stat())) is None


def test_summaries_of_segments_that_are_gone_and_leftovers_are_removed(four_segments: Any) -> None:
    directory = Path(four_segments.directory)
    summarize(str(directory))
    (directory / f"{100:020d}.log").unlink()
    (directory / f"{0:020d}.summary.tmp").write_bytes(b"x")
    summarize(str(directory))
    assert sorted(path.name for path in directory.glob("*.summary*")) == [f"{0:020d}.summary", f"{200:020d}.summary"]


def test_no_summary_is_made_in_the_directory_of_another_topic(four_segments: Any) -> None:
    assert summarize(four_segments.directory, topic_id=TopicId(bytes(16))) == []


def test_a_segment_with_damage_or_transactions_is_read_in_any_case(tmp_path: Path) -> None:
    good = made_of(0, [(0, None, line(0, "error"), ())])
    damaged = good[:-3] + bytes([good[-3] ^ 1]) + good[-2:]
    transaction = made_of(1, [(0, None, line(0, "error"), ())], producer_id=7) + marker(2, 7, True)
    found = partition_at(tmp_path / "p", [(0, damaged), (1, transaction), (3, made_of(3, [(0, None, b"x", ())]))], 4)
    assert len(summarize(found.directory)) == 2
    assert summarize(found.directory) == [], "it is not tried again"
    _, scan = offsets_of(found, "absent", 0, 1 << 60, True)
    assert scan.skipped_bytes == 0 and not scan.lacks_summaries


@pytest.mark.slow
def test_a_summary_stays_in_its_share_whatever_the_records_are(tmp_path: Path) -> None:
    chance = random.Random(1)
    records = [(0, None, json.dumps({"host": f"h{number}", "message": chance.randbytes(60).hex(" ", 3)}).encode(), ()) for number in range(12_000)]
    content = b"".join(made_of(start, records[start : start + 100]) for start in range(0, len(records), 100))
    found = partition_at(tmp_path / "p", [(0, content), (12_000, made_of(12_000, [(0, None, b"x", ())]))], 12_001)
    (report,) = summarize(found.directory, share_percent=2)
    assert report["read_bytes"] == len(content) and 0 < report["written_bytes"] <= len(content) // 50
    _, scan = offsets_of(found, "absent", 0, 1 << 60, True)
    assert scan.has_broken_summaries is False
    for number in range(0, 12_000, 1_500):  # in a filter of several pages, nearly full
        assert offsets_of(found, f"host=h{number}", 0, 1 << 60, True)[0] == [number]


def test_the_hash_of_many_words_is_that_of_one(tmp_path: Path) -> None:
    content = made_of(0, [(0, None, b"one Two a_b " + b"z" * 128 + b" " + b"y" * 129, ())]) + made_of(1, [(0, None, b"last", ())])
    found = partition_at(tmp_path / "p", [(0, content), (2, made_of(2, [(0, None, b"x", ())]))], 3)
    summarize(found.directory)
    path = segment_path(found.directory, Offset(0), ".log")
    summary = SegmentSummary.open(segment_path(found.directory, Offset(0), SUMMARY_SUFFIX), SegmentIdentity.of(os.stat(path)))
    assert summary is not None
    assert all(summary.blocks_with(token_hash(word)) for word in (b"one", b"two", b"TWO", b"a_b", b"z" * 128, b"last"))
    assert not any(summary.blocks_with(token_hash(word)) for word in (b"on", b"y" * 129, b"b", b"lastx"))
    summary.close()


@pytest.mark.parametrize(
    ("value", "query"),
    [
        (b'{"message":"\\u001btimeout"}', "timeout"),
        ('{"message":"\u2192timeout\u00e9"}'.encode(), "/timeout\u00e9/ timeout*"),
        (b'{"message":"\\u00e9timeout"}', "\u00e9timeout"),
        (b'{"message":"\\ntimeout"}', "timeout"),
        (b'{"message":"\\\\ntimeout"}', "ntimeout"),
        (b'{"message":"xtimeout"}', "*timeout"),
        (b'{"message":"timeouts"}', "timeout* /time(out|r)/"),
        (b'{"message":"a\\/timeout"}', '"a/timeout"'),
        (b'{"s\\u0065verity":3}', "severity<=err"),
        (b'{"t\\u006fok":13}', "took>12"),
        (b'{"severity":"ERROR","facility":"Auth"}', "severity<=err severity=err severity=3 severity!=4 facility=auth facility=4 facility<5"),
        (b'{"took":1e3}', "took=1000.0"),
        (b'{"took":-3}', "took=-3"),
        (b'{"host" : "web1"}', "host=web*"),
        (b'{"host":"a\\tb"}', "host~/a.b/"),
        (b'{"host":["web1","web2"]}', "host=web2"),
        (b'{"host":7}', "host>=7"),
        (b'{"host":"' + b"w" * 60 + b'"}', "host=ww*"),
        (b'{"app":{"host":"x"},"host":"y"}', "app.host=x host=y"),
        (b'{"host":"web1","host":"web2"}', "host=web2"),
        (b"timeout at the beginning", '"timeout at"'),
    ],
)
def test_what_json_hides_is_found(tmp_path: Path, value: bytes, query: str) -> None:
    found = partition_at(tmp_path / "p", [(0, made_of(0, [(0, None, value, ())])), (1, made_of(1, [(0, None, b"x", ())]))], 2)
    summarize(found.directory)
    assert offsets_of(found, query, 0, 1 << 60, False)[0] == [0]
    assert offsets_of(found, query, 0, 1 << 60, True)[0] == [0]


def test_times_that_descend_in_a_batch_are_found(tmp_path: Path) -> None:
    batch = made_of(0, [(time, None, line(0, "error"), ()) for time in (50, 10, 30)])
    found = partition_at(tmp_path / "p", [(0, batch), (3, made_of(3, [(0, None, b"x", ())]))], 4)
    summarize(found.directory)
    assert offsets_of(found, "error", 10, 11, True)[0] == [1]


@pytest.mark.slow
def test_what_surrounds_a_value_in_its_batch_is_no_part_of_its_words(tmp_path: Path) -> None:
    """The length before a value, and the number of headers behind it, may look like letters."""
    headers = tuple((f"h{number}", b"") for number in range(49))  # the number is written as b
    for size in range(1, 60, 3):
        value = b"first" + b"." * size + b"last"
        found = partition_at(tmp_path / str(size), [(0, made_of(0, [(0, b"key", value, headers)])), (1, made_of(1, [(0, None, b"x", ())]))], 2)
        summarize(found.directory)
        assert offsets_of(found, "key", 0, 1 << 60, True)[1].skipped_bytes > 0
        assert offsets_of(found, "first", 0, 1 << 60, True)[0] == offsets_of(found, "last", 0, 1 << 60, True)[0] == [0]


def test_a_disk_that_is_nearly_full_gets_no_summary_and_one_that_fails_is_named(four_segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(summarizer.file_io, "space", lambda _path: summarizer.file_io.Space(1_000, 49))
        assert summarize(four_segments.directory) == []

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(summarizer.file_io, "sync_data", fail)
        reports = summarize(four_segments.directory)
    assert [set(each) for each in reports] == [{"problem"}] * 3 and "00200.log: input/output error" in str(reports[0])
    assert len(summarize(four_segments.directory)) == 3 and not list(Path(four_segments.directory).glob("*.tmp"))


def test_a_partition_that_cannot_be_identified_keeps_no_other_from_its_summaries(four_segments: Any, tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text("no metadata")
    reports = summarize(str(tmp_path), four_segments.directory)
    assert str(tmp_path) in str(reports[0]["problem"]) and len(reports) == 4
    assert len(list(Path(four_segments.directory).glob("*.summary"))) == 3


def test_a_segment_that_needs_too_much_memory_is_read_in_any_case(four_segments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(WordFilter, "add", fail)
        summarize(four_segments.directory)
    assert summarize(four_segments.directory) == [], "it is not tried again"
    _, scan = offsets_of(four_segments, "absent", 0, 1 << 60, True)
    assert scan.skipped_bytes == 0 and not scan.lacks_summaries


def with_records(*records: bytes) -> bytes:
    """Return a batch whose checksum is right, of records as any producer may write them."""
    body = b"".join(encode_varint(len(record)) + record for record in records)
    header = bytearray(made_of(0, [(0, None, b"x", ()) for _ in records])[:RECORDS_AT])
    header[8:12] = (RECORDS_AT + len(body) - 12).to_bytes(4, "big")
    return stamped(bytes(header) + body, 0)


def fields_of(key_bytes: int, value_bytes: int, rest: bytes) -> bytes:
    return b"\0" * 3 + encode_varint(key_bytes) + encode_varint(value_bytes) + rest


@pytest.mark.parametrize(
    "batch",
    [
        with_records(fields_of(-1, 9, b"a\0"), fields_of(-1, 3, b"bcdefgh\0")),
        with_records(fields_of((1 << 63) - 1, 1, b"a\0")),
        with_records(fields_of(-1, (1 << 63) - 1, b"a\0")),
        with_records(fields_of(-(1 << 63), -(1 << 63), b"a\0")),
        stamped(made_of(0, [(0, None, b"x", ())]), 0, attributes=7),
    ],
    ids=["a value that reaches into the next record", "a long key", "a long value", "negative ones", "an unknown codec"],
)
def test_a_hostile_batch_keeps_no_other_segment_from_its_summary(tmp_path: Path, four_segments: Any, batch: bytes) -> None:
    found = partition_at(tmp_path / "hostile", [(0, batch), (2, made_of(2, [(0, None, b"x", ())]))], 3)
    assert not [report for report in summarize(found.directory, four_segments.directory) if "problem" in report]
    assert len(list(Path(four_segments.directory).glob("*.summary"))) == 3
    path = segment_path(found.directory, Offset(0), ".log")
    header = read_header_of(segment_path(found.directory, Offset(0), SUMMARY_SUFFIX))
    assert header.problem and header.identity == SegmentIdentity.of(os.stat(path))


def read_header_of(path: str) -> SummaryHeader:
    with open(path, "rb") as file:
        found = read_header(file.fileno())
    assert found is not None
    return found[0]
