"""A stop waits for the controller as long as that gives something away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.runtime.children import CONTROLLER, GIVEN_AWAY, LEAVE_NS_MAX, STILL_NS, ShutdownProgress
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


def test_one_that_gives_nothing_away_is_waited_for_three_seconds(layout: BoxLayout) -> None:
    leaving = ShutdownProgress(layout)
    assert not leaving.is_given_up(1) and not leaving.is_given_up(STILL_NS)
    assert leaving.is_given_up(1 + STILL_NS)


def test_one_that_gets_on_is_waited_for_but_not_for_ever(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, CONTROLLER, 1)
    given_away = counters.counter(GIVEN_AWAY)
    given_away.add(700)  # of an earlier stop
    leaving, now_ns = ShutdownProgress(layout), 1
    while now_ns < LEAVE_NS_MAX:
        given_away.add(100)
        assert not leaving.is_given_up(now_ns)
        now_ns += STILL_NS - 1
    assert leaving.is_given_up(1 + LEAVE_NS_MAX)
    counters.close()


def test_it_has_left_when_it_says_so(layout: BoxLayout) -> None:
    leaving = ShutdownProgress(layout)
    assert not leaving.has_left()
    Path(layout.left_file).touch()
    assert leaving.has_left()
