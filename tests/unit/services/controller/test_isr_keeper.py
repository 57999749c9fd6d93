"""In-sync sets that log-writers request: what becomes of a role that a log-writer refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.znodes import PartitionState, TopicAssignment, parents_first, partition_state_path
from services.controller.decisions.cluster import Cluster, DiskReport
from services.controller.isr_keeper import PendingIsrChange, apply_isr_changes
from services.controller.zookeeper.change_log import CHANGES
from services.controller.zookeeper.operation import DiskCommand, OperationOutcome, OperationRunner
from services.controller.zookeeper.requests import Create, Request, SetData
from services.controller.zookeeper.session import ZooKeeperReply
from services.controller.zookeeper.topic_registry import TopicState
from tests.support.memory_zookeeper import MemoryZooKeeper

TOPIC_ID = TopicId(bytes(range(16)))


@pytest.mark.parametrize(("partition_epoch", "isr"), [(1, (1,)), (0, (1, 2))])
def test_a_role_that_is_refused_after_a_request_for_its_in_sync_set_is_sent_again(partition_epoch: int, isr: tuple[int, ...]) -> None:
    """Also if the request itself was refused (a stale partition epoch), so that nothing else sends the role."""
    server, cluster = MemoryZooKeeper(), Cluster(1, {}, ["d0"])
    topic = TopicState("t", TOPIC_ID, TopicAssignment.new(TOPIC_ID, {0: (1, 2)}), {})
    state = PartitionState(1, 0, 1, (1, 2))
    for path in parents_first((CHANGES, partition_state_path("t", 0))):
        server.write(Create(path))
    server.write(SetData(partition_state_path("t", 0), state.encode(), -1))
    topic.set_state(0, state, 1)
    topic.placement = {0: "d0"}
    cluster.topics["t"] = topic
    report = cluster.reports["d0"] = DiskReport("d0", "d0", 1, False, {("t", 0): str(TOPIC_ID)})
    session = server.session("", 0, None, lambda _state: None, lambda _path: None)
    sent: list[DiskCommand] = []

    def ask(request: Request, on_reply: Callable[[Any], None]) -> None:
        on_reply(ZooKeeperReply(server.carry_out(request, session), None))

    def refuse(command: DiskCommand, on_done: Callable[[Any], None]) -> None:
        sent.append(command)
        on_done(ErrorCode.FENCED_LEADER_EPOCH)

    ended: list[OperationOutcome] = []
    runner = OperationRunner(ask, refuse, lambda on_done: on_done(None), lambda _ms, on_done: on_done(None))
    runner.start("isr", apply_isr_changes(cluster, report, [PendingIsrChange("t", 0, str(TOPIC_ID), 0, partition_epoch, (1,), {}, 7)]), ended.append)
    session.close()
    assert [outcome.failure for outcome in ended] == [None] and len(sent) == 1
    assert topic.states[0].isr == isr and ("t", 0) not in report.confirmed
    assert cluster.roles_to_send == {("t", 0)}
