"""The judge of copies (`lab/copy_history.py`) sees each kind of fault, and nothing where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from lab.copy_history import (
    ABORTED_READ,
    DUPLICATE,
    INCONSISTENT_OFFSET,
    LOST,
    NON_MONOTONIC_POLL,
    OUT_OF_ORDER,
    CopiedRecord,
    faults,
    findings,
)

ENDS = {0: 4}


def _copied(*numbers: int, transaction: str = "t1") -> dict[int, list[CopiedRecord]]:
    return {0: [CopiedRecord(number, transaction) for number in numbers]}


def _history(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"at": at, **event} for at, event in enumerate(events)]


GOOD = _history(
    {"event": "start"},
    {"event": "assign", "positions": {"0": 0}, "asked_at": 1},
    {"event": "poll", "offsets": {"0": [0, 1]}},
    {"event": "commit", "ends": {"0": 2}},
    {"event": "committed", "ends": {"0": 2}},
    {"event": "poll", "offsets": {"0": [2, 3]}},
    {"event": "aborted", "transaction": "t9"},
    {"event": "rewind", "positions": {"0": 2}},
    {"event": "poll", "offsets": {"0": [2, 3]}},
    {"event": "commit", "ends": {"0": 4}},
    {"event": "committed", "ends": {"0": 4}},
)


def _kinds(copied: dict[int, list[CopiedRecord]], history: list[dict[str, Any]] = GOOD, committed: int = 4) -> set[str]:
    return {finding.kind for finding in findings(ENDS, copied, [history], {0: committed})}


def test_a_good_copy_shows_nothing() -> None:
    assert _kinds(_copied(0, 1, 2, 3)) == set()


@pytest.mark.parametrize(
    ("copied", "kinds"),
    [
        (_copied(0, 1, 3), {LOST}),
        ({}, {LOST}),
        (_copied(0, 1, 2, 2, 3), {DUPLICATE}),
        (_copied(0, 1, 2, 3, 2), {DUPLICATE, OUT_OF_ORDER}),
        (_copied(0, 2, 1, 3), {OUT_OF_ORDER}),
        (_copied(0, 1, 2, 3, transaction="t9"), {ABORTED_READ}),
        (_copied(0, 1, 2, 3, 4), {DUPLICATE}),
    ],
)
def test_what_is_wrong_with_the_records_is_named(copied: dict[int, list[CopiedRecord]], kinds: set[str]) -> None:
    assert _kinds(copied) == kinds


@pytest.mark.parametrize("committed", [3, 5])
def test_a_group_that_does_not_stand_at_the_end_is_named(committed: int) -> None:
    assert _kinds(_copied(0, 1, 2, 3), committed=committed) == {INCONSISTENT_OFFSET}


@pytest.mark.parametrize("offsets", [[0, 2], [1, 2], [0, 0], [1, 0]])
def test_a_poll_that_goes_back_or_leaves_out_is_named(offsets: list[int]) -> None:
    history = _history({"event": "assign", "positions": {"0": 0}, "asked_at": 0}, {"event": "poll", "offsets": {"0": offsets}})
    assert _kinds(_copied(0, 1, 2, 3), history) == {NON_MONOTONIC_POLL}


@pytest.mark.parametrize(("offset", "is_wrong"), [(0, True), (2, False), (4, False), (5, True)])
def test_an_assignment_begins_between_what_was_committed_and_what_was_tried(offset: int, is_wrong: bool) -> None:
    history = _history(
        {"event": "commit", "ends": {"0": 2}},
        {"event": "committed", "ends": {"0": 2}},
        {"event": "commit", "ends": {"0": 4}},
        {"event": "assign", "positions": {"0": offset}, "asked_at": 3},
    )
    assert _kinds(_copied(0, 1, 2, 3), history) == ({INCONSISTENT_OFFSET} if is_wrong else set())


def test_each_mode_forgives_its_own() -> None:
    lost, doubled = findings(ENDS, _copied(0, 1, 2), [GOOD], {0: 4}), findings(ENDS, _copied(0, 1, 2, 3, 3), [GOOD], {0: 4})
    assert [bool(faults(mode, lost)) for mode in ("exactly-once", "at-least-once", "at-most-once")] == [True, True, False]
    assert [bool(faults(mode, doubled)) for mode in ("exactly-once", "at-least-once", "at-most-once")] == [True, False, True]
