"""What groups, offsets and transactions cost: a large group's birth, offset commits, transaction commits, producer ids in memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, ClassVar

from confluent_kafka import Producer

from lab.raw_coordination import OFFSET_COMMIT, RawCoordination
from lab.raw_transactions import transactional_batch
from lab.running_box import RunningBox, eventually
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.memory import MB, process_memory
from loadtest.observation import Observer
from loadtest.topics import make_topic

TOPIC = "coordinated"
IN_FLIGHT = 200
VALUE_BYTES = 200
TURNS = 5
"""With and without idempotence, after one turn to warm up."""


@dataclass(frozen=True)
class Coordination(Benchmark):
    name: ClassVar[str] = "coordination"
    title: ClassVar[str] = "A group of 100 members, offset commits, transactions of 100 records, 10,000 idempotent producers; clients speak Kafka from Python."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("members settle after", "s"),
        Figure("members rebalance in", "s", at_most=5),
        Figure("offset commits", "1/s", at_least=5_000),
        Figure("offset commits of one connection", "1/s"),
        Figure("offset commit alone p50", "ms"),
        Figure("coordinator CPU", "µs a commit"),
        Figure("acceptor CPU", "µs a commit"),
        Figure("transaction commit p50", "ms", at_most=10),
        Figure("transaction commit p99", "ms"),
        Figure("idempotence costs", "% of throughput", at_most=10),
        Figure("10,000 producer ids cost", "MB", at_most=20),
        Figure("coordinator PSS idle", "MB"),
        Figure("coordinator PSS after", "MB"),
    )
    short: ClassVar[dict[str, Any]] = {"commits": 3_000, "transactions": 30, "records": 50_000}

    members: int = 100
    connections: int = 50
    commits: int = 30_000
    transactions: int = 200
    records: int = 300_000
    producer_ids: int = 10_000

    @property
    def written_bytes(self) -> int:
        return self.records * VALUE_BYTES * 2 * (TURNS + 1)

    def run(self, box: RunningBox, say: Say) -> Run:
        make_topic(box, TOPIC, 2)
        with ExitStack() as stack:

            def connect() -> RawCoordination:
                return stack.enter_context(closing(RawCoordination(box.kafka)))

            client = connect()
            eventually(lambda: client.find_coordinators("warm-up") == [0, 0], "the state topics are there", 20)
            eventually(lambda: client.init_producer("warm-up").error_code == 0, "the coordinators serve", 20)
            eventually(lambda: client.commit("warm-up", TOPIC, 1) == 0, "the group coordinator serves", 20)
            time.sleep(2.0)
            idle_bytes = process_memory(box.pid("coordinator")).without_arenas
            say(f"{self.members} members join")
            settle_seconds, rebalance_seconds = _settle([connect() for _ in range(self.members)])
            say(f"{self.commits:,} offset commits over {self.connections} connections")
            committers = [_Committer(connect(), f"group-{number}") for number in range(self.connections)]
            alone_committer = _Committer(client, "alone")
            _commit_all(committers, self.commits // 10)
            observer = Observer(box.pids())
            commit_rate = self.commits / _commit_all(committers, self.commits)
            observation = observer.finish()
            one_rate = self.commits / 10 / _commit_pipelined(alone_committer, self.commits // 10)
            alone = statistics.median(_timed(lambda: _commit_all([alone_committer], 1)) for _ in range(200))
            say(f"{self.transactions} transactions")
            ended = _transactions(box, self.transactions)
            say("produce with and without idempotence")
            costs = _idempotence_costs(box, self.records)
            say(f"{self.producer_ids:,} producers")
            per_ids = self._producer_id_bytes(box, client) * 10_000 / self.producer_ids
        figures = {
            "members settle after": settle_seconds,
            "members rebalance in": rebalance_seconds,
            "offset commits": commit_rate,
            "offset commits of one connection": one_rate,
            "offset commit alone p50": alone * 1000,
            "coordinator CPU": observation.role("coordinator") * 1e6 / self.commits,
            "acceptor CPU": observation.role("acceptor") * 1e6 / self.commits,
            "transaction commit p50": statistics.median(ended) * 1000,
            "transaction commit p99": statistics.quantiles(ended, n=100)[98] * 1000,
            "idempotence costs": costs,
            "10,000 producer ids cost": per_ids / MB,
            "coordinator PSS idle": idle_bytes / MB,
            "coordinator PSS after": process_memory(box.pid("coordinator")).without_arenas / MB,
        }
        return Run(
            figures,
            observation,
            [
                "CPU seconds are those of the offset commits over many connections",
                "members settle after group.initial.rebalance.delay.ms: 3 s, and once more because members came meanwhile, as with Kafka",
            ],
        )

    def _producer_id_bytes(self, box: RunningBox, client: RawCoordination) -> int:
        """What log-writers take for a batch each of so many producers."""

        def held() -> int:
            return sum(process_memory(pid).without_arenas for name, pid in box.pids().items() if name.startswith("log-writer"))

        before = held()
        for first in range(0, self.producer_ids, IN_FLIGHT):
            for number in range(first, min(first + IN_FLIGHT, self.producer_ids)):
                client.send_produce(TOPIC, 0, transactional_batch(1_000_000 + number, 0, 0, b"x", is_transactional=False))
            for _ in range(first, min(first + IN_FLIGHT, self.producer_ids)):
                if client.receive_produce().error_code:
                    raise BenchmarkFailed("a producer was refused")
        return held() - before


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _settle(clients: list[RawCoordination]) -> tuple[float, float]:
    """Seconds until every member knows its assignment: of a new group, then of one whose members all join again."""
    started = time.perf_counter()
    for client in clients:
        client.send_join("large")
    ids = [client.receive_join().member_id for client in clients]
    _join_all(clients, ids)
    settled = time.perf_counter()
    _join_all(clients, ids)
    return settled - started, time.perf_counter() - settled


def _join_all(clients: list[RawCoordination], ids: list[str]) -> None:
    for client, member_id in zip(clients, ids, strict=True):
        client.send_join("large", member_id)
    members = [client.receive_join() for client in clients]
    if {member.error_code for member in members} != {0} or len({member.generation_id for member in members}) != 1:
        raise BenchmarkFailed(f"not one generation: {members[:3]}")
    pairs = sorted(zip(clients, members, strict=True), key=lambda pair: pair[1].member_id != pair[1].group_leader_id)
    if any(client.sync("large", member) for client, member in pairs):
        raise BenchmarkFailed("a member was not assigned")


class _Committer:
    """Sends one commit again and again, packed once: kio takes longer than the box."""

    def __init__(self, client: RawCoordination, group: str) -> None:
        self._client = client
        self._body = client.commit_body(group, TOPIC, 7)
        self.send()
        self._good_answer = client.receive()[1]
        if client.commit(group, TOPIC, 7):
            raise BenchmarkFailed("a commit was refused")

    def send(self) -> None:
        self._client.send(OFFSET_COMMIT, 9, self._body)

    def receive(self) -> None:
        if self._client.receive()[1] != self._good_answer:
            raise BenchmarkFailed("a commit was answered otherwise than the first")


def _commit_all(committers: list[_Committer], commits: int) -> float:
    """One in flight on each connection, a group each."""
    started = time.perf_counter()
    for _turn in range(commits // len(committers)):
        for committer in committers:
            committer.send()
        for committer in committers:
            committer.receive()
    return time.perf_counter() - started


def _commit_pipelined(committer: _Committer, commits: int) -> float:
    return _commit_all([committer] * IN_FLIGHT, commits)


def _transactions(box: RunningBox, count: int) -> list[float]:
    """Seconds of each commit_transaction of librdkafka, its records delivered before."""
    producer = Producer({"bootstrap.servers": box.bootstrap, "transactional.id": "timed", "linger.ms": 0})
    producer.init_transactions(30)
    seconds = []
    for _ in range(count):
        producer.begin_transaction()
        for number in range(100):
            producer.produce(TOPIC, b"x" * 100, partition=number % 2)
        producer.flush(30)
        seconds.append(_timed(lambda: producer.commit_transaction(30)))
    return seconds[count // 10 :]


def _idempotence_costs(box: RunningBox, records: int) -> float:
    """In % of the throughput without: medians of all turns, which begin with either by turns."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(TURNS + 1):
        for idempotent in (turn % 2 == 0, turn % 2 == 1):
            config = {"bootstrap.servers": box.bootstrap, "acks": "all", "enable.idempotence": idempotent, "linger.ms": 5}
            producer = Producer({**config, "queue.buffering.max.messages": records + 1, "max.in.flight.requests.per.connection": 5})
            _produce(producer, 10)  # connections, and the producer id
            taken = _timed(lambda producer=producer: _produce(producer, records))  # type: ignore[misc]
            if turn:
                seconds[idempotent].append(taken)
    return 100 * (1 - statistics.median(seconds[False]) / statistics.median(seconds[True]))


def _produce(producer: Producer, records: int) -> None:
    value = b"x" * VALUE_BYTES
    for number in range(records):
        producer.produce(TOPIC, value, partition=number % 2)
    if producer.flush(60):
        raise BenchmarkFailed("records were not delivered")
