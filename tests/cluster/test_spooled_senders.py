"""A leader on another box is unreachable until memory and the state disk are full and senders wait, while
ingest is killed with SIGKILL.

When the box is reachable again, every acknowledged record is stored once, each key in its order;
datagrams, which cannot wait, are counted by their reason. The box is cut off from all, so that no box
leads; or from this box alone, so that it still leads.
"""

from __future__ import annotations

import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.clock import SystemClock
from lab.certificates import Certificate
from lab.cluster import SYSLOG_PORT, Cluster, running_cluster
from lab.machine import address_of, why_not
from lab.reconcile import Reconciliation
from lab.request_senders import ChunkSender
from lab.running_box import Address, RunningBox, eventually, listener
from lab.told_senders import Feed, Place

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.deep, pytest.mark.skipif(bool(why_not()), reason=why_not())]

MIB = 1 << 20
FLUENT_PORT = 24224
SPOOL_BYTES = 12 * MIB
SETTINGS = {
    "disk.budget.bytes": 6 * MIB,
    "ingest.arena.bytes": 12 * MIB,
    "ingest.spool.bytes": SPOOL_BYTES,
    "ingest.topic.replication.factor": 1,  # else the topic gets copies, and another leader when its own is gone
}
LISTENERS = [listener("fluent", "fluent", port=FLUENT_PORT, topic="far", key="host"), {"name": "syslog-udp", "topic": "far"}]
HOSTS, CHUNKS, PER_CHUNK = 12, 60, 50
EARLY = 6
"""Hosts whose senders are there before the first death: what they bring again must wait for what is in the spool. The others fill it."""
DATAGRAMS, BURST = 2_000, 200


class Amount(Feed):
    """So many numbers, as fast as they are taken."""

    def __init__(self, count: int) -> None:
        super().__init__(per_second=1_000_000_000)
        self._count = count

    def due(self, most: int) -> list[int]:
        first = self.given
        self.given = min(first + most, self._count)
        if self.given == self._count:
            self.end()
        return list(range(first, self.given))


class HostSender(ChunkSender):
    """All records of one host, in chunks of 50 KiB, nearly all of them under way at once."""

    UNDER_WAY_MAX = 50
    per_chunk = PER_CHUNK

    def _chunk(self, chunk_id: str) -> bytes:
        now = SystemClock.wall_ms() // 1000
        entries = [msgpack.packb([now, {"message": self.text(number), "host": self.place.word, "text": "x" * 1000}]) for number in self._waiting[chunk_id]]
        packed: bytes = msgpack.packb(["app", b"".join(entries), {"chunk": chunk_id, "size": len(entries)}])
        return packed


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("spooled")
    with running_cluster(directory, disks=1, settings=SETTINGS, senders={"listener": LISTENERS}) as made:
        with made.clients():
            admin = AdminClient({"bootstrap.servers": made.bootstrap})
            admin.create_topics([NewTopic("far", 2, replica_assignment=[[2], [2]])])["far"].result(60)
        yield made
        assert not made.stop()


@pytest.mark.parametrize("cut", ["all", "pair"])
def test_acknowledged_records_are_stored_once_in_order_after_a_leader_was_away_until_all_bounds_were_full(cluster: Cluster, cut: str, tmp_path: Path) -> None:
    box = cluster.boxes[1].box
    with cluster.clients():
        books = Reconciliation(box, "far")
        if cut == "all":
            cluster.network.cut(2)
        else:
            cluster.network.cut_pair(1, 2)
        nobody: Any = Certificate(tmp_path, tmp_path)
        address = Address(address_of(1), FLUENT_PORT)
        senders = [HostSender(Place(address, "far", f"far-{host}", tmp_path, nobody, nobody), Amount(CHUNKS * PER_CHUNK)) for host in range(HOSTS)]
        for sender in senders[:EARLY]:
            sender.start()
        eventually(lambda: spooled(box) > 0, "memory is full, and the state disk is used", 40)
        kill_ingest(box)
        for sender in senders[EARLY:]:
            sender.start()
        eventually(lambda: spooled(box) > 0.9 * SPOOL_BYTES, "the spool is full", 40)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            for number in range(DATAGRAMS):
                datagrams.sendto(f"<13>1 - udp app - - - datagram {number}".encode(), (address_of(1), SYSLOG_PORT))
                # More at once the switch between the machines drops, uncounted.
                if number % BURST == BURST - 1:
                    eventually(lambda sent=number + 1: books.balance("syslog-udp").accounted == sent, f"{number + 1} datagrams are counted")  # type: ignore[misc]
        eventually(lambda: overflow(box) > 0, "some records did not fit")
        kill_ingest(box)
        assert not any(sender.told for sender in senders), "no sender was acknowledged yet"
        cluster.network.heal()
        for sender in senders:
            sender.finish(90)
        balance = books.hold("syslog-udp", DATAGRAMS)
        assert balance.counted + balance.dropped > 0 and balance.stored + balance.counted + balance.dropped == DATAGRAMS, balance
        documents = books.records("far")
        books.close()
    judge(senders, documents)
    assert sum(document["message"].startswith("datagram") for document in documents) <= DATAGRAMS - balance.dropped


def judge(senders: list[HostSender], documents: list[Any]) -> None:
    """Once, and in order of each key. `documents` are those of a partition behind each other, or of several mixed: a key has one."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for document in documents:
        host, number = document["message"].split()
        by_host[host].append(int(number))
    for sender in senders:
        found = by_host[sender.place.word]
        twice = [number for number, count in Counter(found).items() if count > 1]
        assert len(found) == CHUNKS * PER_CHUNK and not twice, f"{sender.name}: {len(found)} of {CHUNKS * PER_CHUNK}, {len(twice)} twice"
        assert found == sorted(found), f"{sender.name}: out of order behind {next(before for before, after in pairwise(found) if after < before)}"


def spooled(box: RunningBox) -> int:
    return box.counters("ingest@0").values.get("ingest.spool_bytes", 0)


def overflow(box: RunningBox) -> int:
    values = box.counters("ingest@0").values
    return sum(value for label, value in values.items() if "syslog-udp" in label and ("overflow" in label or label.startswith("ingest.kernel_drops{")))


def kill_ingest(box: RunningBox) -> None:
    box.await_restart("ingest@0", box.kill("ingest@0"), 30)
