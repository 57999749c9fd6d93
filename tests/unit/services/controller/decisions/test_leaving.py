"""A box that is about to stop: what it leads goes first, a part at a time; the next part waits for our log-writers, and gives the others their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.cluster.znodes import BoxRecord, BrokerRegistration, PartitionState, TopicAssignment, box_path, parents_first, partition_state_path
from appliance.ipc.descriptors import DescriptorKind
from services.controller.decisions.cluster import Cluster, DiskReport
from services.controller.decisions.leader_operations import HANDED_OVER_AT_ONCE, LEAVING_MS, OTHERS_NEED, PAUSE_MS_MAX, PAUSES_MS_MAX, controlled_shutdown
from services.controller.decisions.role_operations import role_of
from services.controller.zookeeper.change_log import CHANGES
from services.controller.zookeeper.operation import DiskCommand, OperationOutcome, OperationRunner
from services.controller.zookeeper.requests import Create, Multi, Request, SetData
from services.controller.zookeeper.session import ZooKeeperReply
from services.controller.zookeeper.topic_registry import TopicState
from tests.support.memory_zookeeper import MemoryZooKeeper

TOPIC_ID = TopicId(bytes(range(16)))
OWN, OTHER = 1, 2


class Leaving:
    """Box 1 leads every third of `count` partitions, box 2 the others. What is written and ordered stands in `steps`, in order."""

    def __init__(self, count: int) -> None:
        self.server = MemoryZooKeeper()
        self.cluster = cluster = Cluster(OWN, {}, ["d0"])
        self.topic = topic = TopicState("t", TOPIC_ID, TopicAssignment.new(TOPIC_ID, dict.fromkeys(range(count), (OWN, OTHER))), {})
        for path in parents_first((CHANGES, box_path(OWN), *(partition_state_path("t", number) for number in range(count)))):
            self.server.write(Create(path))
        self.server.write(SetData(box_path(OWN), BoxRecord("b", {}).encode(), -1))
        for number in range(count):
            state = PartitionState(OWN if number % 3 == 0 else OTHER, 0, 1, (OWN, OTHER))
            self.server.write(SetData(partition_state_path("t", number), state.encode(), -1))
            topic.set_state(number, state, 1)
            topic.placement[number] = "d0"
        cluster.topics["t"] = topic
        cluster.brokers = {broker_id: BrokerRegistration(broker_id, (), {}, None, 0) for broker_id in (OWN, OTHER)}
        report = DiskReport("d0", "d0", 1, False, {("t", number): str(TOPIC_ID) for number in range(count)})
        report.confirmed = {("t", number): role for number in range(count) if (role := role_of(cluster, topic, number)) is not None}
        cluster.add_report(report)
        self.steps: list[tuple[str, list[int]]] = []
        self.commands: list[Callable[[Any], None]] = []
        self.given_away: list[int] = []
        self.ended: list[OperationOutcome] = []
        self._session = self.server.session("", 0, None, lambda _state: None, lambda _path: None)
        self.now_ms = 0
        self.pauses: list[tuple[int, Callable[[None], None]]] = []
        runner = OperationRunner(self._ask, self._command, lambda on_done: on_done(None), lambda ms, on_done: self.pauses.append((ms, on_done)))
        runner.start("leave", controlled_shutdown(cluster, self.given_away.append, lambda: self.now_ms), self.ended.append)

    def _ask(self, request: Request, on_reply: Callable[[Any], None]) -> None:
        if isinstance(request, Multi):
            numbers = [int(write.path.split("/")[-2]) for write in request.writes if write.path.endswith("/state")]
            if numbers:
                self.steps.append(("written", numbers))
        on_reply(ZooKeeperReply(self.server.carry_out(request, self._session), None))

    def _command(self, command: DiskCommand, on_done: Callable[[Any], None]) -> None:
        assert command.kind == DescriptorKind.BECOME_FOLLOWER
        if self.steps[-1][0] != "told":
            self.steps.append(("told", []))
        self.steps[-1][1].append(command.payload["partition"])
        self.commands.append(on_done)

    def log_writers_answer(self, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        commands, self.commands = self.commands, []
        for on_done in commands:
            on_done(ErrorCode.NONE)

    def go_on(self) -> int:
        """The pause is over; how long it was."""
        ((duration_ms, on_done),) = self.pauses
        self.pauses.clear()
        self.now_ms += duration_ms
        on_done(None)
        return duration_ms


def test_what_it_leads_goes_a_part_at_a_time_and_before_what_it_follows() -> None:
    count = 3 * (2 * HANDED_OVER_AT_ONCE + 1)
    leaving = Leaving(count)
    led = list(range(0, count, 3))
    parts = [led[:HANDED_OVER_AT_ONCE], led[HANDED_OVER_AT_ONCE : 2 * HANDED_OVER_AT_ONCE], led[2 * HANDED_OVER_AT_ONCE :]]
    for turn, part in enumerate(parts):
        assert leaving.steps == [(what, each) for each in parts[: turn + 1] for what in ("written", "told")], "the next part waits for our log-writers"
        assert part and not leaving.ended
        assert leaving.given_away == [len(each) for each in parts[: turn + 1]], "the progress of the shutdown is visible"
        leaving.log_writers_answer(after_ms=70)
        if turn < 2:
            assert len(leaving.steps) == 2 * turn + 2 and leaving.go_on() == OTHERS_NEED * 70, "the others have their time for it"
    assert not leaving.pauses, "no pause follows the last part"
    assert leaving.ended and leaving.ended[0].value == count
    followed = [number for what, numbers in leaving.steps[6:] if what == "written" for number in numbers]
    assert followed == [number for number in range(count) if number % 3], "in sync with others, it leaves their sets at last"
    assert all(state == PartitionState(OTHER, state.leader_epoch, 1, (OTHER,)) for state in leaving.topic.states.values())


def test_all_pauses_together_are_bounded() -> None:
    parts = 10
    leaving = Leaving(3 * parts * HANDED_OVER_AT_ONCE)
    for _ in range(parts - 1):
        leaving.log_writers_answer(after_ms=150)
        assert leaving.go_on() == PAUSES_MS_MAX // parts
    leaving.log_writers_answer()
    assert leaving.ended


def test_a_part_that_takes_long_is_not_followed_by_as_long_a_pause() -> None:
    """Without it the controlled shutdown would show no progress for so long that the stop times
    out.
    """
    leaving = Leaving(3 * 2 * HANDED_OVER_AT_ONCE)
    leaving.log_writers_answer(after_ms=1_000)
    assert leaving.go_on() == PAUSE_MS_MAX


def test_a_stop_that_would_take_too_long_has_no_pauses() -> None:
    parts = 12
    leaving = Leaving(3 * parts * HANDED_OVER_AT_ONCE)
    paused_ms = 0
    for _ in range(parts):
        leaving.log_writers_answer(after_ms=400)
        paused_ms += leaving.go_on() if leaving.pauses else 0
    assert leaving.ended and paused_ms < LEAVING_MS - parts * 400
