"""A cluster as a client sees it: addresses of brokers, leaders of partitions, one connection to each broker for requests.

Owned by one thread. Long polls and produces open connections of their own (`open_connection`), so that a
request never waits behind them. Weak spot: a broker with a new address is found only through another
broker that still answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import NO_LEADER, NO_TOPIC_ID, BrokerId, LeaderEpoch, TopicId
from appliance.client.address import Address
from appliance.client.connection import CONNECT_TIMEOUT_MS, MAX_RESPONSE_BYTES, REQUEST_TIMEOUT_MS, ClientConnection
from appliance.client.errors import BrokerUnreachable, ConnectionLost, error_code, is_retriable, refused
from appliance.client.messages import METADATA, Answered, Asked, ClientApi, PartitionOfMetadata, TopicOfMetadata
from appliance.protocol.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from appliance.client.security import ClientSecurity

# ---- metadata


class PartitionMetadata(NamedTuple):
    """One partition as Metadata describes it; `leader` is NO_LEADER while there is none."""

    partition: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    assigned_replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    error: ErrorCode


class TopicMetadata(NamedTuple):
    """One topic; `error` is NONE where the topic is there and well."""

    name: str
    topic_id: TopicId | None
    partitions: tuple[PartitionMetadata, ...]
    is_internal: bool
    error: ErrorCode


class ClusterMetadata(NamedTuple):
    """A whole answer."""

    brokers: dict[BrokerId, Address]
    cluster_id: str | None
    controller_id: BrokerId
    topics: dict[str, TopicMetadata]


EMPTY_METADATA = ClusterMetadata({}, None, NO_LEADER, {})


def read_metadata(connection: ClientConnection, topics: Iterable[str] | None, *, allow_auto_topic_creation: bool = False) -> ClusterMetadata:
    """Ask for `topics` (None: all). A topic that is not there comes back with its error, it does not raise."""
    asked = None if topics is None else tuple(MetadataRequestTopic(name=name) for name in topics)
    body = connection.request(METADATA, MetadataRequest(asked, allow_auto_topic_creation))
    addresses = {BrokerId(broker.node_id): Address(broker.host, broker.port) for broker in body.brokers}
    return ClusterMetadata(
        # A broker may name the Unix socket over which it answers, and no other file of this machine.
        {broker: address for broker, address in addresses.items() if not address.is_unix or address == connection.address},
        body.cluster_id,
        BrokerId(body.controller_id),
        {topic.name: _topic(topic.name, topic) for topic in body.topics if topic.name is not None},
    )


def _topic(name: str, topic: TopicOfMetadata) -> TopicMetadata:
    topic_id = None if topic.topic_id == NO_TOPIC_ID else topic.topic_id
    return TopicMetadata(name, topic_id, tuple(sorted(map(_partition, topic.partitions))), topic.is_internal, error_code(topic.error_code))


def _partition(found: PartitionOfMetadata) -> PartitionMetadata:
    replicas, isr = tuple(map(BrokerId, found.replicas)), tuple(map(BrokerId, found.isr))
    return PartitionMetadata(found.partition, BrokerId(found.leader_id), LeaderEpoch(found.leader_epoch), replicas, isr, error_code(found.error_code))


# ---- retries


FIRST_PAUSE_MS = 20
LONGEST_PAUSE_MS = 1_000

Sleep = Callable[[float], None]


class Backoff:
    """Pauses that double from 20 ms to 1 s until `give_up_after_ms` have passed since the last success."""

    def __init__(self, clock: Clock, give_up_after_ms: int, sleep: Sleep = time.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._give_up_after_ms = give_up_after_ms
        self._pause_ms = FIRST_PAUSE_MS
        self._deadline_ms = clock.monotonic_ms() + give_up_after_ms
        self.tries = 0

    def succeeded(self) -> None:
        """Start over: the next failure is a first one."""
        self._pause_ms = FIRST_PAUSE_MS
        self._deadline_ms = self._clock.monotonic_ms() + self._give_up_after_ms
        self.tries = 0

    def pause_or_raise(self, error: Exception) -> None:
        """Wait before another try, or raise `error` if the time is over."""
        remaining_ms = self._deadline_ms - self._clock.monotonic_ms()
        if remaining_ms <= 0:
            raise error
        self.tries += 1
        self._sleep(min(self._pause_ms, remaining_ms) / 1000)
        self._pause_ms = min(self._pause_ms * 2, LONGEST_PAUSE_MS)


Answer = TypeVar("Answer")


class ClusterClient:
    """Questions to a cluster, with retries for `retry_ms`. Use it in a `with` block, or close it."""

    def __init__(self, bootstrap: Iterable[Address], *, client_id: str = "millrace", clock: Clock | None = None, sleep: Sleep = time.sleep,
                 connect_timeout_ms: int = CONNECT_TIMEOUT_MS, request_timeout_ms: int = REQUEST_TIMEOUT_MS, retry_ms: int = 10_000,
                 response_bytes_max: int = MAX_RESPONSE_BYTES, security: ClientSecurity | None = None) -> None:  # fmt: skip
        self.bootstrap = list(bootstrap)
        self.client_id = client_id
        self.clock: Clock = clock or SystemClock()
        self.sleep = sleep
        self.latest = EMPTY_METADATA
        self._connect_timeout_ms = connect_timeout_ms
        self._request_timeout_ms = request_timeout_ms
        self._retry_ms = retry_ms
        self._response_bytes_max = response_bytes_max
        self._security = security
        self._connections: dict[Address, ClientConnection] = {}

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def backoff(self, give_up_after_ms: int | None = None) -> Backoff:
        return Backoff(self.clock, self._retry_ms if give_up_after_ms is None else give_up_after_ms, self.sleep)

    # --- metadata

    def metadata(self, topics: Iterable[str] | None = None, *, allow_auto_topic_creation: bool = False) -> ClusterMetadata:
        """Ask any broker; raises BrokerUnreachable naming every address that was tried."""
        names = None if topics is None else list(topics)
        answer = self._ask_any(lambda connection: read_metadata(connection, names, allow_auto_topic_creation=allow_auto_topic_creation))
        self.latest = answer._replace(topics={**self.latest.topics, **answer.topics})
        return answer

    def topic(self, name: str, *, allow_auto_topic_creation: bool = False, complete: bool = True, is_new: bool = False) -> TopicMetadata:
        """One topic, which must be there, and (`complete`) have a leader for every partition: a topic just created gets time for it.
        `is_new`: it was created a moment ago, and the broker that is asked may not have heard of it yet."""
        backoff = self.backoff()
        while True:
            found = self.metadata([name], allow_auto_topic_creation=allow_auto_topic_creation).topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error
            if found is not None and code == ErrorCode.NONE:
                if not complete or all(partition.leader != NO_LEADER for partition in found.partitions):
                    return found
                code = ErrorCode.LEADER_NOT_AVAILABLE
            error = refused(code, f"use topic {name!r}")
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and allow_auto_topic_creation:
                error = RequestRefused(code, f"{error}, and the box did not create it; create it with `millrace topic create {name}`")
            if not is_retriable(error) or (code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not (allow_auto_topic_creation or is_new)):
                raise error
            backoff.pause_or_raise(error)

    # --- asking

    def ask_controller(self, api: ClientApi[Asked, Answered], body: Asked, timeout_ms: int | None = None) -> Answered:
        """Ask the broker that is the controller, as the latest metadata says; through a Unix socket the box of this machine, which passes it on."""
        if self.bootstrap and self.bootstrap[0].is_unix:
            return self._ask(self.bootstrap[0], lambda connection: connection.request(api, body, timeout_ms))
        metadata = self.metadata([])
        return self._ask(self._address_of(metadata, metadata.controller_id), lambda connection: connection.request(api, body, timeout_ms))

    def ask_broker(self, broker_id: BrokerId, api: ClientApi[Asked, Answered], body: Asked, timeout_ms: int | None = None) -> Answered:
        return self._ask(self._address_of(self.latest, broker_id), lambda connection: connection.request(api, body, timeout_ms))

    def open_connection(self, broker_id: BrokerId) -> ClientConnection:
        """A connection of the caller's own, for long polls and produces."""
        return self._open(self._address_of(self.latest, broker_id))

    def _address_of(self, metadata: ClusterMetadata, broker_id: BrokerId) -> Address:
        address = metadata.brokers.get(broker_id)
        if address is not None:
            return address
        if broker_id == NO_LEADER:
            raise RequestRefused(ErrorCode.LEADER_NOT_AVAILABLE, "the broker that should be asked is not known at the moment; try again")
        raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not registered in the cluster at the moment; is it running?")

    def _ask_any(self, question: Callable[[ClientConnection], Answer]) -> Answer:
        failures = []
        for address in self._known_addresses():
            try:
                return self._ask(address, question)
            except (BrokerUnreachable, ConnectionLost) as error:
                failures.append(str(error))
        raise BrokerUnreachable("; ".join(failures) or "no broker address is known")

    def _known_addresses(self) -> list[Address]:
        """Those with an open connection first, then bootstrap, then what metadata named."""
        return list(dict.fromkeys([*self._connections, *self.bootstrap, *self.latest.brokers.values()]))

    def _ask(self, address: Address, question: Callable[[ClientConnection], Answer]) -> Answer:
        """On the connection that is there; one that the broker had closed meanwhile (idle, restart) is replaced once."""
        kept = self._connections.pop(address, None)
        if kept is not None and kept.is_open:
            try:
                return self._keep(address, kept, question(kept))
            except ConnectionLost:
                kept.close()
            except BaseException:
                kept.close()
                raise
        fresh = self._open(address)
        try:
            answer = question(fresh)
        except BaseException:
            fresh.close()
            raise
        return self._keep(address, fresh, answer)

    def _keep(self, address: Address, connection: ClientConnection, answer: Answer) -> Answer:
        self._connections[address] = connection
        return answer

    def _open(self, address: Address) -> ClientConnection:
        return ClientConnection(address, client_id=self.client_id, clock=self.clock,
                                connect_timeout_ms=self._connect_timeout_ms, request_timeout_ms=self._request_timeout_ms,
                                response_bytes_max=self._response_bytes_max, security=self._security)  # fmt: skip
