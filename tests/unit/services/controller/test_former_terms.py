"""What a box was ordered to do as controller, and had not done when another took that role, is not done when it has the role again."""

from __future__ import annotations

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.placement import TopicGrowth
from appliance.cluster.znodes import CONTROLLER
from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.protocol import config_apis
from appliance.protocol.config_apis import ConfigToAlter, IncrementalAlterConfigsRequest, ResourceToAlter
from services.controller.admin.waiting_requests import Result
from services.controller.zookeeper.config_changes import SET
from services.controller.zookeeper.requests import Delete
from tests.support.stepped_cluster import SteppedCluster
from tests.support.stepped_controller import SteppedBox

pytestmark = pytest.mark.slow

TOPIC = 2


def _is_frozen(cluster: SteppedCluster) -> SteppedBox:
    """Box 1, which is controller, stands still from now on, and its session ends; another box is controller."""
    former = cluster.boxes.pop(1)
    assert former.agent is not None and former.agent.cluster.fence is not None
    cluster.zookeeper.end_session(former.agent.session.session_id)
    cluster.until_quiet()
    return former


def _is_controller_again(cluster: SteppedCluster, former: SteppedBox) -> None:
    """Box 1 wakes, and is quicker than the others when the role is free again; their sessions live on."""
    cluster.boxes[1] = former
    assert former.agent is not None
    former.agent.session.expire()
    cluster.until_quiet()
    others = {broker_id: cluster.boxes.pop(broker_id) for broker_id in list(cluster.boxes) if broker_id != 1}
    cluster.zookeeper.write(Delete(CONTROLLER))
    cluster.until(lambda: former in cluster.controllers(), "box 1 is controller again")
    cluster.boxes.update(others)
    cluster.until_quiet()


def test_a_topic_that_was_made_anew_is_not_deleted_by_the_order_for_its_predecessor(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    three.delete("t", wait=False)
    three.until(lambda: "/admin/delete_topics/t" in three.zookeeper, "ordered")
    former = _is_frozen(three)
    three.until(lambda: "/brokers/topics/t" not in three.zookeeper, "another has deleted it")
    three.create("t", (2, 3))
    _is_controller_again(three, former)
    three.pass_ms(700)
    assert "/brokers/topics/t" in three.zookeeper and three.boxes[2].on_disks("t")


def test_a_topic_that_was_made_and_deleted_by_others_does_not_come_back(three: SteppedCluster) -> None:
    three.create("t", (1, 2), wait=False)
    agent = three.boxes[1].agent
    assert agent is not None
    three.until(lambda: "t" in agent._administration.topics.creating, "taken")
    former = _is_frozen(three)
    assert "/brokers/topics/t" not in three.zookeeper
    three.create("t", (2, 3))
    three.delete("t")
    _is_controller_again(three, former)
    three.pass_ms(700)
    assert "/brokers/topics/t" not in three.zookeeper


def test_unwritten_growth_and_reassignment_are_dropped_and_their_clients_get_an_error(three: SteppedCluster) -> None:
    three.create("grown", (2, 3))
    three.create("moved", (2, 3))
    told: list[Result] = []
    administration = three.boxes[1].agent._administration  # type: ignore[union-attr]
    partitions = administration.partitions
    partitions.grow(TopicGrowth("grown", 3), False, partitions.placed_replicas(), told.append)
    administration.reassignments.order("moved", {0: (3, 1)}, lambda _partition, result: told.append(result))
    _is_controller_again(three, _is_frozen(three))
    three.pass_ms(700)
    topics = three.controller().agent.cluster.topics  # type: ignore[union-attr]
    assert topics["grown"].replicas == {0: (2, 3)} and topics["moved"].replicas == {0: (2, 3)}
    assert [result.code for result in told] == [ErrorCode.NOT_CONTROLLER] * 2


def test_an_unclean_election_of_a_former_term_loses_nothing_later(three: SteppedCluster) -> None:
    three.create("t", (2, 3))
    three.wish(2, "t", 0, (2,))
    three.until_quiet()
    three.kill(2)
    three.until(lambda: three.state("t").leader == -1, "no replica leads")
    told: list[Result] = []
    three.boxes[1].agent._administration.elections.elect([("t", 0)], True, lambda _partition, result: told.append(result))  # type: ignore[union-attr]
    former = _is_frozen(three)
    three.start(2)
    three.until(lambda: three.state("t").leader == 2, "it is back with all that was acknowledged")
    three.until_quiet()
    three.kill(2)
    _is_controller_again(three, former)
    three.pass_ms(700)
    assert (three.state("t").leader, three.state("t").isr) == (-1, (2,)), "no order for box 3 is left"
    assert [result.code for result in told] == [ErrorCode.NOT_CONTROLLER]


def test_an_order_survives_an_expired_session_if_no_other_box_becomes_controller(three: SteppedCluster) -> None:
    three.kill(2)
    three.kill(3)
    three.until_quiet()
    box = three.boxes[1]
    three.create("t", (1,), wait=False)
    three.until(lambda: "t" in box.agent._administration.topics.creating, "taken")  # type: ignore[union-attr]
    box.agent.session.expire()  # type: ignore[union-attr]
    three.until(lambda: box.frames, "it is created")
    assert "/brokers/topics/t" in three.zookeeper


def test_a_config_whose_client_received_a_time_out_does_not_overwrite_a_later_one(three: SteppedCluster) -> None:
    """A retention that was reverted while the box was cut off deletes records."""
    three.create("t", (1, 2, 3))
    cut_off = three.boxes[2]
    _send_retention(cut_off, "1000")
    three.until(lambda: cut_off.agent._administration.configs._pending, "taken")  # type: ignore[union-attr]
    cut_off.agent.session.lose_connection()  # type: ignore[union-attr]
    three.until(lambda: cut_off.frames, "its client receives a time-out")
    _send_retention(three.boxes[1], "604800000")
    three.until(lambda: three.boxes[1].frames, "set by way of another box")
    cut_off.agent.session.connect()  # type: ignore[union-attr]
    three.until_quiet()
    assert [box.image().topics["t"].config["retention.ms"] for box in three.boxes.values()] == ["604800000"] * 3


def _send_retention(box: SteppedBox, value: str) -> None:
    change = (ResourceToAlter(TOPIC, "t", (ConfigToAlter("retention.ms", SET, value),)),)
    body = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(1, IncrementalAlterConfigsRequest(change, False))
    box.send(KAFKA_REQUEST, pack_kafka_request(44, 1, "test", "::1", body))
