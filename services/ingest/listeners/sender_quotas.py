"""Quotas of senders: token buckets by listener and address, for bytes and for records.

Owned by the connections and datagrams of one ingest. Bytes are those received, and what compressed
content has beyond its compressed size. A sender's bucket draws small credits from its own tokens
and from those that all senders of its listener share, so the usual receive costs a subtraction and
a comparison. Records are counted for the sender's network and settled when a credit is drawn. A
level may go below zero by one receive or one request; it is repaid.

The table of addresses is bounded: beyond `ADDRESSES_MAX` the oldest bucket goes, and its address
begins with a full one. Addresses of one IPv6 /64 share a bucket, because one host can use them all.

Weak: each ingest of a box counts for itself. Records of an address at other listeners count too. The source addresses of datagrams can be forged, so
only the listener's quota bounds them.
"""

from __future__ import annotations

from typing import Final

from appliance.base.clock import Clock
from appliance.senders.listener import Listener
from appliance.senders.sender_accounts import network_of

BURST_SECONDS: Final = 2
CREDIT_BYTES: Final = 65_536
ADDRESSES_MAX: Final = 16_384
"""Buckets of one listener, 0.5 KB each."""
NO_LIMIT: Final = 1 << 62
_NS: Final = 1_000_000_000


class Tokens:
    """A level that rises by `rate` a second up to a burst; a rate of 0 is no limit."""

    __slots__ = ("_burst", "_filled_ns", "_level", "_rate")

    def __init__(self, rate: int, now_ns: int) -> None:
        self._rate = rate
        self._burst = self._level = rate * BURST_SECONDS if rate else NO_LIMIT
        self._filled_ns = now_ns

    def available(self, now_ns: int) -> int:
        if self._rate and self._level < self._burst:
            earned = self._rate * (now_ns - self._filled_ns) // _NS
            if earned:
                self._level = min(self._burst, self._level + earned)
                self._filled_ns += earned * _NS // self._rate  # the rest of a token is not lost
        else:
            self._filled_ns = now_ns
        return self._level

    def take(self, count: int) -> None:
        if self._rate:
            self._level -= count

    def wait_ms(self, now_ns: int) -> int:
        """Return how long until the level is no longer below zero; 0 if it is not."""
        level = self.available(now_ns)
        return -level * 1000 // self._rate + 1 if level < 0 else 0


class SenderQuota:
    """The tokens of one address, or of one listener."""

    __slots__ = ("_records_seen", "bytes", "records")

    def __init__(self, bytes_per_second: int, records_per_second: int, now_ns: int) -> None:
        self.bytes = Tokens(bytes_per_second, now_ns)
        self.records = Tokens(records_per_second, now_ns)
        self._records_seen = -1

    def settle(self, records: int) -> None:
        """Take the tokens of the records since the last call; `records`: all that were ever sent. A
        smaller number is a count that began again."""
        if self._records_seen >= 0:
            self.records.take(records - self._records_seen if records >= self._records_seen else records)
        self._records_seen = records


class SenderBucket:
    """The credit of one address. The reader subtracts what it has received from `bytes_left`; below
    zero it calls `wait_ms` before it reads again."""

    __slots__ = ("_clock", "_handshakes", "_own", "_shared", "bytes_left")

    def __init__(self, own: SenderQuota, shared: SenderQuota, clock: Clock, handshakes_per_second: int = 0) -> None:
        self._handshakes = Tokens(handshakes_per_second, clock.monotonic_ns())
        self._own = own
        self._shared = shared
        self._clock = clock
        self.bytes_left = 0

    def reserve_handshake(self) -> int:
        """Take the token of a TLS handshake; return in how many milliseconds it is there. Each further
        one comes after those that wait, so a connection waits once."""
        now_ns = self._clock.monotonic_ns()
        self._handshakes.available(now_ns)
        self._handshakes.take(1)
        return self._handshakes.wait_ms(now_ns)

    def return_handshake(self) -> None:
        """A connection ended before its handshake began."""
        self._handshakes.take(-1)

    def wait_ms(self, own_records: int, shared_records: int) -> int:
        """Draw new credit; return how long the sender must wait, 0 if it need not. The records are
        all that its network, and all that the senders of its listener have ever sent."""
        now_ns = self._clock.monotonic_ns()
        own, shared = self._own, self._shared
        own.settle(own_records)
        shared.settle(shared_records)
        if self.bytes_left < 0:
            own.bytes.take(-self.bytes_left)
            shared.bytes.take(-self.bytes_left)
            self.bytes_left = 0
        wait_ms = max(tokens.wait_ms(now_ns) for tokens in (own.bytes, own.records, shared.bytes, shared.records))
        if wait_ms:
            self.bytes_left = -1  # the next check draws again
        else:
            self.bytes_left = min(CREDIT_BYTES, own.bytes.available(now_ns), shared.bytes.available(now_ns))
            own.bytes.take(self.bytes_left)
            shared.bytes.take(self.bytes_left)
        return wait_ms


class SenderQuotas:
    """The buckets of one listener."""

    def __init__(self, listener: Listener, clock: Clock) -> None:
        self._listener = listener
        self._clock = clock
        self._shared = SenderQuota(listener.bytes_per_second, listener.records_per_second, clock.monotonic_ns())
        self._buckets: dict[str | bytes, SenderBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket_of(self, address: str) -> SenderBucket:
        key = network_of(address)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= ADDRESSES_MAX:
                del self._buckets[next(iter(self._buckets))]
            own = SenderQuota(self._listener.sender_bytes_per_second, self._listener.sender_records_per_second, self._clock.monotonic_ns())
            bucket = self._buckets[key] = SenderBucket(own, self._shared, self._clock, self._listener.tls_handshakes_per_second)
        return bucket
