"""The judge of what a cluster made of its clients' records finds each kind of fault, and nothing where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.records.builder import BatchBuilder
from lab.cluster_history import (
    ABORTED,
    ABORTED_READ,
    ACKNOWLEDGED,
    COMMITTED,
    DUPLICATE,
    INCONSISTENT_OFFSET,
    INVENTED,
    LOST,
    NON_MONOTONIC_POLL,
    OUT_OF_ORDER,
    REFUSED,
    TORN,
    UNKNOWN,
    Sent,
    acknowledged_findings,
    reader_findings,
    transaction_findings,
)
from lab.replica_comparison import differences, replica_directories

SENT = [Sent("p:0", 0, ACKNOWLEDGED, 0), Sent("p:1", 1, ACKNOWLEDGED, 0), Sent("p:2", 0, ACKNOWLEDGED, 1), Sent("p:4", 0, REFUSED)]
GOOD = {0: [(0, "p:0"), (1, "p:2")], 1: [(0, "p:1")]}


def test_what_was_acknowledged_and_is_there_is_good_with_or_without_what_was_given_up() -> None:
    assert acknowledged_findings(SENT, GOOD, may_double=False) == []
    assert acknowledged_findings(SENT, {**GOOD, 0: [*GOOD[0], (2, "p:4")]}, may_double=False) == []


@pytest.mark.parametrize(
    ("final", "kinds"),
    [
        ({0: [(0, "p:0")], 1: [(0, "p:1")]}, {LOST}),
        ({0: [(0, "p:0"), (1, "p:4"), (2, "p:2")], 1: [(0, "p:1")]}, {INCONSISTENT_OFFSET, OUT_OF_ORDER}),
        ({0: [(0, "p:0"), (1, "p:2"), (2, "p:2")], 1: [(0, "p:1")]}, {DUPLICATE}),
        ({0: [(0, "p:0"), (1, "p:2"), (2, "p:0")], 1: [(0, "p:1")]}, {DUPLICATE, OUT_OF_ORDER}),
        ({0: [(0, "p:0"), (1, "p:2"), (2, "p:9")], 1: [(0, "p:1")]}, {INVENTED}),
    ],
)
def test_each_fault_of_an_idempotent_producers_log_is_found(final: dict[int, list[tuple[int, str]]], kinds: set[str]) -> None:
    assert {finding.kind for finding in acknowledged_findings(SENT, final, may_double=False)} == kinds


def test_a_plain_producer_may_double_and_not_lose() -> None:
    assert acknowledged_findings(SENT, {0: [(0, "p:0"), (1, "p:2"), (2, "p:0")], 1: [(0, "p:1")]}, may_double=True) == []
    assert {finding.kind for finding in acknowledged_findings(SENT, {0: GOOD[0], 1: []}, may_double=True)} == {LOST}


TRANSACTIONAL = [
    Sent("t:0", 0, UNKNOWN, -1, 0),
    Sent("t:1", 1, UNKNOWN, -1, 0),
    Sent("t:2", 0, UNKNOWN, -1, 1),
    Sent("t:3", 0, UNKNOWN, -1, 2),
    Sent("t:4", 1, UNKNOWN, -1, 2),
]
FATES = {0: COMMITTED, 1: ABORTED, 2: UNKNOWN}


@pytest.mark.parametrize("tail", [[], [(5, "t:3")]])
def test_committed_is_there_aborted_is_not_and_the_rest_is_all_or_nothing(tail: list[tuple[int, str]]) -> None:
    committed = {0: [(0, "t:0"), *tail], 1: [(0, "t:1"), *([(4, "t:4")] if tail else [])]}
    assert transaction_findings(TRANSACTIONAL, FATES, committed) == []


@pytest.mark.parametrize(
    ("committed", "kinds"),
    [
        ({0: [(0, "t:0")], 1: []}, {LOST}),
        ({0: [(0, "t:0"), (2, "t:2")], 1: [(0, "t:1")]}, {ABORTED_READ}),
        ({0: [(0, "t:0"), (3, "t:3")], 1: [(0, "t:1")]}, {TORN}),
        ({0: [(0, "t:0"), (3, "t:0")], 1: [(0, "t:1")]}, {DUPLICATE}),
        ({0: [(0, "t:3"), (3, "t:0")], 1: [(0, "t:1"), (2, "t:4")]}, {OUT_OF_ORDER}),
    ],
)
def test_each_fault_of_a_transactional_log_is_found(committed: dict[int, list[tuple[int, str]]], kinds: set[str]) -> None:
    assert {finding.kind for finding in transaction_findings(TRANSACTIONAL, FATES, committed)} == kinds


def test_an_offset_means_one_record_to_all_readers_and_is_read_once() -> None:
    assert reader_findings([GOOD, {0: GOOD[0][:1]}, {0: GOOD[0][1:]}]) == []
    assert [finding.kind for finding in reader_findings([GOOD, {0: [(0, "p:0"), (1, "p:4")]}])] == [INCONSISTENT_OFFSET]
    assert [finding.kind for finding in reader_findings([{0: [(1, "p:2"), (1, "p:2")]}])] == [NON_MONOTONIC_POLL]


def batch(base_offset: int, *values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(1_700_000_000_000, None, value)
    return base_offset.to_bytes(8, "big") + builder.build()[8:]


def replica(directory: Path, **segments: bytes) -> Path:
    (directory / "t-0").mkdir(parents=True)
    for name, content in segments.items():
        (directory / "t-0" / f"{name.removeprefix('s'):0>20}.log").write_bytes(content)
    return directory


def test_replicas_with_the_same_batches_in_other_segments_are_equal(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", s0=batch(0, b"a", b"b") + batch(2, b"c"))
    two = replica(tmp_path / "2", s0=batch(0, b"a", b"b"), s2=batch(2, b"c") + batch(3, b"above the high watermark"))
    places = replica_directories({1: [one], 2: [tmp_path / "elsewhere", two]}, "t", 0)
    assert sorted(places) == [1, 2] and differences(places, 3) == []


def test_another_byte_and_a_missing_end_are_found(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", s0=batch(0, b"a") + batch(1, b"b"))
    other = replica(tmp_path / "2", s0=batch(0, b"a") + batch(1, b"x"))
    short = replica(tmp_path / "3", s0=batch(0, b"a"))
    assert "another batch at 1" in differences(replica_directories({1: [one], 2: [other]}, "t", 0), 2)[0]
    assert "ends at 1, below the high watermark 2" in differences(replica_directories({1: [one], 3: [short]}, "t", 0), 2)[0]


def test_what_retention_took_from_one_replica_alone_is_no_difference(tmp_path: Path) -> None:
    one = replica(tmp_path / "1", s0=batch(0, b"a"), s1=batch(1, b"b"))
    two = replica(tmp_path / "2", s1=batch(1, b"b"))
    assert differences(replica_directories({1: [one], 2: [two]}, "t", 0), 2) == []
