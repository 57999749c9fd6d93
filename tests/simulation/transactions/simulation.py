"""One run out of one seed: producers, two acceptors, a coordinator, partitions of this box and of another one, and faults; then everything heals.

What must hold: every producer ends all its transactions and gets no error that a correct broker would not give (`ClientsAreServed`); a committed transaction is
whole, in order, and there once (`CommittedIsWhole`); nothing of another one is visible (`AbortedIsHidden`); nothing stays open (`NothingStaysOpen`).
"""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.invariants import Broken, hold
from tests.simulation.transactions.broker import RESTART, Acceptor, CoordinatorProcess
from tests.simulation.transactions.client import Connection, Outcome, Producer
from tests.simulation.transactions.partition import ABORTED, COMMITTED, OPEN, Partition
from tests.simulation.world import MS, SECOND, World

SETTLES_WITHIN = 60 * SECOND
LONG_TIMEOUT_MS = 900_000


class Ended(NamedTuple):
    """What a run was about."""

    seed: int
    steps: int
    deaths: int
    committed: int
    aborted: int


class TransactionSimulation:
    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        chance = world.chance
        self.partitions = [Partition(number) for number in range(chance.choice((1, 2, 3)))]
        elsewhere = frozenset(number for number in range(len(self.partitions)) if chance.random() < 0.5)
        self.coordinator = CoordinatorProcess(world, self.partitions, elsewhere)
        self.acceptors = [self._new_acceptor() for _ in range(2)]
        self.connections: list[Connection] = []
        self._values = 0
        timeout_ms = chance.choice((LONG_TIMEOUT_MS, LONG_TIMEOUT_MS, 150))
        world.network.slow = chance.choice((0.0, 0.0, 0.01, 0.03))
        world.network.loss = chance.choice((0.0, 0.0, 0.05, 0.2))
        # In the first protocol a late EndTxn or marker cannot be distinguished from one of the next
        # transaction, nor in Kafka: see KIP-890.
        is_old = chance.random() < 0.4 and not (world.network.slow or world.network.loss)
        self.producers = [
            Producer(world, f"producer-{number}", self.coordinator, self._connect, len(self.partitions), 12, not is_old, timeout_ms, self._value)
            for number in range(chance.choice((1, 2)))
        ]
        self.kinds = chance.choice(((), ("coordinator",), ("log-writer",), ("acceptor",), ("client",), ("coordinator", "log-writer", "acceptor", "client")))
        self.every = chance.choice((20, 60, 150)) * MS
        self.deaths = 0

    def _value(self) -> int:
        self._values += 1
        return self._values

    def _new_acceptor(self) -> Acceptor:
        return Acceptor(self.world, self.partitions, self.coordinator)

    def _connect(self) -> Connection:
        self.connections = [connection for connection in self.connections if not connection.is_closed]
        self.connections.append(Connection(self.world, self.world.chance.choice(self.acceptors)))
        return self.connections[-1]

    # -- faults

    def _hurt(self) -> None:
        if not self.kinds:
            return
        chance = self.world.chance
        kind = chance.choice(self.kinds)
        self.deaths += 1
        self.world.note(f"death: {kind}")
        if kind == "coordinator":
            self.coordinator.die(chance.random() < 0.3)
        elif kind == "log-writer":
            self._kill_log_writer(chance.choice(self.partitions))
        elif kind == "acceptor":
            self._kill_acceptor(chance.randrange(len(self.acceptors)))
        else:
            chance.choice(self.producers).crash()
        self.world.after(int(self.every * (0.5 + chance.random())), self._hurt)

    def _kill_log_writer(self, partition: Partition) -> None:
        partition.die()
        coordinator = self.coordinator.now
        for acceptor in self.acceptors:
            acceptor.rings[partition.number].on_log_writer_death()
        if coordinator is not None:
            coordinator.rings[partition.number].on_log_writer_death()
        self.world.after(RESTART // 2, setattr, partition, "is_up", True)

    def _kill_acceptor(self, index: int) -> None:
        dead = self.acceptors[index]
        dead.die()
        self.acceptors[index] = self._new_acceptor()
        for connection in self.connections:
            if connection.acceptor is dead and not connection.is_closed:
                connection.break_off()
        for producer in self.producers:
            self.world.after(5 * MS, producer.look_again)

    # -- a run

    def run(self) -> Ended:
        try:
            for producer in self.producers:
                producer.start()
            self.world.after(self.every, self._hurt)
            self.world.run_until(self.world.now + SECOND)
            self._settle()
            self._check()
        except (Broken, AssertionError) as broken:
            raise Broken(f"{broken}\nMILLRACE_SEED={self.world.seed}\n" + "\n".join([*self.world.trace][-60:])) from broken
        outcomes = [outcome for producer in self.producers for outcome in producer.outcomes]
        committed, aborted = (sum(outcome.is_committed is kind for outcome in outcomes) for kind in (True, False))
        return Ended(self.world.seed, self.world.steps, self.deaths, committed, aborted)

    def _settle(self) -> None:
        self.kinds = ()
        self.world.network.calm()
        end = self.world.now + SETTLES_WITHIN
        while not self._is_settled():
            unfinished = [producer.name for producer in self.producers if not producer.is_done]
            hold(self.world.now < end, "ClientsAreServed", f"{unfinished or 'a transaction'} does not end: {self._open()}")
            self.world.run_until(self.world.now + 50 * MS)
        self.world.run_until(self.world.now + 2 * SECOND)  # what is late arrives

    def _is_settled(self) -> bool:
        coordinator = self.coordinator.now
        return all(producer.is_done for producer in self.producers) and coordinator is not None and not coordinator.rules.under_way

    def _open(self) -> list[tuple[int, int]]:
        return [(partition.number, batch.value) for partition in self.partitions for batch, kind in partition.outcomes() if kind == OPEN]

    def _check(self) -> None:
        hold(not self._open(), "NothingStaysOpen", f"(partition, value) {self._open()}")
        seen: dict[int, list[str]] = {}
        order: dict[int, list[int]] = {partition.number: [] for partition in self.partitions}
        for partition in self.partitions:
            for batch, kind in partition.outcomes():
                seen.setdefault(batch.value, []).append(kind)
                if kind == COMMITTED:
                    order[partition.number].append(batch.value)
        for producer in self.producers:
            for number, outcome in enumerate(producer.outcomes):
                self._check_outcome(f"{producer.name}'s transaction {number}", outcome, seen, order)

    def _check_outcome(self, what: str, outcome: Outcome, seen: dict[int, list[str]], order: dict[int, list[int]]) -> None:
        visible = [value for value in outcome.values if COMMITTED in seen.get(value, [])]
        if outcome.is_committed is False or not outcome.may_be_committed:
            hold(not visible, "AbortedIsHidden", f"{what} is aborted, and {visible} are visible")
        if outcome.is_committed or visible:
            hold(len(visible) == len(outcome.values), "CommittedIsWhole", f"{what} has {visible} of {[*outcome.values]}")
            again = [value for value in outcome.values if seen[value].count(COMMITTED) > 1]
            hold(not again, "CommittedIsWhole", f"{what} has {again} twice")
            for partition, values in order.items():
                mine = [value for value in values if outcome.values.get(value) == partition]
                hold(mine == sorted(mine), "CommittedIsWhole", f"{what} is out of order in partition {partition}: {mine}")
            hold(all(kind != ABORTED for value in visible for kind in seen[value]), "CommittedIsWhole", f"{what}: a batch is there aborted, too")


def run(seed: int) -> Ended:
    return TransactionSimulation(seed).run()
