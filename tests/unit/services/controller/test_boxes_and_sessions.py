"""Several boxes that lose their sessions, or ZooKeeper: everything registers again without a restart, and nothing needless is dropped meanwhile."""

from __future__ import annotations

import pytest

from tests.support.stepped_cluster import SteppedCluster

pytestmark = pytest.mark.slow


def test_a_box_whose_session_expires_registers_again(three: SteppedCluster) -> None:
    """KAFKA-7165: after an expiry the ephemeral node of the old session may still be there, or the new one may be, unknown to the client."""
    three.create("t", (2, 1, 3))
    agent = three.boxes[2].agent
    assert agent is not None
    old_epoch = agent.cluster.broker_epochs[2]
    agent.session.expire()
    three.until_quiet()
    assert agent.cluster.broker_epochs[2] > old_epoch and "/brokers/ids/2" in three.zookeeper
    assert three.state("t").leader == 1 and three.state("t").isr == (1, 3)
    assert three.writer_of(2, "t").following[("t", 0)] == (1, 1)
    three.wish(1, "t", 0, (1, 3, 2))
    three.until_quiet()
    assert three.state("t").isr == (1, 3, 2)


def test_a_registration_that_a_lost_answer_hid_is_found_to_be_ours(three: SteppedCluster) -> None:
    """KAFKA-7165, the other half: the create took place, and the connection broke before its answer."""
    session = three.boxes[2].agent.session  # type: ignore[union-attr]
    session.expire()
    three.until(lambda: "/brokers/ids/2" in three.zookeeper, "registered")
    session.lose_connection()
    session.connect()
    three.until_quiet()
    assert three.boxes[2].notifier.said == "" and three.boxes[2].agent.session.session_id == session.session_id  # type: ignore[union-attr]


def test_the_controller_whose_session_expires_stops_being_one_before_anything_else(three: SteppedCluster) -> None:
    """KAFKA-8532: the handler of an expiry and the controller's own work waited for each other."""
    agent = three.boxes[1].agent
    assert agent is not None and agent.cluster.fence is not None
    three.create("busy", (1, 2), wait=False)
    three.turn()
    agent.session.expire()
    three.until(lambda: agent.cluster.fence is None, "not controller any more")
    three.until_quiet()
    assert len(three.controllers()) == 1
    three.create("after", (1, 2, 3))


def test_a_controller_that_was_replaced_without_knowing_it_writes_nothing(three: SteppedCluster) -> None:
    """KAFKA-4229 and 5473: two controllers at a time, the old one with a stale session."""
    old = three.boxes.pop(1)  # it does not turn, as if frozen
    three.zookeeper.end_session(old.agent.session.session_id)  # type: ignore[union-attr]
    three.until_quiet()
    assert three.controller() is not old
    old.send_create_of("stale")
    for _ in range(50):
        three.clock.advance_ms(1)
        old.turn(0)
    # The server in memory takes what the session that is over sends, which is worse than a real one.
    assert [path for path in three.zookeeper.paths() if "stale" in path] == []
    three.boxes[1] = old


def test_when_all_sessions_expire_everything_registers_again_and_leads_on(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    writers = [three.writer_of(leader, "t", partition) for partition, leader in enumerate((1, 2, 3))]
    for box in three.boxes.values():
        box.agent.session.expire()  # type: ignore[union-attr]
    assert [writer.leading[("t", partition)] for partition, writer in enumerate(writers)] == [0, 0, 0]
    three.until_quiet()
    assert all(f"/brokers/ids/{broker_id}" in three.zookeeper for broker_id in (1, 2, 3))
    assert [three.state("t", partition)[:2] for partition in range(3)] == [(1, 0), (2, 0), (3, 0)], "all boxes were awaited"
    assert all(len(three.state("t", partition).isr) == 3 for partition in range(3))


def test_while_zookeeper_is_away_for_a_minute_rows_and_images_stand(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3), (2, 3, 1))
    images = {broker_id: box.image().generation for broker_id, box in three.boxes.items()}
    three.zookeeper.is_reachable = False
    for box in three.boxes.values():
        box.agent.session.lose_connection()  # type: ignore[union-attr]
    three.pass_ms(5000)
    assert {broker_id: box.image().generation for broker_id, box in three.boxes.items()} == images
    assert three.leads(1, "t", 0) == 0 and three.leads(2, "t", 1) == 0
    three.wish(1, "t", 0, (1, 2))
    three.pass_ms(100)
    three.zookeeper.is_reachable = True
    for box in three.boxes.values():
        box.agent.session.connect()  # type: ignore[union-attr]
    three.until_quiet()
    assert three.state("t").isr == (1, 2), "the pending ISR change of the leader is applied"
    assert three.state("t", 1)[:2] == (2, 0)


@pytest.mark.parametrize("carried_out", [True, False], ids=["it-was-written", "it-was-not"])
def test_an_isr_change_with_a_lost_reply_is_written_again_before_its_answer(three: SteppedCluster, carried_out: bool) -> None:
    three.create("t", (1, 2, 3))
    three.wish(1, "t", 0, (1, 2))
    three.until_quiet()
    version = three.zookeeper.version("/brokers/topics/t/partitions/0/state")
    session = three.boxes[1].agent.session  # type: ignore[union-attr]
    three.wish(1, "t", 0, (1, 2, 3))
    three.boxes[1].agent.do_work()  # type: ignore[union-attr]
    session.lose_connection(carried_out)
    session.connect()
    three.until_quiet()
    state, now = three.state("t"), three.zookeeper.version("/brokers/topics/t/partitions/0/state")
    assert state.isr == ((1, 2, 3) if carried_out else (1, 2))
    assert now > version, "whatever was under way under the old version comes to nothing"
    told = three.writer_of(1, "t").commands[-1][1]
    assert (told["isr"], told["partition_epoch"]) == (list(state.isr), now) and "change" not in told
