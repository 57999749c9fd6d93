"""The model divides capacities by needs, and the tightest part comes first."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.beside_kafka.contenders import OURS
from loadtest.beside_kafka.parts import PARTS, rows_of
from loadtest.model import CONSUME, LOADS, Assumed, consume_cpu, details_of, limits, page

CPU = {"acceptor": 2.0, "replica-fetcher": 4.0, "log-writer": 3.0, "controller": 0.5, "zookeeper": 9.0}


def document(*rounds: dict[str, float], load: str = LOADS[0]) -> dict[str, Any]:
    return {"benchmark": "beside_kafka", "rows": {load: {OURS: [1.0]}}, "details": {OURS: list(rounds), "Kafka 3.9": [{"kafka": 40.0}]}}


def test_what_it_reads_is_recorded_under_these_names() -> None:
    names = {row.name for part in PARTS.values() for row in rows_of(part)}
    assert names.issuperset({*LOADS, CONSUME})


def test_the_latest_run_counts_and_its_median() -> None:
    runs = [document({"acceptor": 9.0}), document({"acceptor": 1.0}, {"acceptor": 3.0}, {"acceptor": 2.0}), document({"acceptor": 7.0}, load=LOADS[1])]
    assert details_of(runs, LOADS[0]) == {"acceptor": 2.0}
    assert details_of(runs[:0], LOADS[0]) == {}


def test_a_consumers_cost_is_that_of_the_latest_run() -> None:
    runs = [{"benchmark": "beside_kafka", "rows": {CONSUME: {OURS: [value, value + 1, value + 2]}}} for value in (5.0, 0.5)]
    assert consume_cpu(runs) == 1.5 and consume_cpu([]) == 0.0


def test_every_part_has_its_rate_and_the_tightest_is_first() -> None:
    given = Assumed(disks=6, cores=16, network=1.2, hard_disk=0.15, solid_disk=0.5, reads=1.0)
    rates = {limit.part: limit.gigabytes_a_second for limit in limits(CPU, 0.5, given)}
    assert rates["network, in"] == pytest.approx(0.4) and rates["network, out"] == pytest.approx(0.4)
    assert rates["6 hard disks"] == pytest.approx(0.3) and rates["6 solid-state disks"] == pytest.approx(1.0)
    assert rates["acceptor, one core"] == pytest.approx(1 / 2.5) and rates["replica-fetcher, one core"] == 0.25
    assert rates["6 log-writers, a core each"] == 2.0
    assert rates["all processes on 16 cores"] == pytest.approx(16 / 10.0), "ZooKeeper is not in it, consuming is"
    assert next(iter(rates)) == "replica-fetcher, one core" and list(rates.values()) == sorted(rates.values())


def test_the_page_says_what_saturates_first_and_what_is_assumed() -> None:
    said = page([document(CPU)])
    assert "First to saturate: **replica-fetcher, one core, at 250 MB/s a box**" in said
    assert "| replica-fetcher, one core | 4.00 cpu-s | 250 | 750 |" in said
    assert "Assumed:" in said and "## Records of 100 B" not in said
