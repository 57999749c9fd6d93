"""Requests on `coordinator.sock` (`services/coordinator/coordinator_requests.py`): to which rule they go, what cannot be read, and offsets that join
a transaction first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.state_log import ProducerIdentity
from appliance.ipc.frames import Frame
from appliance.ipc.request_frames import KAFKA_REQUEST, KAFKA_RESPONSE, TRANSACTION_ENDED, pack_ended_transaction, pack_kafka_request
from appliance.protocol import group_apis, transaction_apis
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


class World:
    def __init__(self, counters: Counters, verifies: bool = True) -> None:
        self.groups, self.transactions = PlayedCoordinators(), PlayedCoordinators()
        self.sent: list[tuple[int, int, bytes]] = []
        groups = SimpleNamespace(
            coordinator=self.groups, offsets_partition_of=lambda _group: self.groups.offsets_partition, commit_verified=self._commit_verified
        )
        self.guarded: list[tuple[int, ProducerIdentity]] = []
        self.leads, self.elsewhere, self.cut_off_from = True, PlayedCoordinators(), set[str]()
        transactions = SimpleNamespace(coordinator=self.transactions, leads=lambda _name: self.leads)
        self.requests = CoordinatorRequests(
            cast(Any, groups), cast(Any, transactions), self.elsewhere, self._is_cut_off, verifies, lambda: 77, counters, self._respond
        )
        self.counters = counters

    def _commit_verified(self, partition: int, producer: ProducerIdentity, ask: Callable[..., None], commit: Callable[..., None]) -> None:
        self.guarded.append((partition, producer))
        ask(commit)

    def _is_cut_off(self, topic: str) -> bool:
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
    from services.coordinator.groups.group_coordinator import GroupCoordinator
    from services.coordinator.transactions.transaction_coordinator import TransactionCoordinator

    for api in COORDINATED_APIS.values():
        assert callable(getattr(TransactionCoordinator if api.is_transactional else GroupCoordinator, api.rule))


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


def test_a_coordinator_that_may_have_been_replaced_answers_nothing_from_memory(counters: Counters) -> None:
    world = World(counters)
    world.cut_off_from = {"__consumer_offsets"}
    world.send(ApiKey.HEARTBEAT, 4, group_apis.HEARTBEAT_REQUEST.encode(4, HeartbeatRequest("g", 1, "m")))
    assert world.groups.calls == []
    assert world.sent == [(KAFKA_RESPONSE, 5, group_apis.HEARTBEAT_RESPONSE.encode(4, HeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)))]
    world.cut_off_from = {"__transaction_state"}
    world.send(ApiKey.HEARTBEAT, 4, group_apis.HEARTBEAT_REQUEST.encode(4, HeartbeatRequest("g", 1, "m")))
    assert [call[0] for call in world.groups.calls] == ["heartbeat"]
