"""Requests on `coordinator.sock` (`services/coordinator/coordinator_requests.py`): to which rule they go, what cannot be read, and offsets that join
a transaction first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.state_log import OnAppended, ProducerIdentity, StateRecord, partition_of
from appliance.ipc.frames import Frame
from appliance.ipc.request_frames import KAFKA_REQUEST, KAFKA_RESPONSE, TRANSACTION_ENDED, pack_ended_transaction, pack_kafka_request
from appliance.protocol import group_apis, group_offset_apis, transaction_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.forwarded_apis import COORDINATED_APIS
from appliance.protocol.group_apis import HeartbeatRequest, HeartbeatResponse
from appliance.protocol.topic_partitions import PartitionResult, TopicResult
from appliance.protocol.transaction_apis import TxnOffsetCommitPartition, TxnOffsetCommitRequest, TxnOffsetCommitResponse, TxnOffsetCommitTopic
from appliance.runtime.request_server import RequestClient
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout
from services.coordinator.coordinator_requests import VERIFICATIONS_MAX, CoordinatorRequests
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.state.confirmations import LeadershipConfirmations
from services.coordinator.transactions.transaction import SECOND_PROTOCOL

OFFSETS = TopicPartition("__consumer_offsets", 3)
COMMIT = TxnOffsetCommitRequest("tx", "g", 9, 2, -1, "", None, (TxnOffsetCommitTopic("t", (TxnOffsetCommitPartition(0, 5),)),))
CLIENT = cast(RequestClient, object())


class PlayedCoordinators:
    """Rules that remember how they were called, and answer when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.offsets_partition: TopicPartition | None = OFFSETS

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, arguments))


class PlayedStateLog:
    """Appends to a state topic of three partitions, answered by the test."""

    def __init__(self) -> None:
        self.partition_count = 3
        self.led: tuple[int, ...] = (0, 1, 2)
        self.appends: list[tuple[int, OnAppended]] = []

    def led_partitions(self) -> Iterable[int]:
        return self.led

    def append(
        self, partition: int, records: Sequence[StateRecord], on_appended: OnAppended, *, producer: ProducerIdentity | None = None, timeout_ms: int = 0
    ) -> None:
        assert [record.value for record in records] == [None]
        self.appends.append((partition, on_appended))

    def answer(self, code: ErrorCode = ErrorCode.NONE) -> list[int]:
        """Answer all appends under way; return their partitions."""
        appends, self.appends = self.appends, []
        for _, on_appended in appends:
            on_appended(code)
        return [partition for partition, _ in appends]


class World:
    def __init__(self, counters: Counters, verifies: bool = True) -> None:
        self.groups, self.transactions = PlayedCoordinators(), PlayedCoordinators()
        self.sent: list[tuple[int, int, bytes]] = []
        groups = SimpleNamespace(
            coordinator=self.groups, offsets_partition_of=lambda _group: self.groups.offsets_partition, commit_verified=self._commit_verified
        )
        self.guarded: list[tuple[int, ProducerIdentity]] = []
        self.leads, self.elsewhere, self.cut_off_from = True, PlayedCoordinators(), set[str]()
        self.logs = {topic: PlayedStateLog() for topic in ("__consumer_offsets", "__transaction_state")}
        confirmations = {topic: LeadershipConfirmations(log, b"key") for topic, log in self.logs.items()}
        transactions = SimpleNamespace(coordinator=self.transactions, leads=lambda _name: self.leads)
        self.requests = CoordinatorRequests(
            cast(Any, groups), cast(Any, transactions), self.elsewhere, confirmations, self._may_be_replaced, verifies, lambda: 77, counters, self._respond
        )
        self.counters = counters

    def _commit_verified(self, partition: int, producer: ProducerIdentity, ask: Callable[..., None], commit: Callable[..., None]) -> None:
        self.guarded.append((partition, producer))
        ask(commit)

    def _may_be_replaced(self, topic: str) -> bool:
        return topic in self.cut_off_from

    def _respond(self, client: RequestClient, kind: int, token: int, payload: bytes) -> None:
        assert client is CLIENT
        self.sent.append((kind, token, payload))

    def send(self, api_key: int, version: int, body: bytes, kind: int = KAFKA_REQUEST) -> None:
        self.requests.on_frame(CLIENT, Frame(kind, 5, pack_kafka_request(api_key, version, "client", "::1", body), ()))


@pytest.fixture
def counters() -> Iterator[Counters]:
    with scratch_layout() as layout:
        counters = Counters.create_or_adopt(layout, "coordinator", 1)
        yield counters
        counters.close()


def test_a_request_goes_to_its_rule_and_its_answer_back_under_its_token(counters: Counters) -> None:
    world = World(counters)
    world.send(ApiKey.HEARTBEAT, 4, group_apis.HEARTBEAT_REQUEST.encode(4, HeartbeatRequest("g", 1, "m")))
    ((rule, (request, version, identity, now_ms, reply)),) = world.groups.calls
    assert (rule, request.group_id, version, identity, now_ms) == ("heartbeat", "g", 4, ClientIdentity("client", "/::1"), 77)
    assert world.sent == []
    reply(HeartbeatResponse(error_code=25))
    assert world.sent == [(KAFKA_RESPONSE, 5, group_apis.HEARTBEAT_RESPONSE.encode(4, HeartbeatResponse(error_code=25)))]


@pytest.mark.parametrize(
    ("key", "kind", "body"), [(ApiKey.FETCH, KAFKA_REQUEST, b""), (ApiKey.HEARTBEAT, KAFKA_REQUEST, b"\x05g"), (ApiKey.HEARTBEAT, 99, b"")]
)
def test_what_cannot_be_read_is_answered_with_nothing(counters: Counters, key: ApiKey, kind: int, body: bytes) -> None:
    world = World(counters)
    world.send(key, 4, body, kind)
    assert world.sent == [(KAFKA_RESPONSE, 5, b"")]
    assert world.groups.calls == world.transactions.calls == []


def test_a_marker_of_another_box_reaches_the_group_coordinator_before_its_answer(counters: Counters) -> None:
    world = World(counters)
    world.requests.on_frame(CLIENT, Frame(TRANSACTION_ENDED, 6, pack_ended_transaction(3, 2**40, True), ()))
    assert world.groups.calls == [("complete_transaction", (3, 2**40, True))]
    ((kind, token, payload),) = world.sent
    assert (kind, token) == (KAFKA_RESPONSE, 6) and payload
    world.requests.on_frame(CLIENT, Frame(TRANSACTION_ENDED, 7, b"short", ()))
    assert world.sent[-1] == (KAFKA_RESPONSE, 7, b"") and len(world.groups.calls) == 1


def test_every_rule_is_a_method_of_its_coordinator() -> None:
    from services.coordinator.coordinated_shares import CoordinatedShares
    from services.coordinator.groups.group_coordinator import GroupCoordinator
    from services.coordinator.transactions.transaction_coordinator import TransactionCoordinator

    for api in COORDINATED_APIS.values():
        owner = TransactionCoordinator if api.is_transactional else CoordinatedShares if api.is_shared else GroupCoordinator
        assert callable(getattr(owner, api.rule))


@pytest.mark.parametrize(("version", "verifies", "asked"), [(3, True, "verify"), (3, False, None), (5, True, "extend"), (5, False, "extend")])
def test_offsets_of_a_transaction_wait_for_its_coordinators_agreement(counters: Counters, version: int, verifies: bool, asked: str | None) -> None:
    world = World(counters, verifies)
    world.send(ApiKey.TXN_OFFSET_COMMIT, version, transaction_apis.TXN_OFFSET_COMMIT_REQUEST.encode(version, COMMIT))
    if asked is None:
        assert [call[0] for call in world.groups.calls] == ["txn_offset_commit"]
        return
    assert world.groups.calls == []
    ((rule, arguments),) = world.transactions.calls
    assert (rule, arguments[:4]) == (asked, ("tx", 9, 2, frozenset((OFFSETS,))))
    if asked == "extend":
        assert arguments[4] == SECOND_PROTOCOL
    arguments[-1]({OFFSETS: ErrorCode.NONE})
    assert [call[0] for call in world.groups.calls] == ["txn_offset_commit"]


def test_offsets_of_a_transaction_that_its_coordinator_does_not_know_are_refused(counters: Counters) -> None:
    world = World(counters)
    world.send(ApiKey.TXN_OFFSET_COMMIT, 3, transaction_apis.TXN_OFFSET_COMMIT_REQUEST.encode(3, COMMIT))
    world.transactions.calls[0][1][-1]({OFFSETS: ErrorCode.INVALID_TXN_STATE})
    assert world.groups.calls == []
    refused = TxnOffsetCommitResponse(topics=(TopicResult("t", (PartitionResult(0, ErrorCode.INVALID_TXN_STATE),)),))
    assert world.sent == [(KAFKA_RESPONSE, 5, transaction_apis.TXN_OFFSET_COMMIT_RESPONSE.encode(3, refused))]


def test_where_there_is_no_topic_of_offsets_the_group_coordinator_says_so(counters: Counters) -> None:
    world = World(counters)
    world.groups.offsets_partition = None
    world.send(ApiKey.TXN_OFFSET_COMMIT, 5, transaction_apis.TXN_OFFSET_COMMIT_REQUEST.encode(5, COMMIT))
    assert [call[0] for call in world.groups.calls] == ["txn_offset_commit"]


@pytest.mark.parametrize(("version", "adds"), [(3, False), (5, True)])
def test_a_transaction_that_another_box_coordinates_is_asked_about_there(counters: Counters, version: int, adds: bool) -> None:
    world = World(counters)
    world.leads = False
    world.send(ApiKey.TXN_OFFSET_COMMIT, version, transaction_apis.TXN_OFFSET_COMMIT_REQUEST.encode(version, COMMIT))
    assert world.groups.calls == world.transactions.calls == []
    ((rule, arguments),) = world.elsewhere.calls
    assert (rule, arguments[:5]) == ("verify", ("tx", 9, 2, (OFFSETS,), adds))
    assert world.guarded == [(3, ProducerIdentity(9, 2))]
    arguments[-1]([ErrorCode.NONE])
    assert [call[0] for call in world.groups.calls] == ["txn_offset_commit"]


@pytest.mark.parametrize(("version", "times"), [(3, 1), (5, VERIFICATIONS_MAX)])
def test_offsets_whose_guard_a_marker_took_are_verified_anew_in_the_second_protocol(counters: Counters, version: int, times: int) -> None:
    """The marker of the transaction before has the epoch of this one (KIP-890), and came between the guard and the other box's answer."""
    world = World(counters)
    world.leads = False
    world.send(ApiKey.TXN_OFFSET_COMMIT, version, transaction_apis.TXN_OFFSET_COMMIT_REQUEST.encode(version, COMMIT))
    refused = TxnOffsetCommitResponse(topics=(TopicResult("t", (PartitionResult(0, ErrorCode.INVALID_TXN_STATE),)),))
    for time in range(times):
        assert world.sent == [] and len(world.elsewhere.calls) == len(world.guarded) == time + 1
        world.elsewhere.calls[time][1][-1]([ErrorCode.NONE])
        world.groups.calls[time][1][-1](refused)
    assert world.sent == [(KAFKA_RESPONSE, 5, transaction_apis.TXN_OFFSET_COMMIT_RESPONSE.encode(version, refused))] and len(world.guarded) == times


@pytest.mark.parametrize(("code", "told"), [(ErrorCode.COORDINATOR_NOT_AVAILABLE, 15), (ErrorCode.PRODUCER_FENCED, 47), (12_345, -1)])
def test_a_refusal_of_another_box_becomes_an_error_of_the_api(counters: Counters, code: int, told: int) -> None:
    world = World(counters)
    world.leads = False
    world.send(ApiKey.TXN_OFFSET_COMMIT, 3, transaction_apis.TXN_OFFSET_COMMIT_REQUEST.encode(3, COMMIT))
    world.elsewhere.calls[0][1][-1]([code])
    refused = TxnOffsetCommitResponse(topics=(TopicResult("t", (PartitionResult(0, told),)),))
    assert world.sent == [(KAFKA_RESPONSE, 5, transaction_apis.TXN_OFFSET_COMMIT_RESPONSE.encode(3, refused))]
    assert world.groups.calls == []


HEARTBEAT = group_apis.HEARTBEAT_REQUEST.encode(4, HeartbeatRequest("g", 1, "m"))
OF_G = partition_of("g", 3)


def test_without_a_lease_a_request_waits_for_a_record_below_the_high_watermark(counters: Counters) -> None:
    world = World(counters)
    world.cut_off_from = {"__consumer_offsets"}
    log = world.logs["__consumer_offsets"]
    world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    assert world.groups.calls == [] and world.sent == []
    assert log.answer() == [OF_G]
    assert [call[0] for call in world.groups.calls] == ["heartbeat"]


def test_a_record_confirms_no_request_that_came_after_it(counters: Counters) -> None:
    world = World(counters)
    world.cut_off_from = {"__consumer_offsets"}
    log = world.logs["__consumer_offsets"]
    for _ in range(3):
        world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    assert log.answer() == [OF_G] and len(world.groups.calls) == 1
    assert log.answer() == [OF_G] and len(world.groups.calls) == 3, "one record for all that came meanwhile"
    assert not log.appends


def test_a_request_does_not_overtake_those_that_wait_when_the_lease_is_back(counters: Counters) -> None:
    world = World(counters)
    world.cut_off_from = {"__consumer_offsets"}
    log = world.logs["__consumer_offsets"]
    world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    world.cut_off_from = set()
    world.send(ApiKey.LEAVE_GROUP, 4, group_apis.LEAVE_GROUP_REQUEST.encode(4, group_apis.LeaveGroupRequest("g")))
    log.answer()
    log.answer()
    assert [call[0] for call in world.groups.calls] == ["heartbeat", "leave_group"]
    world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    assert len(world.groups.calls) == 3 and not log.appends


def test_the_waiting_ends_under_load_when_the_lease_is_back(counters: Counters) -> None:
    world = World(counters)
    world.cut_off_from = {"__consumer_offsets"}
    log = world.logs["__consumer_offsets"]
    world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    world.cut_off_from = set()
    for _ in range(5):
        world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    assert len(world.groups.calls) == 0 and len(log.appends) == 1
    log.answer(ErrorCode.REQUEST_TIMED_OUT)
    assert len(world.groups.calls) == 5, "only the first one needed the record"
    assert not log.appends, "requests with a lease append none"


def test_a_leader_that_was_replaced_refuses_what_it_cannot_confirm(counters: Counters) -> None:
    world = World(counters)
    world.cut_off_from = {"__consumer_offsets"}
    world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    world.logs["__consumer_offsets"].answer(ErrorCode.REQUEST_TIMED_OUT)
    assert world.groups.calls == []
    assert world.sent == [(KAFKA_RESPONSE, 5, group_apis.HEARTBEAT_RESPONSE.encode(4, HeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)))]
    world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    world.logs["__consumer_offsets"].answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.groups.calls == [], "its log-writer died, and its memory is as old as before"
    world.logs["__consumer_offsets"].led = ()
    world.send(ApiKey.HEARTBEAT, 4, HEARTBEAT)
    assert [call[0] for call in world.groups.calls] == ["heartbeat"], "its own rules answer NOT_COORDINATOR"


@pytest.mark.parametrize(
    ("key", "version", "body", "partitions"),
    [
        (ApiKey.LIST_GROUPS, 4, group_apis.LIST_GROUPS_REQUEST.encode(4, group_apis.ListGroupsRequest()), {0, 1, 2}),
        (
            ApiKey.DESCRIBE_GROUPS,
            4,
            group_apis.DESCRIBE_GROUPS_REQUEST.encode(4, group_apis.DescribeGroupsRequest(("g", "h"))),
            {OF_G, partition_of("h", 3)},
        ),
        (
            ApiKey.OFFSET_FETCH,
            8,
            group_offset_apis.OFFSET_FETCH_REQUEST.encode(8, group_offset_apis.OffsetFetchRequest((group_offset_apis.OffsetFetchGroup("g"),))),
            {OF_G},
        ),
    ],
)
def test_a_request_is_confirmed_for_the_partitions_of_its_groups(counters: Counters, key: int, version: int, body: bytes, partitions: set[int]) -> None:
    world = World(counters)
    world.cut_off_from = {"__consumer_offsets"}
    world.send(key, version, body)
    assert set(world.logs["__consumer_offsets"].answer()) == partitions
    assert len(world.groups.calls) == 1


def test_offsets_of_a_transaction_are_confirmed_for_the_group_and_for_the_transaction(counters: Counters) -> None:
    world = World(counters)
    world.cut_off_from = {"__consumer_offsets", "__transaction_state"}
    world.send(ApiKey.TXN_OFFSET_COMMIT, 3, transaction_apis.TXN_OFFSET_COMMIT_REQUEST.encode(3, COMMIT))
    assert world.logs["__consumer_offsets"].answer() == [partition_of(COMMIT.group_id, 3)] and world.guarded == world.transactions.calls == []
    assert world.logs["__transaction_state"].answer() == [partition_of(COMMIT.transactional_id, 3)]
    assert world.transactions.calls
