"""Client quotas: which quota limits a client, and how long it is throttled. Pure.

A quota belongs to a user, a client id, both, or the default of either (KIP-13, KIP-55). Of those that fit a
client, the most specific one counts, in Kafka's order, which also says which clients share it. Byte rates and
request time (KIP-124) are measured over eleven windows of a second, as Kafka's `Rate`, so that the throttle times
are Kafka's; mutations of partitions (KIP-599) take tokens from a bucket. An address has one quota, new connections
a second (KIP-612). Weak: a client that chooses a new client id for each connection has a new quota each time, unless
its user has one.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
QUOTA_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
ADDRESS_QUOTA_KEYS: Final = (CONNECTION_CREATION_RATE,)
"""Quotas of addresses; the others are those of users and client ids."""
WHOLE_QUOTAS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)
"""Bytes and connections per second; the others may be fractions."""
_LONG_MAX: Final = 2**63 - 1
_LONG: Final = re.compile(r"\+?[0-9]{1,19}")
_DOUBLE: Final = re.compile(r"\s*\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
"""What Kafka reads as a LONG or a DOUBLE; Python would also read `1_0` and other alphabets."""

SAMPLES: Final = 11
WINDOW_MS: Final = 1_000
"""Kafka's `quota.window.num` and `quota.window.size.seconds`, and those of the controller."""
SMALLEST: Final = 1e-6
"""A quota is no smaller, so that what is divided by it stays a number."""
THROTTLE_MS_MAX: Final = 2**31 - 1

DEFAULT_NAME: Final = ""
"""Stands for the default of a type; Kafka refuses empty names."""


class QuotaEntity(NamedTuple):
    """What has quotas. None: it has no such type."""

    user: str | None = None
    client_id: str | None = None
    address: str | None = None
    """an IP address as `ipaddress` writes it, without user and client id"""

    @property
    def quota_keys(self) -> tuple[str, ...]:
        """The quotas that it may have."""
        return QUOTA_KEYS if self.address is None else ADDRESS_QUOTA_KEYS


class QuotaScope(NamedTuple):
    """Clients with the same scope share a quota; an empty field does not distinguish them. An address stands in `user`."""

    key: str
    user: str
    client_id: str


class QuotaLimit(NamedTuple):
    """`bound`: bytes per second, percent of one processor, mutations or connections per second."""

    scope: QuotaScope
    bound: float


class ClientQuotas:
    """All quotas of the cluster."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._by_key: dict[str, dict[QuotaEntity, float]] = {key: {} for key in QUOTA_KEYS}
        self._of_addresses: dict[str | None, float] = {}
        for entity, values in quotas.items():
            if entity.address is not None:
                self._of_addresses[entity.address] = values[CONNECTION_CREATION_RATE]
                continue
            for key, value in values.items():
                self._by_key[key][entity] = value

    @property
    def limit_requests(self) -> bool:
        """Whether some client has a quota that its requests use."""
        return any(self._by_key.values())

    @property
    def limit_connections(self) -> bool:
        """Whether some address has a quota."""
        return bool(self._of_addresses)

    def values_of(self, entity: QuotaEntity) -> dict[str, float]:
        """Return the quotas of this entity itself; those of defaults are not among them."""
        if entity.address is not None:
            bound = self._of_addresses.get(entity.address)
            return {} if bound is None else {CONNECTION_CREATION_RATE: bound}
        return {key: quotas[entity] for key, quotas in self._by_key.items() if entity in quotas}

    def connection_limit(self, address: str) -> QuotaLimit | None:
        """Return how many connections a second an address may open; None: it is not limited."""
        bound = self._of_addresses.get(address, self._of_addresses.get(DEFAULT_NAME))
        return None if bound is None else QuotaLimit(QuotaScope(CONNECTION_CREATION_RATE, address, ""), bound)

    def limit(self, key: str, user: str, client_id: str) -> QuotaLimit | None:
        """Return the quota of a client, as Kafka's `DefaultQuotaCallback` finds it; None: it is not limited."""
        quotas = self._by_key[key]
        if not quotas:
            return None
        for entity in _candidates(user, client_id):
            bound = quotas.get(entity)
            if bound is not None:
                by_client = client_id if entity.client_id is not None else ""
                return QuotaLimit(QuotaScope(key, user if entity.user is not None else "", by_client), bound)
        return None


def _candidates(user: str, client_id: str) -> tuple[QuotaEntity, ...]:
    if not client_id:
        return QuotaEntity(user), QuotaEntity(DEFAULT_NAME)
    return (
        QuotaEntity(user, client_id),
        QuotaEntity(user, DEFAULT_NAME),
        QuotaEntity(user),
        QuotaEntity(DEFAULT_NAME, client_id),
        QuotaEntity(DEFAULT_NAME, DEFAULT_NAME),
        QuotaEntity(DEFAULT_NAME),
        QuotaEntity(None, client_id),
        QuotaEntity(None, DEFAULT_NAME),
    )


def quota_problem(key: str, value: float, keys: Sequence[str] = QUOTA_KEYS) -> str | None:
    """Return why a quota cannot have this value, in Kafka's words, or None. `keys`: those that its entity may have."""
    if key not in keys:
        return f"Invalid configuration key {key}"
    if not value > 0 or math.isinf(value):
        return f"Quota {key} must be greater than 0"
    if value < SMALLEST:
        return f"Quota {key} must be at least {SMALLEST:g}"
    if key in WHOLE_QUOTAS and (not 1 <= math.floor(value + 1e-6) <= 2**63 or abs(math.floor(value + 1e-6) - value) > 1e-6):
        return f"Configuration {key} must be a LONG value"
    return None


def quota_text(key: str, value: float) -> str:
    """Return a valid quota as ZooKeeper holds it."""
    return str(min(math.floor(value + 1e-6), _LONG_MAX)) if key in WHOLE_QUOTAS else repr(float(value))


def quota_values(config: Mapping[str, str], keys: Sequence[str] = QUOTA_KEYS) -> dict[str, float]:
    """Return the quotas among the configs of an entity. Those that another tool wrote and that are invalid are left out."""
    values = {}
    for key in keys:
        text = config.get(key, "")
        if not (_LONG.fullmatch(text) and int(text) <= _LONG_MAX if key in WHOLE_QUOTAS else _DOUBLE.fullmatch(text)):
            continue
        value = float(text)
        if quota_problem(key, value, keys) is None:
            values[key] = value
    return values


class SampledRate:
    """What a client used in the last eleven seconds: Kafka's `Rate` over a `WindowedSum`."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque()
        """time in ms at which the window began, and what was used in it"""

    def record(self, value: float, now_ms: int) -> None:
        samples = self._samples
        if samples and now_ms - samples[-1][0] < WINDOW_MS:
            began_ms, used = samples[-1]
            samples[-1] = began_ms, used + value
            return
        samples.append((now_ms, value))
        self._purge(now_ms)

    def is_idle(self, now_ms: int) -> bool:
        """True if nothing that it has recorded counts any more."""
        self._purge(now_ms)
        return not any(used for _, used in self._samples)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Return how long the client must pause for its rate to fall to `bound` per second; 0: it is within it."""
        self._purge(now_ms)
        if not self._samples:
            return 0
        elapsed_ms = now_ms - self._samples[0][0]
        elapsed_ms += max(0, SAMPLES - 1 - elapsed_ms // WINDOW_MS) * WINDOW_MS
        rate = sum(used for _, used in self._samples) * 1_000 / elapsed_ms
        return round(min(THROTTLE_MS_MAX, (rate - bound) / bound * elapsed_ms)) if rate > bound else 0

    def _purge(self, now_ms: int) -> None:
        samples = self._samples
        while samples and now_ms - samples[0][0] >= SAMPLES * WINDOW_MS:
            samples.popleft()


class TokenBucket:
    """Tokens that are refilled at a rate, and may be overdrawn once (KIP-599)."""

    __slots__ = ("_tokens", "_updated_ms", "bound")

    def __init__(self, bound: float, now_ms: int) -> None:
        self.bound = bound
        self._tokens = bound * SAMPLES
        self._updated_ms = now_ms

    def take(self, count: float, now_ms: int) -> None:
        self._refill(now_ms)
        self._tokens -= count

    def throttle_ms(self, now_ms: int) -> int:
        """Return after how many ms the bucket is no longer overdrawn; 0: it is not."""
        self._refill(now_ms)
        return round(min(THROTTLE_MS_MAX, -self._tokens / self.bound * 1_000)) if self._tokens < 0 else 0

    def fullness(self, now_ms: int) -> float:
        """Return the tokens as a part of the most there can be: 1.0 is full, below 0 overdrawn."""
        self._refill(now_ms)
        return self._tokens / (self.bound * SAMPLES)

    def _refill(self, now_ms: int) -> None:
        self._tokens = min(self.bound * SAMPLES, self._tokens + self.bound * (now_ms - self._updated_ms) / 1_000)
        self._updated_ms = now_ms
