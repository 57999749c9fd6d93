from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.layout import BoxLayout
from appliance.command import box_activity
from appliance.shm.counters import Counters, read_counters
from lab.scratch_layout import scratch_layout
from services.acceptor.handlers import fetch
from services.acceptor.handlers.fetch import LABEL, TOPICS_MAX, TopicTraffic

NAME = "acceptor@0"


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


def values(layout: BoxLayout) -> dict[str, int]:
    snapshot = read_counters(layout, NAME)
    assert snapshot is not None
    return snapshot.values


def test_bytes_are_counted_by_topic(layout: BoxLayout) -> None:
    counters = Counters.create_or_adopt(layout, NAME, 1)
    traffic = TopicTraffic(counters)
    for size_bytes in (10, 20):
        traffic.add("orders", size_bytes)
    traffic.add("syslog", 5)
    assert values(layout) == {LABEL.format(topic="orders"): 30, LABEL.format(topic="syslog"): 5}
    counters.close()


def test_the_next_incarnation_continues_the_counts_within_the_same_limit(layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TOPICS_MAX", 2)
    for life in (1, 2):
        counters = Counters.create_or_adopt(layout, NAME, life)
        traffic = TopicTraffic(counters)
        for topic in ("a", "b", "c", "d"):
            traffic.add(topic, 1)
        counters.close()
    assert values(layout) == {LABEL.format(topic="a"): 2, LABEL.format(topic="b"): 2, LABEL.format(topic=""): 4}


def test_the_command_looks_for_the_labels_that_acceptors_make() -> None:
    assert box_activity.OUT_LABEL == LABEL
    assert TOPICS_MAX < 1000 // 2, "topics must leave counters to others"
