"""Quotas of clients on one acceptor: count what they use, throttle those above their quota (KIP-13, KIP-124, KIP-219).

As in Kafka, a throttled request is answered at once with the throttle time, and its connection is muted for that
time: no further request of it is taken. A produce is carried out first; a fetch above the quota gets no records.
While the cluster has no quota, requests do not pass through this module. Acceptors of one box share quotas through
shared memory (`appliance/shm/quota_use.py`). Boxes, known by client id and address, are not limited. Weak: of the
time of a request, what the acceptor takes to begin it counts, not what other processes do for it or what a parked
fetch takes later.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from appliance.client.peers import may_be_box
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader, parse_request_header
from appliance.protocol.throttling import with_throttle_time
from appliance.runtime.agent import ServiceContext
from appliance.security.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    QUOTA_KEYS,
    REQUEST_PERCENTAGE,
    SAMPLES,
    WINDOW_MS,
    ClientQuotas,
    QuotaLimit,
    QuotaScope,
    SampledRate,
)
from services.acceptor.connection import Connection, PendingReply
from services.acceptor.request_memory import ArenaSlot

if TYPE_CHECKING:
    from appliance.shm.quota_use import QuotaUse, QuotaUseReader

REQUEST_THROTTLE_MS_MAX: Final = WINDOW_MS
"""As in Kafka, for its time a request is throttled for at most one window."""
CLIENTS_MAX: Final = 10_000
"""Users with client ids that are remembered, beside those of open connections."""
CLIENT_ID_MAX: Final = 255
"""Characters, as in the name of a quota: of a longer id, a digest is kept."""
UNLIMITED_MAX: Final = 1_000
"""Clients without a quota are remembered up to this number of all."""
SWEPT_MAX: Final = 1_000
"""Clients that one sweep checks."""
UNMUTED_MAX: Final = 100
"""Connections that continue in one turn: each may bring a request at once."""
STEP_MS: Final = 10
"""Muted connections are looked at no more often."""
PERCENT_OF_NS: Final = 100 / 1_000_000_000
_EXEMPT: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.WRITE_TXN_MARKERS})
_NS_A_MS: Final = 1_000_000


class QuotaUsage:
    """The use of one quota by all clients that share it, those of other acceptors included."""

    __slots__ = ("__weakref__", "_digest", "_rate", "_scale", "_seen", "_sharing", "bound", "fetch_bytes_max")

    def __init__(self, limit: QuotaLimit, sharing: QuotaSharing | None, now_ms: int) -> None:
        self.set_bound(limit.bound)
        self._scale = PERCENT_OF_NS if limit.scope.key == REQUEST_PERCENTAGE else 1.0
        self._rate = SampledRate()
        self._sharing = sharing
        if sharing is not None:
            self._digest = sharing.digest_of(limit.scope)
            self._seen = [reader.total(self._digest) for reader in sharing.readers]
            self._rate.record(sum(reader.recent(self._digest, now_ms) for reader in sharing.readers) * self._scale, now_ms)

    def set_bound(self, bound: float) -> None:
        """Use another quota from now on; what was used still counts."""
        self.bound = bound
        self.fetch_bytes_max = max(1, int(min(bound * (SAMPLES - 1), 2**31 - 1)))
        """What a fetch may get at most: a window's worth."""

    def record(self, amount: int, now_ms: int) -> int:
        """Count bytes, or ns; return for how many ms the client is throttled."""
        sharing = self._sharing
        if sharing is not None:
            self._count_others(sharing, now_ms)
            sharing.own.add(self._digest, amount, now_ms)
        self._rate.record(amount * self._scale, now_ms)
        return self._rate.throttle_ms(self.bound, now_ms)

    def offer(self, amount: int, now_ms: int) -> int:
        """Count bytes that would not exceed the quota and return 0; otherwise return for how many ms the client is throttled.

        A batch that alone exceeds the quota is let through when nothing else counts: it cannot be sent in parts.
        """
        sharing, rate = self._sharing, self._rate
        if sharing is not None:
            self._count_others(sharing, now_ms)
        is_first = rate.is_idle(now_ms)
        rate.record(amount, now_ms)
        throttle_ms = 0 if is_first else rate.throttle_ms(self.bound, now_ms)
        if throttle_ms:
            rate.record(-amount, now_ms)
        elif sharing is not None:
            sharing.own.add(self._digest, amount, now_ms)
        return throttle_ms

    def is_idle(self, now_ms: int) -> bool:
        return self._rate.is_idle(now_ms)

    def _count_others(self, sharing: QuotaSharing, now_ms: int) -> None:
        for index, reader in enumerate(sharing.readers):
            total = reader.total(self._digest)
            added = total - self._seen[index]
            if added:
                self._seen[index] = total
                self._rate.record((added if added > 0 else total) * self._scale, now_ms)


class QuotaSharing:
    """The totals of this acceptor, and those of the others of the box."""

    def __init__(self, own: QuotaUse, readers: list[QuotaUseReader]) -> None:
        from hashlib import blake2b  # brings OpenSSL

        self.own = own
        self.readers = readers
        self._digest = blake2b

    def digest_of(self, scope: QuotaScope) -> int:
        return int.from_bytes(self._digest(repr(scope).encode(), digest_size=8).digest(), "little") or 1

    def attach(self) -> None:
        for reader in self.readers:
            reader.attach()

    def close(self) -> None:
        self.own.close()
        for reader in self.readers:
            reader.close()


class ClientLimits:
    """The quotas of a user with a client id; None: not limited."""

    __slots__ = ("fetched", "may_be_box", "produced", "request_time", "throttles")

    def __init__(
        self, throttles: ClientThrottles, may_be_box: bool, produced: QuotaUsage | None, fetched: QuotaUsage | None, request_time: QuotaUsage | None
    ) -> None:
        self.throttles = throttles
        self.may_be_box = may_be_box
        self.produced = produced
        self.fetched = fetched
        self.request_time = request_time

    def is_idle(self, now_ms: int) -> bool:
        return all(usage is None or usage.is_idle(now_ms) for usage in (self.produced, self.fetched, self.request_time))

    def fetch_bytes(self, most: int) -> int:
        """Return how many bytes a fetch may get that would otherwise get `most`."""
        return most if self.fetched is None else min(most, self.fetched.fetch_bytes_max)

    def holds_back(self, reply: PendingReply, version: int, size_bytes: int) -> bool:
        """Count the records of a fetch. True: they exceed the quota, so the response must be empty, and is throttled."""
        if self.fetched is None or not size_bytes:
            return False
        throttles = self.throttles
        throttle_ms = self.fetched.offer(size_bytes, throttles.now_ms())
        if throttle_ms:
            throttles.throttle(CONSUMER_BYTE_RATE, reply, ApiKey.FETCH, version, throttle_ms)
        return throttle_ms > 0


class ReplyThrottle:
    """The throttle time of a response that is not on its way yet."""

    __slots__ = ("_api_key", "_throttles", "_version", "throttle_ms")

    def __init__(self, throttles: ClientThrottles, api_key: int, version: int, throttle_ms: int) -> None:
        self._throttles = throttles
        self._api_key = api_key
        self._version = version
        self.throttle_ms = throttle_ms

    def apply(self, reply: PendingReply) -> None:
        """The response leaves: it says for how long, and the time begins."""
        pieces = reply.pieces
        if pieces and isinstance(pieces[0], bytes):
            pieces[0] = with_throttle_time(self._api_key, self._version, pieces[0], self.throttle_ms)
        self._throttles.mute(reply.connection, self.throttle_ms)


class ClientThrottles:
    """The quotas of all clients of one acceptor. `on_request` stands before `dispatch` while there are quotas."""

    def __init__(
        self,
        context: ServiceContext,
        dispatch: Callable[[Connection, memoryview, int, int, ArenaSlot | None], bool],
        on_muted: Callable[[Connection], None],
        on_unmuted: Callable[[Connection], None],
        is_box: Callable[[Connection], bool],
    ) -> None:
        """`is_box` says whether a box has this connection."""
        self._is_box = is_box
        self._context = context
        self._clock = context.clock
        self._dispatch = dispatch
        self._on_muted = on_muted
        self._on_unmuted = on_unmuted
        self._quotas = ClientQuotas({})
        self.clients: dict[tuple[str, str], ClientLimits | None] = {}
        """by user and client id, or its digest; None: without a quota"""
        self._addresses: dict[str, QuotaUsage] = {}
        """of the addresses that have a quota and connected not long ago"""
        self._usages: WeakValueDictionary[QuotaScope, QuotaUsage] = WeakValueDictionary()
        self._kept: list[QuotaUsage] = []
        """those of before the last change of quotas, until the next sweep"""
        self._sharing: QuotaSharing | None = None
        self.muted: dict[Connection, None] = {}
        """connections of which no request is taken for a time; while there are none, `do_work` and `park_ms` need no call"""
        self._due: list[tuple[int, int, Connection]] = []
        """until when each is muted, a heap; also of some that are not any more, or longer"""
        self._order = 0
        self._unmute_ns = 0
        """when to look at them next"""
        counters = context.counters
        self._throttled = {key: counters.counter(f'acceptor.throttled_requests{{quota="{key}"}}') for key in QUOTA_KEYS}
        self._throttle_ms = {key: counters.counter(f'acceptor.throttle_ms{{quota="{key}"}}') for key in QUOTA_KEYS}
        self._connections_muted = counters.gauge("acceptor.connections_muted")

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def set_quotas(self, quotas: ClientQuotas) -> None:
        """Use these quotas; what was used of quotas that stay as they are still counts."""
        self._quotas = quotas
        box = self._context.box
        if (quotas.limit_requests or quotas.limit_connections) and self._sharing is None and box.acceptors > 1:
            from appliance.shm.quota_use import QuotaUse, QuotaUseReader

            context = self._context
            others = (f"acceptor@{index}" for index in range(box.acceptors))
            readers = [QuotaUseReader(context.layout, name) for name in others if name != context.process_name]
            self._sharing = QuotaSharing(QuotaUse(context.layout, context.process_name, context.incarnation), readers)
            self._sharing.attach()
        self._kept = list(self._usages.values())
        self.clients.clear()
        self._addresses.clear()

    def sweep(self, now_ns: int) -> None:
        """Once a second: forget clients that have not used anything for a while."""
        self._kept = []
        if self._sharing is not None:
            self._sharing.attach()
        now_ms = now_ns // _NS_A_MS
        for client in list(islice(self.clients, SWEPT_MAX)):
            limits = self.clients.pop(client)
            if limits is not None and not limits.is_idle(now_ms):
                self.clients[client] = limits
        for address in list(islice(self._addresses, SWEPT_MAX)):
            usage = self._addresses.pop(address)
            if not usage.is_idle(now_ms):
                self._addresses[address] = usage
        self._connections_muted.set(len(self.muted))

    def close(self) -> None:
        if self._sharing is not None:
            self._sharing.close()

    # -- requests

    def on_request(self, connection: Connection, buffer: memoryview, position: int, limit: int, body_slot: ArenaSlot | None) -> bool:
        """As `Dispatch.on_request`, and throttle the client if the request exceeds its quotas."""
        header = parse_request_header(buffer, position, limit)
        limits = self._limits_of(connection.principal.name, header.client_id)
        if limits is not None and limits.may_be_box and self._is_box(connection):
            limits = None
        connection.limits = limits
        if limits is None:
            return self._dispatch(connection, buffer, position, limit, body_slot)
        replies = connection.replies
        former = replies[-1] if replies else None
        began_ns = self._clock.thread_cpu_ns() if limits.request_time is not None else 0
        if not self._dispatch(connection, buffer, position, limit, body_slot):
            return False
        if connection.closed or connection.limits is None or header.api_key in _EXEMPT:
            return True
        throttle_ms = request_ms = 0
        if limits.produced is not None and header.api_key == ApiKey.PRODUCE:
            throttle_ms = limits.produced.record(limit - position, self.now_ms())
        if limits.request_time is not None:
            used_ns = self._clock.thread_cpu_ns() - began_ns
            request_ms = min(REQUEST_THROTTLE_MS_MAX, limits.request_time.record(used_ns, self.now_ms()))
        if throttle_ms or request_ms:
            key = PRODUCER_BYTE_RATE if throttle_ms > request_ms else REQUEST_PERCENTAGE
            reply = replies[-1] if replies and replies[-1] is not former else None
            if reply is None:
                self._count(key, max(throttle_ms, request_ms))
                self.mute(connection, max(throttle_ms, request_ms))
            else:
                self.throttle(key, reply, header.api_key, header.api_version, max(throttle_ms, request_ms))
        return True

    def connection_throttle_ms(self, address: str) -> int:
        """Count a new connection of an address and return 0, or for how many ms the address exceeds its quota: that connection is refused."""
        usage = self._addresses.get(address)
        if usage is None:
            usage = self._usage_of(self._quotas.connection_limit(address))
            if usage is None:
                return 0
            if len(self._addresses) >= CLIENTS_MAX:
                del self._addresses[next(iter(self._addresses))]
            self._addresses[address] = usage
        return usage.offer(1, self.now_ms())

    def on_mutation(self, reply: PendingReply, header: RequestHeader, throttle_ms: int) -> None:
        """The controller has throttled a request that creates or deletes partitions."""
        self.throttle(CONTROLLER_MUTATION_RATE, reply, header.api_key, header.api_version, throttle_ms)

    def throttle(self, key: str, reply: PendingReply, api_key: int, version: int, throttle_ms: int) -> None:
        """Give a response its throttle time, and mute its connection."""
        self._count(key, throttle_ms)
        if reply.throttle is None or reply.throttle.throttle_ms < throttle_ms:
            reply.throttle = ReplyThrottle(self, api_key, version, throttle_ms)
        self.mute(reply.connection, throttle_ms)

    def _count(self, key: str, throttle_ms: int) -> None:
        self._throttled[key].add()
        self._throttle_ms[key].add(throttle_ms)

    def _limits_of(self, user: str, client_id: str) -> ClientLimits | None:
        if len(client_id) > CLIENT_ID_MAX:
            from hashlib import blake2b  # brings OpenSSL

            client_id = blake2b(client_id.encode(), digest_size=16).hexdigest()  # no quota has so long a name
        client = user, client_id
        try:
            return self.clients[client]
        except KeyError:
            pass
        produced, fetched, request_time = (
            self._usage_of(self._quotas.limit(key, user, client_id)) for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
        )
        is_limited = produced is not None or fetched is not None or request_time is not None
        if not is_limited and len(self.clients) >= UNLIMITED_MAX:
            return None
        if len(self.clients) >= CLIENTS_MAX:
            del self.clients[next(iter(self.clients))]
        limits = self.clients[client] = ClientLimits(self, may_be_box(client_id), produced, fetched, request_time) if is_limited else None
        return limits

    def _usage_of(self, limit: QuotaLimit | None) -> QuotaUsage | None:
        if limit is None:
            return None
        usage = self._usages.get(limit.scope)
        if usage is None:
            if self._sharing is not None:
                self._sharing.attach()  # another acceptor may have begun to count since the last sweep
            usage = self._usages[limit.scope] = QuotaUsage(limit, self._sharing, self.now_ms())
        elif usage.bound != limit.bound:
            usage.set_bound(limit.bound)
        return usage

    # -- muted connections

    def mute(self, connection: Connection, throttle_ms: int) -> None:
        """Take no request of the connection for this time; a longer one that has begun stays."""
        until_ns = self._clock.monotonic_ns() + throttle_ms * _NS_A_MS
        if connection.closed or until_ns <= connection.muted_until_ns:
            return
        connection.muted_until_ns = until_ns
        if not self.muted or until_ns < self._unmute_ns:
            self._unmute_ns = until_ns
        self.muted[connection] = None
        self._order += 1
        heappush(self._due, (until_ns, self._order, connection))
        self._on_muted(connection)

    def forget(self, connection: Connection) -> None:
        """The connection was closed."""
        self.muted.pop(connection, None)
        self._drop_outdated()

    def _drop_outdated(self) -> None:
        """Of connections that were closed, or muted for longer since: no more than there are muted ones."""
        if len(self._due) > 2 * len(self.muted) + UNMUTED_MAX or not self.muted:
            self._due = [each for each in self._due if each[2] in self.muted and each[0] == each[2].muted_until_ns]
            heapify(self._due)

    def do_work(self, now_ns: int) -> int:
        """Continue with the connections whose time is over, `UNMUTED_MAX` a turn, the oldest first."""
        muted, due = self.muted, self._due
        if not muted or now_ns < self._unmute_ns:
            return 0
        unmuted: list[Connection] = []
        while due and due[0][0] <= now_ns and len(unmuted) < UNMUTED_MAX:
            until_ns, _, connection = heappop(due)
            if connection in muted and connection.muted_until_ns == until_ns:  # not closed or throttled again since
                del muted[connection]
                connection.muted_until_ns = 0
                unmuted.append(connection)
        if due and due[0][0] > now_ns:
            self._unmute_ns = max(now_ns + STEP_MS * _NS_A_MS, due[0][0])
        self._drop_outdated()
        for connection in unmuted:
            self._on_unmuted(connection)
        return len(unmuted)

    def park_ms(self, now_ns: int, most_ms: int) -> int:
        """Return how long the process may wait until a connection is due."""
        if not self.muted:
            return most_ms
        return max(0, min(most_ms, -(-(self._unmute_ns - now_ns) // _NS_A_MS)))
