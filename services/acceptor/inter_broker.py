"""Requests that only boxes send each other: accepted from boxes, refused from others.

On an inter-broker listener with TLS, a connection is that of a box if the alternative names of its certificate
have the host that a registered box advertises there (no wildcards; loopback only where all boxes advertise it).
So the authority of this listener must sign these names for boxes only. Where boxes log in to each other (SASL_SSL), a
connection is that of a box if it has logged in as `inter.broker.user`. On all other listeners, also those
through which boxes connect while a cluster changes to TLS, a connection is that of a box by its address.

These are Fetch with another replica id than a consumer's, ListOffsets likewise, OffsetForLeaderEpoch with a
replica id, WriteTxnMarkers, and AddPartitionsToTxn from version 4 on. They return records above the high
watermark, or end and extend transactions of others; Kafka requires CLUSTER_ACTION for most. A follower's
Fetch must also have exactly the broker epoch that the image has for its broker. Loopback counts as a box by
default, because operators' tools run there (`kafka-transactions.sh abort` sends WriteTxnMarkers). A person of the
console may send these from anywhere. Produces and fetches of consumers are never checked.

A refusal is logged when it is `GRACE_NS` old and still right, then once a minute for each address: a box
that registers is refused until the image here has it, and that is normal.
Owned by one acceptor. Weak spot: by address, each program on a box's machine is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.base.networks import lies_in, read_networks
from appliance.cluster.metadata_image import BrokerImage
from appliance.security.transport import peer_name
from appliance.shm.counters import Counters
from services.acceptor.broker_addresses import BrokerAddresses

ADDRESS, CERTIFICATE, USER, BROKER_EPOCH = "address", "certificate", "user", "broker-epoch"
"""Reasons, as the counter has them."""
GRACE_NS = 5_000_000_000
REPEAT_NS = 60_000_000_000
REMEMBERED_MAX = 256
"""Addresses whose refusals are logged at a time; those of others are only counted."""
NOT_REGISTERED = -1
_LOOPBACK = read_networks("127.0.0.0/8, ::1")


class Sender(Protocol):
    """A connection. `certificate_names`: as `TlsTransport` has them; None: it counts by its address. `is_box_user`: whether it
    has logged in as boxes do, on the listener where they do; None: on another one."""

    @property
    def address(self) -> str: ...

    @property
    def certificate_names(self) -> frozenset[str | bytes] | None: ...

    @property
    def is_box_user(self) -> bool | None: ...


class _Refused:
    """Requests of one address that were refused for one reason since the last log line."""

    __slots__ = ("broker_epoch", "count", "first_ns", "last_ns", "log_ns", "replica_id", "what")

    def __init__(self, now_ns: int) -> None:
        self.first_ns = self.last_ns = now_ns
        self.log_ns = now_ns + GRACE_NS
        self.count = 0
        self.what = ""
        self.replica_id = self.broker_epoch = NOT_REGISTERED


def _is_loopback(name: str | bytes) -> bool:
    return lies_in(name, _LOOPBACK) if isinstance(name, bytes) else name == "localhost"


class InterBrokerGate:
    """`refresh` when the image has changed, `sweep` once a second."""

    def __init__(self, networks: str, counters: Counters, clock: Clock, log: Logger) -> None:
        """`networks` as `inter.broker.allowed.networks` has them."""
        self._addresses = BrokerAddresses(read_networks(networks))
        self._broker_epochs: dict[int, int] = {}
        self._names: dict[int, str | bytes] = {}
        """by broker id, as certificates have them"""
        self._clock = clock
        self._log = log
        self._counters = {
            ADDRESS: counters.counter('acceptor.inter_broker_refused{reason="address"}'),
            CERTIFICATE: counters.counter('acceptor.inter_broker_refused{reason="certificate"}'),
            USER: counters.counter('acceptor.inter_broker_refused{reason="user"}'),
            BROKER_EPOCH: counters.counter('acceptor.inter_broker_refused{reason="broker-epoch"}'),
        }
        self._refused: dict[tuple[str, str], _Refused] = {}

    def refresh(self, brokers: Mapping[int, BrokerImage]) -> None:
        """The registered brokers, as the image has them now."""
        self._broker_epochs = {broker.id: broker.epoch for broker in brokers.values()}
        hosts = [broker.host for broker in brokers.values()]
        names = {broker.id: peer_name(broker.host) for broker in brokers.values()}
        has_others = not all(map(_is_loopback, names.values()))  # certificates of many programs have these names
        self._names = {broker_id: name for broker_id, name in names.items() if not (has_others and _is_loopback(name))}
        self._addresses.set_hosts(hosts, self._clock.monotonic_ns())

    @property
    def is_settled(self) -> bool:
        """True when the host names of all registered brokers are resolved, or could not be."""
        return self._addresses.is_settled

    def admits(self, sender: Sender, what: str, broker_id: int = NOT_REGISTERED) -> bool:
        """True if `sender` may send `what`, which only a box may (`broker_id`: only this one); counts refusals."""
        names, now_ns = sender.certificate_names, self._clock.monotonic_ns()
        if sender.is_box_user is not None:
            if not sender.is_box_user:
                self._count(USER, sender.address, now_ns).what = what
            return sender.is_box_user
        if names is None:
            if self._addresses.contains(sender.address, now_ns):
                return True
        elif self._names.get(broker_id) in names if broker_id >= 0 else self.is_box(sender):
            return True
        self._count(ADDRESS if names is None else CERTIFICATE, sender.address, now_ns).what = what
        return False

    def is_box(self, sender: Sender) -> bool:
        """As `admits`, of what others may send, too: counts nothing."""
        if sender.is_box_user is not None:
            return sender.is_box_user
        if sender.certificate_names is None:
            return self._addresses.contains(sender.address, self._clock.monotonic_ns())
        return not sender.certificate_names.isdisjoint(self._names.values())

    def fetch_problem(self, sender: Sender, replica_id: int, broker_epoch: int) -> ErrorCode | None:
        """Return the error for a Fetch with a replica id, or None.

        A replica id below 0 that is not a consumer's reads to the log end and is no follower.
        """
        if not self.admits(sender, f"Fetch as replica {replica_id}", replica_id):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        registered = self._broker_epochs.get(replica_id, NOT_REGISTERED)
        if replica_id < 0 or (broker_epoch == registered != NOT_REGISTERED):
            return None
        refused = self._count(BROKER_EPOCH, sender.address, self._clock.monotonic_ns())
        if broker_epoch >= refused.broker_epoch:  # keep the largest: a later registration explains it least
            refused.replica_id, refused.broker_epoch = replica_id, broker_epoch
        return ErrorCode.STALE_BROKER_EPOCH

    def _count(self, reason: str, address: str, now_ns: int) -> _Refused:
        self._counters[reason].add()
        key = reason, address
        refused = self._refused.get(key)
        if refused is None:
            refused = _Refused(now_ns)
            if len(self._refused) < REMEMBERED_MAX:
                self._refused[key] = refused
        refused.count += 1
        refused.last_ns = now_ns
        return refused

    def sweep(self, now_ns: int) -> None:
        """Once a second."""
        self._addresses.look_up(now_ns)
        for (reason, address), refused in list(self._refused.items()):
            if now_ns < refused.log_ns:
                continue
            if not refused.count or self._is_over(reason, address, refused, now_ns):
                del self._refused[reason, address]
                continue
            words = self._words(reason, refused)
            words = f"refused {refused.count} requests from {address}, such as {words}"
            self._log.warning(words, client=address, reason=reason)
            refused.count = 0
            refused.log_ns = now_ns + REPEAT_NS

    def _words(self, reason: str, refused: _Refused) -> str:
        if reason == CERTIFICATE:
            return (
                f"{refused.what}: only boxes may send that on this listener, and its certificate does not have the host of this box; "
                "the alternative names of a box's certificate must have the host that it advertises"
            )
        if reason == USER:
            return f"{refused.what}: only boxes may send that on this listener, and they log in as inter.broker.user"
        if reason == ADDRESS:
            return (
                f"{refused.what}: only boxes may send that, and no registered box has this address; "
                "if one connects from it, add it to inter.broker.allowed.networks"
            )
        registered = self._broker_epochs.get(refused.replica_id, NOT_REGISTERED)
        known = f"registered is {registered}" if registered != NOT_REGISTERED else "it is not registered"
        return f"Fetch as replica {refused.replica_id} with broker epoch {refused.broker_epoch}: {known}"

    def _is_over(self, reason: str, address: str, refused: _Refused, now_ns: int) -> bool:
        """True if the refusal was temporary: the image here, or that of the sender, was behind."""
        if reason in (CERTIFICATE, USER):
            return False
        if reason == ADDRESS:
            return self._addresses.contains(address, now_ns)
        registered = self._broker_epochs.get(refused.replica_id, NOT_REGISTERED)
        return refused.broker_epoch <= registered and refused.last_ns - refused.first_ns < GRACE_NS
