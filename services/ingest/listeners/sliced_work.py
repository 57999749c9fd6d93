"""Work of sessions that takes longer than a turn may last, in steps over turns.

Owned by `SenderConnections`. A large request (a body, a chunk, a window) is a generator that yields
after each step of about a millisecond. Its first steps run at once, so a small request never waits.
The rest waits with the other work of its sender's network (`network_of`, as for quotas: one machine
can use all addresses of an IPv6 /64), and the connection is not read until it is done. In each turn
the networks take their steps in deficit round robin by CPU time (Shreedhar and Varghese, 1995), for
at most `TURN_NS` together. Between turns the poller reads datagrams and the other connections. So
the time of one sender does not depend on what another one sends.

The work of one connection runs in its order, and one connection of a network after the other, so a
network has one opened request in memory at a time. Work whose partition is blocked waits until
the partition takes records again.

Weak: a step is not interrupted: a JSON text or a zstd frame of 16 MiB is one step of up to 0.2 s,
which its network repays in later turns. All senders behind one translated address share its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from inspect import GEN_CREATED, getgeneratorstate

from appliance.base.clock import Clock
from services.ingest.listeners.sender_connection import GONE, PauseReason, SenderConnection
from services.ingest.protocols.steps import Steps

INLINE_NS = 1_000_000
"""What one address may use in a turn before its work has to wait: a request of 100 records."""
QUANTUM_NS = 2_000_000
TURN_NS = 2_000_000
"""What all waiting work together may use in a turn: the delay that it adds for other senders."""


class SlicedWork:
    """`on_step(connection)` is called after each step that was not the last, `on_done(connection)`
    when a connection has no more work, `on_unstarted(connection, steps)` for work that ends before
    its first step, which has nothing to abandon."""

    def __init__(
        self,
        clock: Clock,
        on_step: Callable[[SenderConnection], None],
        on_done: Callable[[SenderConnection], None],
        on_unstarted: Callable[[SenderConnection, Steps], None],
    ) -> None:
        self._clock = clock
        self._on_step = on_step
        self._on_done = on_done
        self._on_unstarted = on_unstarted
        self._ring: deque[str | bytes] = deque()
        """Networks with work, in the order of their turns."""
        self._connections: dict[str | bytes, deque[SenderConnection]] = {}
        self._deficit_ns: dict[str | bytes, int] = {}
        self._inline_ns: dict[str | bytes, int] = {}
        """What each network has used in this turn without waiting."""

    @property
    def is_empty(self) -> bool:
        return not self._ring

    def run(self, connection: SenderConnection, steps: Steps) -> None:
        """Run the first steps if the network has used less than its share of this turn; add the
        rest to the waiting work."""
        network = connection.network
        if not connection.work and network not in self._connections:
            used_ns = self._inline_ns.get(network, 0)
            if used_ns < INLINE_NS:
                began_ns = self._clock.monotonic_ns()
                is_done = self._run_for(steps, began_ns + INLINE_NS - used_ns)
                self._inline_ns[network] = used_ns + self._clock.monotonic_ns() - began_ns
                if is_done:
                    return
        connection.work.append(steps)
        connection.pauses |= PauseReason.WORK
        if network not in self._connections:
            self._connections[network] = deque()
            self._deficit_ns[network] = 0
            self._ring.append(network)
        if connection.work_network != network:
            connection.work_network = network
            self._connections[network].append(connection)

    def _run_for(self, steps: Steps, until_ns: int) -> bool:
        """True if the steps ended."""
        for _ in steps:
            if self._clock.monotonic_ns() >= until_ns:
                return False
        return True

    def do_work(self) -> int:
        """Run steps of waiting work for `TURN_NS` at most; return how many networks may run. A
        network whose last step was long waits as many turns as it took quanta."""
        self._inline_ns.clear()
        if not self._ring:
            return 0
        cpu_ns = self._clock.thread_cpu_ns
        now_ns = cpu_ns()
        end_ns = now_ns + TURN_NS
        may_run = 0
        for _ in range(len(self._ring)):
            if now_ns >= end_ns:
                break
            network = self._ring[0]
            self._ring.rotate(-1)
            connection = self._next_of(network)
            if connection is None:
                self._deficit_ns[network] = 0
                continue
            may_run += 1
            deficit_ns = self._deficit_ns[network] + QUANTUM_NS
            while deficit_ns > 0 and now_ns < end_ns and connection is not None:
                self._step(connection)
                before_ns, now_ns = now_ns, cpu_ns()
                deficit_ns -= now_ns - before_ns
                connection = self._next_of(network) if network in self._connections else None
            if network in self._connections:
                # A turn that ends early leaves a part of the quantum; more than one is not saved.
                self._deficit_ns[network] = min(deficit_ns, QUANTUM_NS)
        return may_run

    def _next_of(self, network: str | bytes) -> SenderConnection | None:
        """Return the first connection whose partition takes records."""
        for connection in self._connections[network]:
            if not connection.pauses & PauseReason.PARTITION:
                return connection
        return None

    def _step(self, connection: SenderConnection) -> None:
        steps = connection.work[0]
        for _ in steps:
            self._on_step(connection)
            return
        connection.work.popleft()
        if connection.work:
            self._on_step(connection)
            return
        self._forget(connection)
        self._on_done(connection)

    def finish(self, connection: SenderConnection) -> None:
        """End the work of a connection that is gone, or is about to end: a group that was open is
        refused, and its sender repeats it."""
        if connection.work:
            self._forget(connection)
            work = list(connection.work)
            connection.work.clear()
            for steps in work:
                if getgeneratorstate(steps) == GEN_CREATED:
                    self._on_unstarted(connection, steps)
                steps.close()
            if connection.phase is not GONE:
                self._on_done(connection)

    def _forget(self, connection: SenderConnection) -> None:
        network, connection.work_network = connection.work_network, ""
        connections = self._connections[network]
        connections.remove(connection)
        if not connections:
            del self._connections[network], self._deficit_ns[network]
            self._ring.remove(network)
