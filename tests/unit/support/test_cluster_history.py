"""The judge of what a cluster made of its clients' records finds each kind of fault, and nothing where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from appliance.records.builder import BatchBuilder
from lab.cluster_history import (
    ABORTED,
    ABORTED_READ,
    ACKNOWLEDGED,
    COMMITTED,
    DUPLICATE,
    END_WENT_BACK,
    INCONSISTENT_OFFSET,
    INTERMEDIATE_READ,
    INVENTED,
    LOST,
    LOST_COMMIT,
    NON_MONOTONIC_POLL,
    OUT_OF_ORDER,
    REFUSED,
    SKIPPED_POLL,
    STALE_END,
    TORN,
    UNKNOWN,
    EndAnswer,
    Sent,
    TimedRead,
    acknowledged_findings,
    end_findings,
    group_findings,
    premature_findings,
    reader_findings,
    skipped_findings,
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


def test_a_reader_that_leaves_a_record_out_is_found_and_one_that_is_not_at_the_end_yet_is_good() -> None:
    final = {0: [(0, "p:0"), (2, "p:1"), (3, "p:2")]}
    assert skipped_findings(final, {0: final[0][:2]}) == []
    assert [finding.kind for finding in skipped_findings(final, {0: [(0, "p:0"), (3, "p:2")]})] == [SKIPPED_POLL]
    assert [finding.kind for finding in skipped_findings(final, {0: [(2, "p:1")]})] == [SKIPPED_POLL]


@pytest.mark.parametrize(
    ("value", "at", "kinds"),
    [
        ("t:0", 11.0, []),
        ("t:0", 9.0, [INTERMEDIATE_READ]),
        ("t:2", 11.0, [ABORTED_READ]),
        ("t:3", 11.0, [ABORTED_READ]),  # its commit was never asked for
        ("t:9", 11.0, [INVENTED]),
    ],
)
def test_a_reader_of_committed_records_gets_none_that_is_aborted_or_not_yet_committed(value: str, at: float, kinds: list[str]) -> None:
    found = premature_findings(TRANSACTIONAL, FATES, {0: 10.0, 1: 10.0}, [TimedRead(0, value, at)])
    assert [finding.kind for finding in found] == kinds


LOG = {0: [(0, "p:0"), (1, "p:1"), (3, "p:2"), (4, "p:3")]}


def member(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"at": 10 * number, **event} for number, event in enumerate(({"event": "start"}, *events))]


def assigned(position: int, asked_at: int) -> dict[str, Any]:
    return {"event": "assign", "positions": {0: position}, "asked_at": asked_at}


def polled(*offsets: int) -> dict[str, Any]:
    return {"event": "poll", "offsets": {0: list(offsets)}}


def committing(end: int) -> list[dict[str, Any]]:
    return [{"event": name, "ends": {0: end}} for name in ("commit", "committed")]


@pytest.mark.parametrize(
    ("events", "kinds"),
    [
        ((assigned(0, 1), polled(0, 1), *committing(2), assigned(2, 45), polled(3), *committing(4)), []),
        ((assigned(0, 1), polled(0, 1), *committing(2), assigned(0, 35), polled(0, 1)), []),  # asked before the commit was answered
        ((assigned(0, 1), polled(0, 1), *committing(2), assigned(0, 45), polled(0, 1)), [LOST_COMMIT]),
        ((assigned(0, 1), polled(0), assigned(2, 25), polled(3)), [LOST_COMMIT]),
        ((assigned(0, 1), polled(0, 3)), [SKIPPED_POLL]),
        ((assigned(0, 1), polled(1)), [SKIPPED_POLL]),
        ((assigned(0, 1), polled(0, 1, 1)), [NON_MONOTONIC_POLL]),
        ((assigned(0, 1), polled(0), {"event": "revoke"}, polled(1)), [NON_MONOTONIC_POLL]),
        ((assigned(0, 1), polled(0), *committing(4)), [SKIPPED_POLL]),
    ],
)
def test_each_fault_of_a_group_is_found(events: tuple[dict[str, Any], ...], kinds: list[str]) -> None:
    assert [finding.kind for finding in group_findings(LOG, [member(*events)])] == kinds


def test_what_one_member_has_read_the_other_may_commit_behind() -> None:
    other = [{"at": 1_000, "event": "start"}, {"at": 1_001, **assigned(2, 1_000)}, {"at": 1_002, **polled(3, 4)}]
    assert group_findings(LOG, [member(assigned(0, 1), polled(0, 1), *committing(2)), other]) == []


@pytest.mark.parametrize(
    ("answers", "kinds"),
    [
        ([(1.5, 4), (3.0, 6)], []),
        ([(1.5, 6), (1.6, 3)], []),  # asked a leader that was replaced, before all was mended
        ([(1.5, 7), (3.0, 6)], [END_WENT_BACK]),
        ([(3.0, 5)], [STALE_END]),
    ],
)
def test_an_end_offset_neither_goes_back_nor_is_below_what_was_acknowledged(answers: list[tuple[float, int]], kinds: list[str]) -> None:
    told = [EndAnswer(0, asked_at, end) for asked_at, end in answers]
    assert [finding.kind for finding in end_findings({0: [(1.0, 3), (2.0, 5), (4.0, 9)]}, told, 2.5)] == kinds


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
