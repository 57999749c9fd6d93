from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from lab.pretended_box import PretendedBox
from lab.scratch_layout import scratch_layout


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def box(layout: BoxLayout, clock: ManualClock) -> Iterator[PretendedBox]:
    """Two disks; topic `logs` with four partitions, topic `quiet` with one."""
    made = PretendedBox(layout, clock, topics={"logs": 4, "quiet": 1})
    yield made
    made.close()
