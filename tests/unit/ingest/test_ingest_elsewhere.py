"""A syslog topic whose partitions other boxes lead, some or all: lines go where this box leads, and wait where it leads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.records.key_hash import partition_of_key
from tests.unit.ingest.stepped_ingest import SteppedIngest

PARTITIONS = 4
HOSTS = [next(f"h{number}" for number in range(999) if partition_of_key(b"h%d" % number, PARTITIONS) == partition) for partition in range(PARTITIONS)]
"""A host for each partition."""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SteppedIngest]:
    made = SteppedIngest(tmp_path, partitions=PARTITIONS)
    made.start()
    yield made
    made.close()


def lines(count: int) -> bytes:
    return b"".join(f"<13>1 2026-01-01T00:00:00Z {HOSTS[number % 4]} app - - - {number}\n".encode() for number in range(count))


def partitions_written(box: SteppedIngest) -> set[int]:
    return {partition for partition in range(PARTITIONS) if box.records_of(partition)}


def test_lines_go_to_the_partitions_that_this_box_leads(box: SteppedIngest) -> None:
    box.publish(PARTITIONS, leaders={0: 2, 3: 3})
    box.connect().sendall(lines(400))
    box.run_until(lambda: box.ledger().received == 400 and box.ledger().balances)
    assert (box.ledger().stored, box.ledger().counted) == (400, 0)
    assert box.counter("ingest.partitions_led") == 2
    assert partitions_written(box) == {1, 2}


def test_lines_that_waited_for_a_partition_go_elsewhere_when_its_leadership_does(box: SteppedIngest) -> None:
    box.kill_log_writer()
    box.connect().sendall(lines(40))
    box.run_until(lambda: box.ledger().received == 40)
    box.publish(PARTITIONS, leaders={0: 2})
    box.start_log_writer()
    box.run_until(lambda: box.ledger().stored == 40 and box.ledger().balances)
    assert partitions_written(box) == {1, 2, 3}


def test_where_nothing_is_led_lines_wait_and_go_when_something_is(box: SteppedIngest) -> None:
    box.publish(PARTITIONS, leaders=dict.fromkeys(range(PARTITIONS), 2))
    box.kill_log_writer()  # a leader elsewhere: nobody here would take them
    box.connect().sendall(lines(40))
    box.run_until(lambda: box.ledger().received == 40)
    for _ in range(20):
        box.step()
    assert (box.counter("ingest.partitions_led"), box.ledger().stored, box.ledger().counted) == (0, 0, 0)
    box.publish(PARTITIONS, leaders=dict.fromkeys(range(1, PARTITIONS), 2))
    box.start_log_writer()
    box.run_until(lambda: box.ledger().stored == 40 and box.ledger().balances)
    assert partitions_written(box) == {0}


def test_an_ingest_of_a_box_that_leads_nothing_is_ready(tmp_path: Path) -> None:
    made = SteppedIngest(tmp_path, partitions=PARTITIONS)
    try:
        made.publish(PARTITIONS, leaders=dict.fromkeys(range(PARTITIONS), 2))
        made.start_ingest()
        made.run_until(lambda: made.is_ready)
    finally:
        made.close()
