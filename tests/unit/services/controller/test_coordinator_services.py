"""What the controller does for coordinators (`services/controller/admin/coordinator_services.py`): blocks of producer ids and offsets in ZooKeeper,
until a deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import orjson
import pytest

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.ipc.frames import Frame
from appliance.ipc.request_frames import COMMIT_LEGACY_OFFSETS, COORDINATOR_ANSWER, FETCH_LEGACY_OFFSETS, LEASE_PRODUCER_IDS
from appliance.runtime.request_server import RequestClient
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout
from services.controller.admin.coordinator_services import PRODUCER_ID_BLOCK, TIMEOUT_MS, CoordinatorServices, decode_block
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.zookeeper.operation import OperationRunner
from services.controller.zookeeper.requests import BadVersion, Create, Get, Node, NodeExists, NoNode, SetData, ZooKeeperConnectionLost

CLIENT = cast(RequestClient, object())


class ZooKeeperReply(NamedTuple):
    value: Any
    failure: Any = None


class World:
    """A tree in memory; requests wait in `asked` while `is_slow`."""

    def __init__(self, counters: Counters) -> None:
        self.now_ms = 0
        self.can_begin = True
        self.tree: dict[str, tuple[bytes, int]] = {PRODUCER_ID_BLOCK: (b"", 0)}
        self.failures: list[Exception] = []
        self.is_slow = False
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []
        self.answers: list[dict[str, Any]] = []
        runner = OperationRunner(self._ask, self._ask, lambda _done: None, lambda _ms, _done: None)
        clock, log = cast(Clock, self), cast(Logger, None)
        context = ControllerContext(Cluster(7, {}, []), runner, clock, counters, log, self.failures.append, lambda: self.can_begin)
        self.services = CoordinatorServices(context, 1_000, self._respond)

    def monotonic_ms(self) -> int:
        return self.now_ms

    def _respond(self, client: RequestClient, kind: int, token: int, payload: bytes) -> None:
        assert (client, kind, token) == (CLIENT, COORDINATOR_ANSWER, 5)
        self.answers.append(orjson.loads(payload))

    def _ask(self, request: Any, on_reply: Callable[[Any], None]) -> None:
        if self.is_slow:
            self.asked.append((request, on_reply))
        elif self.failures:
            on_reply(ZooKeeperReply(None, self.failures.pop(0)))
        else:
            on_reply(self._carry_out(request))

    def _carry_out(self, request: Any) -> ZooKeeperReply:
        known = self.tree.get(request.path)
        if isinstance(request, Create):
            if known is not None:
                return ZooKeeperReply(None, NodeExists())
            self.tree[request.path] = (request.data, 0)
            return ZooKeeperReply(request.path)
        if known is None:
            return ZooKeeperReply(None, NoNode())
        if isinstance(request, Get):
            return ZooKeeperReply(Node(*known, 1, 0))
        assert isinstance(request, SetData)
        if request.version not in (-1, known[1]):
            return ZooKeeperReply(None, BadVersion())
        self.tree[request.path] = (request.data, known[1] + 1)
        return ZooKeeperReply(known[1] + 1)

    def send(self, kind: int, document: Any = None) -> None:
        self.services.on_frame(CLIENT, Frame(kind, 5, orjson.dumps(document or {}), ()))


@pytest.fixture
def world() -> Iterator[World]:
    with scratch_layout() as layout:
        counters = Counters.create_or_adopt(layout, "controller", 1)
        yield World(counters)
        counters.close()


def test_blocks_of_producer_ids_follow_each_other_and_id_0_is_never_given(world: World) -> None:
    world.send(LEASE_PRODUCER_IDS)
    world.send(LEASE_PRODUCER_IDS)
    assert world.answers == [{"error": 0, "first": 1, "last": 999}, {"error": 0, "first": 1_000, "last": 1_999}]
    assert decode_block(world.tree[PRODUCER_ID_BLOCK][0]) == (1_000, 1_999)


def test_a_block_that_another_broker_took_meanwhile_is_not_given(world: World) -> None:
    world.is_slow = True
    world.send(LEASE_PRODUCER_IDS)
    request, on_reply = world.asked.pop()
    found = world._carry_out(request)
    world.tree[PRODUCER_ID_BLOCK] = (b'{"version":1,"broker":8,"block_start":"0","block_end":"999"}', 1)
    world.is_slow = False
    on_reply(found)
    assert world.answers == [{"error": 0, "first": 1_000, "last": 1_999}]


def test_offsets_are_written_where_kafka_0_8_wrote_them_and_read_again(world: World) -> None:
    world.send(COMMIT_LEGACY_OFFSETS, {"group": "g", "offsets": [["t", 0, 42], ["t", 1, 43]]})
    assert world.answers == [{"error": 0, "errors": [["t", 0, 0], ["t", 1, 0]]}]
    assert world.tree["/consumers/g/offsets/t/1"][0] == b"43"
    world.send(FETCH_LEGACY_OFFSETS, {"group": "g", "partitions": [["t", 0], ["t", 9]]})
    assert world.answers[-1] == {"error": 0, "offsets": [["t", 0, 42]]}


def test_all_offsets_of_a_commit_are_sent_to_zookeeper_at_the_same_time(world: World) -> None:
    world.is_slow = True
    world.send(COMMIT_LEGACY_OFFSETS, {"group": "g", "offsets": [["t", partition, 42] for partition in range(50)]})
    assert len(world.asked) == 50
    round_trips = 0
    while world.asked:
        round_trips += 1
        asked, world.asked = world.asked, []
        for request, on_reply in asked:
            on_reply(world._carry_out(request))
    assert world.answers == [{"error": 0, "errors": [["t", partition, 0] for partition in range(50)]}]
    assert round_trips == 6, "one write, four levels of parents, one creation"
    world.send(COMMIT_LEGACY_OFFSETS, {"group": "g", "offsets": [["t", 0, 43], ["u", 0, 44]]})
    while world.asked:
        request, on_reply = world.asked.pop(0)
        on_reply(world._carry_out(request))
    assert (world.tree["/consumers/g/offsets/t/0"][0], world.tree["/consumers/g/offsets/u/0"][0]) == (b"43", b"44")


def test_an_offset_that_another_broker_creates_meanwhile_is_overwritten(world: World) -> None:
    world.is_slow = True
    world.send(COMMIT_LEGACY_OFFSETS, {"group": "g", "offsets": [["t", 0, 42]]})
    while world.asked:
        request, on_reply = world.asked.pop(0)
        if isinstance(request, Create) and request.data:
            world.tree[request.path] = (b"7", 0)
        on_reply(world._carry_out(request))
    assert world.tree["/consumers/g/offsets/t/0"][0] == b"42"
    assert world.answers == [{"error": 0, "errors": [["t", 0, 0]]}]


@pytest.mark.parametrize("document", [{}, {"group": "a/b", "offsets": []}, {"group": "..", "offsets": []}, {"group": "g", "offsets": [["t", "x", 1]]}])
def test_what_cannot_be_a_request_is_refused_and_writes_nothing(world: World, document: dict[str, Any]) -> None:
    before = dict(world.tree)
    world.send(COMMIT_LEGACY_OFFSETS, document)
    assert world.answers == [{"error": ErrorCode.INVALID_REQUEST}]
    assert world.tree == before


def test_a_request_waits_for_zookeeper_until_its_deadline(world: World) -> None:
    world.can_begin = False
    world.send(LEASE_PRODUCER_IDS)
    world.now_ms = TIMEOUT_MS - 1
    world.services.do_work()
    assert world.answers == []
    world.can_begin = True
    world.services.do_work()
    assert world.answers[0]["error"] == 0
    world.can_begin = False
    world.send(LEASE_PRODUCER_IDS)
    world.now_ms += TIMEOUT_MS
    world.services.do_work()
    assert world.answers[1:] == [{"error": ErrorCode.COORDINATOR_NOT_AVAILABLE}]


def test_a_request_whose_connection_broke_is_tried_again(world: World) -> None:
    world.failures = [ZooKeeperConnectionLost()]
    world.send(LEASE_PRODUCER_IDS)
    assert world.answers == []
    world.services.do_work()
    assert world.answers == [{"error": 0, "first": 1, "last": 999}]


def test_an_answer_that_comes_too_late_is_nobodys(world: World) -> None:
    world.is_slow = True
    world.send(LEASE_PRODUCER_IDS)
    world.now_ms = TIMEOUT_MS
    world.services.do_work()
    request, on_reply = world.asked.pop()
    world.is_slow = False
    on_reply(world._carry_out(request))
    assert world.answers == [{"error": ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert decode_block(world.tree[PRODUCER_ID_BLOCK][0]) == (0, -1)
