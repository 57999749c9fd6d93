"""Consume, transform, produce through three boxes while whole boxes are killed: group and transaction coordinators, leaders of source and target, the cluster's
controller, one after the other. Every record is there once. `MILLRACE_SEED` repeats a run.
"""

from __future__ import annotations

import faulthandler
import os
import random
from pathlib import Path

import pytest

from lab.copy_history import faults
from lab.copy_run import SETTINGS, CopyPlan, run_copy
from lab.three_boxes import ThreeBoxes, ThreeBoxesProcesses

pytestmark = [pytest.mark.system, pytest.mark.slow]


def _seed() -> int:
    return int(os.environ.get("MILLRACE_SEED", "0")) or random.SystemRandom().randrange(1 << 30)


def _check(directory: Path, plan: CopyPlan, seed: int, kind: type[ThreeBoxes] = ThreeBoxes) -> None:
    print(f"seed {seed}")
    faulthandler.cancel_dump_traceback_later()  # the plan has a limit of its own
    boxes = kind(directory, SETTINGS)
    try:
        outcome = run_copy(boxes, plan, seed)
        print(f"{plan.records} records, {outcome.transactions} commits, killed {outcome.killed} in {outcome.seconds:.1f} s")
        wrong = faults(plan.mode, outcome.found)
        assert wrong == [], f"seed {seed}: {len(wrong)} findings, {wrong[:20]}; killed {outcome.killed}\n{boxes.messages}"
    finally:
        boxes.close()


def test_a_copy_in_transactions_has_every_record_once_whichever_box_dies(tmp_path: Path) -> None:
    _check(tmp_path, CopyPlan("exactly-once", records=2_000, batch=100, deaths=1, pause_seconds=(0.5, 2.0), seconds=90), _seed())


@pytest.mark.deep
@pytest.mark.parametrize("run", range(5))
def test_thirty_thousand_records_are_copied_once_each_over_many_deaths_of_boxes(tmp_path: Path, run: int) -> None:
    _check(tmp_path, CopyPlan("exactly-once", records=30_000, batch=250, deaths=15, pause_seconds=(0.5, 6.0), seconds=400), _seed() + run)


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("client", ["librdkafka", "kafka-python", "aiokafka"])
def test_no_acknowledged_commit_is_lost_whichever_process_of_a_box_dies(tmp_path: Path, client: str, mode: str) -> None:
    plan = CopyPlan(mode, records=12_000, batch=25, deaths=34, pause_seconds=(0.2, 2.0), seconds=240, client=client)
    _check(tmp_path, plan, _seed(), ThreeBoxesProcesses)
