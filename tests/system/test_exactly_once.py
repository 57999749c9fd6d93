"""Consume, transform, produce while acceptor, coordinator, log-writers and the clients themselves are killed by chance: what each of Kafka's three promises
says of loss and of duplicates holds. `MILLRACE_SEED` repeats a run.
"""

from __future__ import annotations

import faulthandler
import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from lab.copy_history import faults
from lab.copy_run import SETTINGS, CopyPlan, OneBox, run_copy
from lab.running_box import RunningBox

pytestmark = [pytest.mark.system, pytest.mark.slow]

RUNS = 10


def _seed() -> int:
    return int(os.environ.get("MILLRACE_SEED", "0")) or random.SystemRandom().randrange(1 << 30)


def _check(start: Callable[..., RunningBox], plan: CopyPlan, seed: int) -> None:
    print(f"seed {seed}")
    faulthandler.cancel_dump_traceback_later()  # a long copy takes more than a test may; the plan has a limit of its own
    outcome = run_copy(OneBox(start(settings=SETTINGS)), plan, seed)
    kinds = Counter(finding.kind for finding in outcome.found)
    print(f"{plan.mode}: {plan.records} records, {outcome.transactions} commits, {len(outcome.killed)} deaths in {outcome.seconds:.1f} s; {dict(kinds)}")
    wrong = faults(plan.mode, outcome.found)
    assert wrong == [], f"seed {seed}: {len(wrong)} findings, {wrong[:20]}; killed {outcome.killed}"


def test_a_copy_in_transactions_has_every_record_once_whichever_process_is_killed(start: Callable[..., RunningBox]) -> None:
    _check(start, CopyPlan("exactly-once", records=6_000, batch=150, deaths=6, pause_seconds=(0.2, 1.0), seconds=60), _seed())


@pytest.mark.deep
@pytest.mark.parametrize("run", range(RUNS))
def test_a_hundred_thousand_records_are_copied_once_each(start: Callable[..., RunningBox], run: int) -> None:
    _check(start, CopyPlan("exactly-once", records=100_000, batch=750, deaths=30, pause_seconds=(0.2, 1.5), seconds=300), _seed() + run)


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["at-least-once", "at-most-once"])
def test_without_transactions_a_copy_loses_or_doubles_but_not_both(start: Callable[..., RunningBox], mode: str) -> None:
    _check(start, CopyPlan(mode, records=30_000, batch=750, deaths=18, pause_seconds=(0.2, 1.0), seconds=200), _seed())
