"""How a box follows what others change: by the change log alone, however late it looks."""

from __future__ import annotations

import pytest

from appliance.cluster.placement import TopicGrowth
from services.controller.zookeeper import change_log
from tests.support.stepped_cluster import SteppedCluster

pytestmark = pytest.mark.slow


def test_a_box_that_was_too_slow_for_the_change_log_loads_everything_anew(three: SteppedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "TIDIED_ABOVE", 3)
    monkeypatch.setattr(change_log, "KEPT", 1)
    three.create("t", (1, 2, 3))
    slow = three.boxes.pop(3)
    for isr in ((1, 2), (1, 2, 3), (1, 3), (1, 2, 3), (1, 3)):
        three.wish(1, "t", 0, isr)
        three.pass_ms(50)
    three.boxes[3] = slow
    three.until_quiet()
    assert three.image_of(3, "t").isr == (1, 3) == three.image_of(2, "t").isr


def test_every_box_follows_within_a_few_turns_and_sends_only_changes(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    follower = three.writer_of(2, "t")
    told = len(follower.commands)
    three.wish(1, "t", 0, (1, 2))
    three.until(lambda: three.boxes[3].image().topics["t"].partitions[0].isr == (1, 2), "box 3 knows")
    three.until_quiet()
    assert len(follower.commands) == told, "a follower needs no in-sync set"
    three.boxes[1].agent._membership.on_failure(RuntimeError("look anew"))  # type: ignore[union-attr]
    leader = three.writer_of(1, "t")
    told = len(leader.commands)
    three.pass_ms(1500)
    three.until_quiet()
    assert len(leader.commands) == told, "after an arrival, too"


def test_a_growing_topic_is_followed(three: SteppedCluster) -> None:
    three.create("t", (2, 3))
    box = three.controller()
    answers: list[object] = []
    assert box.agent is not None
    partitions = box.agent._administration.partitions
    partitions.grow(TopicGrowth("t", 3, ((3, 1), (1, 2))), False, partitions.placed_replicas(), answers.append)
    three.until(lambda: answers, "grown")
    three.until_quiet()
    assert [three.state("t", partition)[:4] for partition in (1, 2)] == [(3, 0, 1, (3, 1)), (1, 0, 1, (1, 2))]
    assert three.leads(3, "t", 1) == 0 and three.writer_of(2, "t", 2).following[("t", 2)] == (1, 0)
