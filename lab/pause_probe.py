"""How long partitions take no acks=all: a record every 20 ms to the leader; after an error, or no answer in time, on a fresh connection to whom a box
names then.

What a client library makes of a lost leader (time-outs, back-off) is not in it. Runs on the clients' machine. Weak spot: a request that a cut network
swallows is given up after `ANSWER_SECONDS`, so much too long a pause may look.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from appliance.records.builder import BatchBuilder
from lab import kio_adapter
from lab.raw_client import METADATA, METADATA_VERSION, RawClient

CONNECT_SECONDS, ANSWER_SECONDS, BETWEEN_SECONDS, AGAIN_SECONDS = 0.2, 0.3, 0.02, 0.01


class ImpatientClient(RawClient):
    """Gives up soon."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, seconds=CONNECT_SECONDS)
        self.sock.settimeout(ANSWER_SECONDS)

    def metadata(self, topic: str) -> Any:
        self.send_metadata([topic])
        return kio_adapter.decode_response(METADATA, METADATA_VERSION, self.receive()[1])


def one_record(value: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(int(time.time() * 1000), None, value)
    return builder.build()


def leaders_of(addresses: Iterable[tuple[str, int]], topic: str) -> dict[int, tuple[int, tuple[str, int]]]:
    """Partition → (leader, its address), from the first box that answers."""
    for address in addresses:
        try:
            client = ImpatientClient(address)
        except OSError:
            continue
        try:
            answer = client.metadata(topic)
        except (OSError, AssertionError):
            continue
        finally:
            client.close()
        places = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in answer.brokers}
        partitions = answer.topics[0].partitions
        return {int(p.partition_index): (int(p.leader_id), places[int(p.leader_id)]) for p in partitions if int(p.leader_id) in places}
    return {}


class Pause(NamedTuple):
    """The longest time between two acknowledgements of a partition, or until the end of the look; None: none came after the fault."""

    partition: int
    seconds: float | None
    attempts: int
    last_error: str


class PauseProbe:
    """Asks every partition without end, until `stop`. `addresses` are of boxes that nothing befalls."""

    def __init__(self, addresses: Sequence[tuple[str, int]], topic: str, partitions: Sequence[int]) -> None:
        self._addresses, self._topic = list(addresses), topic
        self._stop = threading.Event()
        self.probes = [_Probe(partition) for partition in partitions]
        self._threads = [threading.Thread(target=self._run, args=(probe,), daemon=True) for probe in self.probes]
        for thread in self._threads:
            thread.start()

    @property
    def has_answers(self) -> bool:
        """Whether every partition has been heard of: then all that is wanted of libraries is loaded."""
        return all(probe.acknowledged_at for probe in self.probes)

    def pauses(self, since: float, until: float) -> list[Pause]:
        """Of each partition, in a stretch of time."""
        return [probe.pause(since, until) for probe in self.probes]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, probe: _Probe) -> None:
        client: ImpatientClient | None = None
        while not self._stop.is_set():
            probe.attempts_at.append(time.monotonic())
            try:
                client = client or self._leader(probe)
                if client is not None:
                    client.send_produce(self._topic, probe.partition, one_record(b"probe"), timeout_seconds=1)
                    if (error := client.receive_produce().error_code) == 0:
                        probe.acknowledged_at.append(time.monotonic())
                        self._stop.wait(BETWEEN_SECONDS)
                        continue
                    probe.errors.append((time.monotonic(), f"Kafka error {error}"))
            except (OSError, AssertionError) as error:
                probe.errors.append((time.monotonic(), repr(error)))
            if client is not None:
                client.close()
                client = None
            self._stop.wait(AGAIN_SECONDS)
        if client is not None:
            client.close()

    def _leader(self, probe: _Probe) -> ImpatientClient | None:
        leader = leaders_of(self._addresses, self._topic).get(probe.partition)
        if leader is None:
            probe.errors.append((time.monotonic(), "no leader"))
            return None
        return ImpatientClient(leader[1])


class _Probe:
    """What is known of one partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.acknowledged_at: list[float] = []
        self.attempts_at: list[float] = []
        self.errors: list[tuple[float, str]] = []

    def pause(self, since: float, until: float) -> Pause:
        inside = [at for at in list(self.acknowledged_at) if since < at < until]
        before = max((at for at in list(self.acknowledged_at) if at <= since), default=since)
        times = [max(before, since - BETWEEN_SECONDS), *inside, until]
        longest = max(later - earlier for earlier, later in itertools.pairwise(times)) if inside else None
        attempts = sum(since < at < until for at in list(self.attempts_at))
        return Pause(self.partition, longest, attempts, next((words for at, words in reversed(self.errors) if since < at < until), ""))
