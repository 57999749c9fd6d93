"""Requests that only boxes send: from which addresses they are taken, what others are answered, what is counted and logged."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.base.model import TopicId
from appliance.base.networks import packed_address, read_networks
from appliance.client.address import Address
from appliance.client.peer_stream import HostLookup, SocketAddress
from appliance.cluster.metadata_image import BrokerImage
from appliance.protocol import offset_apis, share_state_apis, transaction_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import PartitionResult, TopicPartitions, TopicResult
from appliance.security.acl import AclOperation
from appliance.security.principals import ACTING
from appliance.security.transport import PlainTransport, peer_name
from appliance.shm.counters import Counters
from lab.running_box import eventually
from lab.scratch_layout import scratch_layout
from services.acceptor import broker_addresses
from services.acceptor.broker_addresses import LOOK_UP_AGAIN_NS, RETRY_NS, BrokerAddresses
from services.acceptor.connection import Connection
from services.acceptor.dispatch import InterBrokerHandler
from services.acceptor.inter_broker import GRACE_NS, REMEMBERED_MAX, REPEAT_NS, InterBrokerGate

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
STRANGER = "192.0.2.66"
SECOND_NS = 1_000_000_000


class Sender(NamedTuple):
    """A connection, as the gate needs it."""

    address: str
    certificate_names: frozenset[str | bytes] | None = None
    is_box_user: bool | None = None


class Side:
    """A gate with brokers 1 and 2, and what it logs."""

    def __init__(self, counters: Counters, lines: int) -> None:
        self.clock = ManualClock()
        self.clock.advance_ms(1_000)
        self.counters = counters
        self._lines = lines
        self.gate = InterBrokerGate("127.0.0.0/8, ::1", counters, self.clock, Logger("acceptor@0", descriptor=lines))
        self.register({1: 11, 2: 22})

    def register(self, broker_epochs: dict[int, int]) -> None:
        self.gate.refresh({each: BrokerImage(each, f"10.0.0.{each}", 9092, None, epoch) for each, epoch in broker_epochs.items()})

    def sweep_after(self, nanoseconds: int) -> list[str]:
        """The lines of a sweep so much later."""
        self.clock.advance_ms(nanoseconds // 1_000_000)
        before = os.lseek(self._lines, 0, os.SEEK_END)
        self.gate.sweep(self.clock.monotonic_ns())
        return os.pread(self._lines, 1 << 20, before).decode().splitlines()

    def refused(self, reason: str) -> int:
        return self.counters.counter(f'acceptor.inter_broker_refused{{reason="{reason}"}}').value


@pytest.fixture
def side() -> Iterator[Side]:
    with scratch_layout() as layout:
        counters = Counters.create_or_adopt(layout, "acceptor@0", 1)
        lines = os.memfd_create("lines")
        yield Side(counters, lines)
        os.close(lines)
        counters.close()


# -- addresses


@pytest.mark.parametrize(
    ("address", "is_box"),
    [("10.0.0.1", True), ("::ffff:10.0.0.2", True), ("10.0.0.3", False), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True)]
    + [("128.0.0.1", False), ("::2", False), ("fe80::1%eth0", False), ("", False), ("test", False), ("10.0.0.1 ", False)],
)
def test_registered_brokers_and_named_networks_are_boxes(side: Side, address: str, is_box: bool) -> None:
    assert side.gate.admits(Sender(address), "WriteTxnMarkers") is is_box
    assert side.refused("address") == (not is_box)


def test_a_broker_whose_registration_is_gone_is_no_box(side: Side) -> None:
    assert side.gate.admits(Sender("10.0.0.2"), "WriteTxnMarkers")
    side.register({1: 11})
    assert not side.gate.admits(Sender("10.0.0.2"), "WriteTxnMarkers") and side.gate.admits(Sender("10.0.0.1"), "WriteTxnMarkers")


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
        ("fd00::/8", "fdff::1", "fe00::1"),
        ("fe80::7/128", "fe80::7%eth1", "fe80::8%eth1"),
        ("0.0.0.0/0", "8.8.8.8", "::8"),
        ("::/0", "::8", "8.8.8.8"),
    ],
)
def test_a_network_holds_the_addresses_of_its_prefix_and_of_its_family(network: str, inside: str, outside: str) -> None:
    addresses = BrokerAddresses(read_networks(network))
    assert (addresses.contains(inside, 0), addresses.contains(outside, 0)) == (True, False)


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "box1", "10.0.0.0/8,", "10.0.0.0/8 fd00::/8", "1.2.3.4/٣"])
def test_what_is_no_network_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=r"network"):
        read_networks(text)


class PlayedLookups:
    """In place of `HostLookup`: names are resolved when the test says so."""

    def __init__(self) -> None:
        self.started: list[Any] = []

    def __call__(self, address: Address) -> HostLookup:
        played = type("Played", (), {"host": address.host, "found": None})()
        self.started.append(played)
        return cast(HostLookup, played)


def test_a_name_is_resolved_beside_the_duty_cycle_and_again_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = PlayedLookups()
    monkeypatch.setattr(broker_addresses, "HostLookup", lookups)
    addresses = BrokerAddresses(())
    addresses.set_hosts(["box1"], 0)
    assert not addresses.is_settled and not addresses.contains("10.0.0.1", 0)
    lookups.started[0].found = [SocketAddress(socket.AF_INET, ("10.0.0.1", 0)), SocketAddress(socket.AF_INET6, ("fd00::1", 0, 0, 0))]
    assert addresses.is_settled
    addresses.look_up(SECOND_NS)
    assert addresses.contains("10.0.0.1", SECOND_NS) and addresses.contains("fd00::1", SECOND_NS)
    addresses.look_up(LOOK_UP_AGAIN_NS)
    assert len(lookups.started) == 1
    addresses.look_up(SECOND_NS + LOOK_UP_AGAIN_NS)
    assert [each.host for each in lookups.started] == ["box1", "box1"] and addresses.contains("10.0.0.1", 0)
    lookups.started[1].found = [SocketAddress(socket.AF_INET, ("10.0.0.9", 0))]
    addresses.look_up(SECOND_NS + LOOK_UP_AGAIN_NS)
    assert addresses.contains("10.0.0.9", 0) and not addresses.contains("10.0.0.1", 0)


def test_a_look_up_that_fails_changes_nothing_and_is_soon_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = PlayedLookups()
    monkeypatch.setattr(broker_addresses, "HostLookup", lookups)
    addresses = BrokerAddresses(())
    addresses.set_hosts(["box1"], 0)
    for number, found in enumerate(([SocketAddress(socket.AF_INET, ("10.0.0.1", 0))], [], [])):
        lookups.started[number].found = found
        addresses.look_up(number * LOOK_UP_AGAIN_NS)
        addresses.look_up((number + 1) * LOOK_UP_AGAIN_NS)
        assert addresses.is_settled is False and addresses.contains("10.0.0.1", 0)
    lookups.started[3].found = []
    addresses.look_up(3 * LOOK_UP_AGAIN_NS)
    addresses.look_up(3 * LOOK_UP_AGAIN_NS + RETRY_NS)
    assert len(lookups.started) == 5


def test_a_real_name_is_resolved_by_a_real_resolver() -> None:
    addresses = BrokerAddresses(())
    addresses.set_hosts(["localhost"], 0)

    def is_settled() -> bool:
        addresses.look_up(0)
        return addresses.is_settled

    eventually(is_settled, "the resolver answers")
    assert addresses.contains("127.0.0.1", 0)


# -- follower fetches


@pytest.mark.parametrize(
    ("replica_id", "broker_epoch", "problem"),
    [(2, 22, None), (2, 1 << 62, ErrorCode.STALE_BROKER_EPOCH), (2, 21, ErrorCode.STALE_BROKER_EPOCH), (2, -1, ErrorCode.STALE_BROKER_EPOCH)]
    + [(1, 22, ErrorCode.STALE_BROKER_EPOCH), (3, -1, ErrorCode.STALE_BROKER_EPOCH), (3, 22, ErrorCode.STALE_BROKER_EPOCH), (-2, -1, None)],
)
def test_the_broker_epoch_of_a_follower_is_the_registered_one(side: Side, replica_id: int, broker_epoch: int, problem: ErrorCode | None) -> None:
    assert side.gate.fetch_problem(Sender("10.0.0.2"), replica_id, broker_epoch) is problem
    assert side.refused("broker-epoch") == (problem is not None)
    assert side.gate.fetch_problem(Sender(STRANGER), replica_id, broker_epoch) is REFUSED


def test_a_registration_without_a_broker_epoch_admits_no_follower(side: Side) -> None:
    side.register({2: -1})
    assert side.gate.fetch_problem(Sender("10.0.0.2"), 2, -1) is ErrorCode.STALE_BROKER_EPOCH


# -- certificates


@pytest.mark.parametrize(
    ("names", "is_box", "is_broker_2"),
    [(["10.0.0.2"], True, True), (["10.0.0.1", "box1"], True, False), (["10.0.0.3"], False, False), ([], False, False), (["*"], False, False)],
)
def test_where_boxes_have_certificates_the_names_count_and_no_address(side: Side, names: list[str], is_box: bool, is_broker_2: bool) -> None:
    sender = Sender("127.0.0.1", frozenset(map(peer_name, names)))  # an address that would be a box's
    assert side.gate.is_box(sender) is is_box and side.gate.admits(sender, "WriteTxnMarkers") is is_box
    assert side.gate.fetch_problem(sender, 2, 22) is (None if is_broker_2 else REFUSED)
    assert side.gate.fetch_problem(sender, 9, -1) is REFUSED
    assert side.gate.fetch_problem(sender, -2, -1) is (None if is_box else REFUSED)
    assert side.refused("address") == 0 and side.refused("certificate") >= 1


def test_a_box_is_known_by_its_host_name_in_any_spelling(side: Side) -> None:
    side.gate.refresh({1: BrokerImage(1, "Box1.Example.", 9092, None, 11), 2: BrokerImage(2, "FD00:0::2", 9092, None, 22)})
    for name in ("box1.example", "fd00::2"):
        assert side.gate.is_box(Sender("192.0.2.9", frozenset([peer_name(name)])))
    assert not side.gate.is_box(Sender("192.0.2.9", frozenset([peer_name("2.example")])))


def test_certificates_of_localhost_are_those_of_boxes_only_where_all_boxes_advertise_it(side: Side) -> None:
    local = Sender(STRANGER, frozenset(map(peer_name, ("localhost", "127.0.0.1", "::1"))))
    for hosts, is_box in ((("127.0.0.1", "localhost"), True), (("127.0.0.1", "10.0.0.2"), False), (("localhost", "::1", "log3"), False)):
        side.gate.refresh({number: BrokerImage(number, host, 9092, None, 1) for number, host in enumerate(hosts)})
        assert (side.gate.is_box(local), side.gate.admits(local, "Fetch", 0)) == (is_box, is_box), hosts


def test_a_refused_certificate_is_logged_with_what_to_do(side: Side) -> None:
    side.gate.admits(Sender(STRANGER, frozenset()), "WRITE_TXN_MARKERS")
    assert side.sweep_after(SECOND_NS) == []
    (line,) = side.sweep_after(GRACE_NS)
    assert f"refused 1 requests from {STRANGER}, such as WRITE_TXN_MARKERS" in line and "alternative names" in line


# -- users


@pytest.mark.parametrize("is_box_user", [True, False])
def test_where_boxes_log_in_their_user_counts_and_neither_address_nor_certificate(side: Side, is_box_user: bool) -> None:
    sender = Sender("10.0.0.2", frozenset([peer_name("10.0.0.2")]), is_box_user)
    assert side.gate.is_box(sender) is is_box_user and side.gate.admits(sender, "WriteTxnMarkers") is is_box_user
    assert side.gate.fetch_problem(sender, 2, 22) is (None if is_box_user else REFUSED)
    assert side.refused("user") == (0 if is_box_user else 2) and side.refused("address") == side.refused("certificate") == 0
    lines = side.sweep_after(SECOND_NS) + side.sweep_after(GRACE_NS)
    assert is_box_user or "log in as inter.broker.user" in lines[0]


# -- what is logged


def test_a_stranger_is_logged_once_a_minute_with_its_address(side: Side) -> None:
    side.gate.admits(Sender(STRANGER), "WRITE_TXN_MARKERS")
    assert side.sweep_after(SECOND_NS) == []
    (line,) = side.sweep_after(GRACE_NS)
    assert line.startswith(f"WARNING acceptor@0: refused 1 requests from {STRANGER}, such as WRITE_TXN_MARKERS: only boxes may send that")
    for _ in range(3):
        side.gate.fetch_problem(Sender(STRANGER), 2, 22)
    assert side.sweep_after(REPEAT_NS - SECOND_NS) == []
    (line,) = side.sweep_after(SECOND_NS)
    assert f"refused 3 requests from {STRANGER}, such as Fetch as replica 2" in line
    assert side.sweep_after(REPEAT_NS) == [] and side.refused("address") == 4


def test_a_box_that_was_registered_since_is_not_logged(side: Side) -> None:
    assert not side.gate.admits(Sender("10.0.0.3"), "WRITE_TXN_MARKERS")
    side.register({1: 11, 2: 22, 3: 33})
    assert side.sweep_after(2 * GRACE_NS) == [] and side.refused("address") == 1


def test_an_image_that_was_behind_a_new_registration_is_not_logged(side: Side) -> None:
    side.gate.fetch_problem(Sender("10.0.0.2"), 2, 44)
    side.register({1: 11, 2: 44})
    side.gate.fetch_problem(Sender("10.0.0.2"), 2, 22)
    assert side.sweep_after(2 * GRACE_NS) == [] and side.refused("broker-epoch") == 2


def test_a_broker_epoch_that_was_never_registered_is_logged(side: Side) -> None:
    side.gate.fetch_problem(Sender("10.0.0.2"), 2, 1 << 62)
    (line,) = side.sweep_after(GRACE_NS)
    assert f"from 10.0.0.2, such as Fetch as replica 2 with broker epoch {1 << 62}: registered is 22" in line


def test_a_broker_epoch_that_was_never_registered_is_not_hidden_by_an_old_one(side: Side) -> None:
    for broker_epoch in (1 << 62, 21):
        side.gate.fetch_problem(Sender("10.0.0.2"), 2, broker_epoch)
    (line,) = side.sweep_after(GRACE_NS)
    assert f"refused 2 requests from 10.0.0.2, such as Fetch as replica 2 with broker epoch {1 << 62}" in line


def test_a_follower_that_stays_behind_its_registration_is_logged(side: Side) -> None:
    side.gate.fetch_problem(Sender("10.0.0.2"), 2, 21)
    side.clock.advance_ms(GRACE_NS // 1_000_000)
    side.gate.fetch_problem(Sender("10.0.0.2"), 2, 21)
    assert len(side.sweep_after(0)) == 1


def test_refusals_of_very_many_addresses_are_counted_and_a_bounded_number_is_remembered(side: Side) -> None:
    for number in range(REMEMBERED_MAX):
        side.gate.fetch_problem(Sender(f"127.0.{number >> 8}.{number & 255}"), 2, 21)
    side.gate.admits(Sender(STRANGER), "WRITE_TXN_MARKERS")
    assert (side.refused("broker-epoch"), side.refused("address")) == (REMEMBERED_MAX, 1)
    assert side.sweep_after(GRACE_NS) == []
    side.gate.admits(Sender(STRANGER), "WRITE_TXN_MARKERS")
    assert len(side.sweep_after(GRACE_NS)) == 1, "what is over is forgotten, and another address is remembered"


# -- the other APIs


class Passed:
    """In place of the handler of an API."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, connection: Connection, header: RequestHeader, buffer: memoryview, limit: int) -> None:
        self.count += 1


def ask(side: Side, question: Message[Any], version: int, body: Any, address: str, decode: Callable[[bytes], Any], acting: Any = None) -> Any:
    """What a connection from `address` is answered; None: its request reached the handler. `acting`: the rights of a person of the console."""
    ours, theirs = socket.socketpair()
    passed, answered = Passed(), []
    connection = Connection(PlainTransport(ours), address, 0)
    if acting is not None:
        connection.mechanism, connection.rights = ACTING, acting
    handler = InterBrokerHandler(ApiKey(question.api.key), passed, side.gate, answered.append)
    encoded = question.encode(version, body)
    handler.handle(connection, RequestHeader(question.api.key, version, 7, "", 0), memoryview(encoded), len(encoded))
    ours.close()
    theirs.close()
    assert len(answered) + passed.count == 1
    if passed.count:
        return None
    connection.collect_ready()
    frame = b"".join(bytes(cast(bytes, piece)) for piece in connection.outgoing)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4 and frame[4:8] == (7).to_bytes(4, "big")
    return decode(frame[9 if question.api.is_flexible(version) else 8 :])


def reading(reply: Message[Any], version: int) -> Callable[[bytes], Any]:
    return lambda body: reply.decode(body, 0, len(body), version)


@pytest.mark.parametrize("version", [0, 1])
def test_markers_of_a_stranger_are_refused_in_each_partition(side: Side, version: int) -> None:
    topics = (TopicPartitions("a", (3, 5)), TopicPartitions("b", (0,)))
    markers = (transaction_apis.TxnMarker(7, 1, True, topics, 9), transaction_apis.TxnMarker(8, 1, False, (), 9))
    arguments = side, transaction_apis.WRITE_TXN_MARKERS_REQUEST, version, transaction_apis.WriteTxnMarkersRequest(markers)
    answer = ask(*arguments, STRANGER, reading(transaction_apis.WRITE_TXN_MARKERS_RESPONSE, version))
    code = int(REFUSED)
    results = (TopicResult("a", (PartitionResult(3, code), PartitionResult(5, code))), TopicResult("b", (PartitionResult(0, code),)))
    assert answer.markers == (transaction_apis.TxnMarkerResult(7, results), transaction_apis.TxnMarkerResult(8))
    assert ask(*arguments, "10.0.0.1", reading(transaction_apis.WRITE_TXN_MARKERS_RESPONSE, version)) is None


def test_a_person_of_the_console_ends_what_hangs_from_elsewhere_with_the_right_to_alter_the_cluster(side: Side) -> None:
    """Its address is that of its browser; a box asks for it."""
    markers = transaction_apis.WriteTxnMarkersRequest((transaction_apis.TxnMarker(7, 1, False, (TopicPartitions("a", (3,)),), 9),))
    for operations in ((), (AclOperation.DESCRIBE,), (AclOperation.ALTER,)):
        rights = SimpleNamespace(would_allow_on_cluster=operations.__contains__, allows_on_cluster=operations.__contains__)
        reply = reading(transaction_apis.WRITE_TXN_MARKERS_RESPONSE, 1)
        answer = ask(side, transaction_apis.WRITE_TXN_MARKERS_REQUEST, 1, markers, STRANGER, reply, acting=rights)
        assert (answer is None) == (AclOperation.ALTER in operations)
    added = transaction_apis.AddPartitionsToTxnRequest((transaction_apis.TransactionToExtend("t", 7, 1, False, ()),))
    reply = reading(transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, 4)
    assert ask(side, transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST, 4, added, STRANGER, reply, acting=rights).error_code == REFUSED


@pytest.mark.parametrize(("version", "is_refused"), [(0, False), (3, False), (4, True), (5, True)])
def test_only_boxes_add_partitions_of_several_transactions(side: Side, version: int, is_refused: bool) -> None:
    wanted = transaction_apis.TransactionToExtend("tx", 7, 1, False, (TopicPartitions("a", (3,)),))
    arguments = side, transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST, version, transaction_apis.AddPartitionsToTxnRequest((wanted,))
    answer = ask(*arguments, STRANGER, reading(transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, version))
    assert (answer is not None and answer.error_code == REFUSED) == is_refused
    assert ask(*arguments, "10.0.0.1", reading(transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, version)) is None


@pytest.mark.parametrize("version", range(10))
@pytest.mark.parametrize(("replica_id", "is_refused"), [(-1, False), (-2, True), (0, True), (2, True)])
def test_offsets_are_listed_as_a_replica_for_boxes_only(side: Side, version: int, replica_id: int, is_refused: bool) -> None:
    topic = offset_apis.ListOffsetsTopic("a", (offset_apis.ListOffsetsPartition(3, -1, -1),))
    arguments = side, offset_apis.LIST_OFFSETS_REQUEST, version, offset_apis.ListOffsetsRequest(replica_id, 0, (topic,))
    answer = ask(*arguments, STRANGER, reading(offset_apis.LIST_OFFSETS_RESPONSE, version))
    if is_refused:
        assert [(one.topic, [each.error_code for each in one.partitions]) for one in answer.topics] == [("a", [REFUSED])]
    else:
        assert answer is None
    assert ask(*arguments, "10.0.0.1", reading(offset_apis.LIST_OFFSETS_RESPONSE, version)) is None


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("replica_id", [-2, -1, 2])
def test_epoch_end_offsets_are_returned_to_consumers_and_to_replicas_of_the_cluster(side: Side, version: int, replica_id: int) -> None:
    topic = offset_apis.EpochTopic("a", (offset_apis.EpochPartition(3, -1, 0),))
    arguments = side, offset_apis.OFFSET_FOR_LEADER_EPOCH_REQUEST, version, offset_apis.OffsetForLeaderEpochRequest(replica_id, (topic,))
    answer = ask(*arguments, STRANGER, reading(offset_apis.OFFSET_FOR_LEADER_EPOCH_RESPONSE, version))
    if version >= 3 and replica_id >= 0:
        assert [(one.topic, [each.error_code for each in one.partitions]) for one in answer.topics] == [("a", [REFUSED])]
    else:
        assert answer is None
    assert ask(*arguments, "10.0.0.1", reading(offset_apis.OFFSET_FOR_LEADER_EPOCH_RESPONSE, version)) is None


def test_an_address_is_packed_without_its_scope() -> None:
    assert packed_address("fe80::1%eth0") == packed_address("fe80::1") and packed_address("::ffff:1.2.3.4") == bytes((1, 2, 3, 4))


STATE_TOPIC = TopicId(b"t" * 16)


@pytest.mark.parametrize(
    ("question", "reply", "body"),
    [
        pytest.param(question, reply, request("workers", (topic(STATE_TOPIC, (part(3),)),)), id=question.name)
        for question, reply, request, topic, part in (
            (
                share_state_apis.INITIALIZE_SHARE_GROUP_STATE_REQUEST,
                share_state_apis.INITIALIZE_SHARE_GROUP_STATE_RESPONSE,
                share_state_apis.InitializeShareGroupStateRequest,
                share_state_apis.TopicInitializedStates,
                share_state_apis.InitializedState,
            ),
            (
                share_state_apis.READ_SHARE_GROUP_STATE_REQUEST,
                share_state_apis.READ_SHARE_GROUP_STATE_RESPONSE,
                share_state_apis.ReadShareGroupStateRequest,
                share_state_apis.TopicReadStates,
                share_state_apis.ReadState,
            ),
            (
                share_state_apis.WRITE_SHARE_GROUP_STATE_REQUEST,
                share_state_apis.WRITE_SHARE_GROUP_STATE_RESPONSE,
                share_state_apis.WriteShareGroupStateRequest,
                share_state_apis.TopicWrittenStates,
                share_state_apis.WrittenState,
            ),
            (
                share_state_apis.DELETE_SHARE_GROUP_STATE_REQUEST,
                share_state_apis.DELETE_SHARE_GROUP_STATE_RESPONSE,
                share_state_apis.DeleteShareGroupStateRequest,
                share_state_apis.TopicDeletedStates,
                share_state_apis.DeletedState,
            ),
            (
                share_state_apis.READ_SHARE_GROUP_STATE_SUMMARY_REQUEST,
                share_state_apis.READ_SHARE_GROUP_STATE_SUMMARY_RESPONSE,
                share_state_apis.ReadShareGroupStateRequest,
                share_state_apis.TopicReadStates,
                share_state_apis.ReadState,
            ),
        )
    ],
)
def test_only_boxes_ask_for_the_state_of_share_groups(side: Side, question: Message[Any], reply: Message[Any], body: Any) -> None:
    answer = ask(side, question, 0, body, STRANGER, reading(reply, 0))
    assert [(topic.topic_id, [(part.partition, part.error_code) for part in topic.partitions]) for topic in answer.results] == [(STATE_TOPIC, [(3, REFUSED)])]
    assert ask(side, question, 0, body, "10.0.0.1", reading(reply, 0)) is None
