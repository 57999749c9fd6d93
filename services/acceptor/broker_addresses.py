"""Addresses from which boxes connect: those of the registered brokers, and `inter.broker.allowed.networks`.

The image names each broker by its advertised host. A number counts at once. A name is resolved by a thread
(`client/host_lookup`), and again every minute, so the duty cycle never waits for a resolver. A look-up that
fails changes nothing. Owned by one acceptor.
Weak spots: an address says which machine connects, not which program. A box that connects from an address
that its advertised host does not have is known by the setting only.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.base.networks import Network, lies_in, packed_address
from appliance.client.address import Address
from appliance.client.peer_stream import HostLookup

LOOK_UP_AGAIN_NS = 60_000_000_000
RETRY_NS = 5_000_000_000
"""Between two look-ups of a name that has no address yet."""
VERDICTS_MAX = 1_024
"""Addresses whose answer is kept; more are looked at anew."""
_NO_PORT = 0


class _Host:
    """One advertised host."""

    __slots__ = ("again_ns", "known", "lookup", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: frozenset[bytes] = frozenset()
        self.lookup: HostLookup | None = HostLookup(Address(name, _NO_PORT))
        self.again_ns = 0
        """When it is resolved again; 0: it is a number, or is being resolved."""


class BrokerAddresses:
    """`set_hosts` when the image has changed, `look_up` once a second."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)
        self._hosts: dict[str, _Host] = {}
        self._verdicts: dict[str, bool] = {}

    def set_hosts(self, hosts: Iterable[str], now_ns: int) -> None:
        """The advertised hosts of all registered brokers."""
        wanted = set(hosts)
        if wanted != self._hosts.keys():
            self._hosts = {name: self._hosts.get(name) or _Host(name) for name in wanted}
            self._verdicts.clear()
            self._collect(now_ns)

    def look_up(self, now_ns: int) -> None:
        """Take what resolvers have answered, and ask again for names whose time has come."""
        self._collect(now_ns)
        for host in self._hosts.values():
            if host.again_ns and now_ns >= host.again_ns:
                host.again_ns = 0
                host.lookup = HostLookup(Address(host.name, _NO_PORT))

    @property
    def is_settled(self) -> bool:
        """Whether every host was resolved, or could not be."""
        return all(host.lookup is None or host.lookup.found is not None for host in self._hosts.values())

    def contains(self, address: str, now_ns: int) -> bool:
        """Whether a connection from `address` comes from a box."""
        verdict = self._verdicts.get(address)
        if verdict is None:
            self._collect(now_ns)
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[address] = self._look(packed_address(address))
        return verdict

    def _look(self, packed: bytes) -> bool:
        if not packed:
            return False
        return lies_in(packed, self._networks) or any(packed in host.known for host in self._hosts.values())

    def _collect(self, now_ns: int) -> None:
        for host in self._hosts.values():
            if host.lookup is None or host.lookup.found is None:
                continue
            found = frozenset(packed_address(str(each.sockaddr[0])) for each in host.lookup.found) - {b""}
            host.lookup = None
            if not packed_address(host.name):
                host.again_ns = now_ns + (LOOK_UP_AGAIN_NS if found else RETRY_NS)
            if found and found != host.known:
                host.known = found
                self._verdicts.clear()
