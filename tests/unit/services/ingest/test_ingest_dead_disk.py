"""One disk dies under a relay that sends for hosts of all disks: no sender stalls, nothing is lost,
and a returning disk is used again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from appliance.base.errors import StorageFailed
from appliance.records.keys import partition_of_key
from services.ingest.producer.partition_leaders import AWAY_NS
from tests.unit.services.ingest.stepped_ingest import TOPIC, SteppedIngest

Start = Callable[..., SteppedIngest]
HOSTS = [next(f"h{number}" for number in range(999) if partition_of_key(b"h%d" % number, 4) == partition) for partition in range(4)]
"""A host for each of four partitions; 0 and 2 are on d0, 1 and 3 on d1."""
PADDING = "x" * 1000


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SteppedIngest]:
    made = SteppedIngest(tmp_path, partitions=4, disks=2)
    made.start()
    yield made
    made.close()


def line(number: int, host: str) -> bytes:
    return f"<13>1 2024-10-11T22:14:15Z {host} app - - - {number} {PADDING}\n".encode()


def lines(start: int, count: int) -> bytes:
    return b"".join(line(number, HOSTS[number % 4]) for number in range(start, start + count))


def take_offline(box: SteppedIngest, disk: str) -> None:
    box.other_log_writers[disk].agent.trouble.go_offline(StorageFailed(f"{disk} answers with EIO"))


def bring_back(box: SteppedIngest, disk: str) -> None:
    box.kill_other_log_writer(disk)
    box.start_other_log_writer(disk)


def send_all(box: SteppedIngest, sender: socket.socket, text: bytes) -> None:
    """Run until the sender has sent everything, with all processes turning."""
    sender.setblocking(False)
    sent = 0

    def is_sent() -> bool:
        nonlocal sent
        try:
            sent += sender.send(text[sent : sent + 65536])
        except BlockingIOError:
            pass
        return sent == len(text)

    box.run_until(is_sent, "the relay's last byte sent")


def stored(box: SteppedIngest) -> dict[int, list[str]]:
    """Line number → its hosts' partitions, in the order of the logs."""
    found: dict[int, list[str]] = {}
    for record in box.records():
        document = orjson.loads(record.value or b"")
        found.setdefault(int(document["message"].split()[0]), []).append(document["host"])
    return found


def test_a_relay_goes_on_when_a_disk_goes_offline_and_none_of_its_lines_wait(box: SteppedIngest) -> None:
    relay = box.connect()
    send_all(box, relay, lines(0, 400))
    take_offline(box, "d1")
    send_all(box, relay, lines(400, 8000))  # four times the budget of a disk for those of d1 alone
    box.run_until(lambda: box.ledger().received == 8400 and box.ledger().balances, "every line stored")
    assert box.ledger().stored == 8400
    assert sorted(stored(box)) == list(range(8400))
    assert box.counter("ingest.dead_disks") == 1


def test_what_was_under_way_to_a_dying_disk_and_what_waited_for_it_is_partitioned_anew(box: SteppedIngest) -> None:
    assert box.ingest is not None
    take_offline_after = box.connect()
    take_offline_after.sendall(lines(0, 200))
    while box.ledger().received < 200:
        box.ingest.turn()  # offered, and no log-writer turns
    take_offline(box, "d1")
    box.run_until(lambda: box.ledger().balances, "every line stored")
    assert sorted(stored(box)) == list(range(200))
    assert box.counter("ingest.moved") >= 100
    assert box.agent._sender.leaders._charged["d1"] == 0


def test_the_lines_of_one_host_keep_their_order_while_its_disk_is_dead(box: SteppedIngest) -> None:
    take_offline(box, "d1")
    send_all(box, box.connect(), lines(0, 2000))
    box.run_until(lambda: box.ledger().received == 2000 and box.ledger().balances)
    for partition in range(4):
        of_host = [record for record in box.records() if record.key == HOSTS[partition].encode()]
        numbers = [int(orjson.loads(record.value or b"")["message"].split()[0]) for record in of_host]
        assert numbers == list(range(partition, 2000, 4))


def test_datagrams_for_a_dead_disk_are_stored_elsewhere(box: SteppedIngest) -> None:
    take_offline(box, "d1")
    box.step()
    box.send_datagrams(*[line(number, HOSTS[1]) for number in range(100)])
    box.run_until(lambda: box.ledger().received == 100 and box.ledger().balances)
    assert (box.ledger().stored, box.ledger().counted) == (100, 0)


def test_a_disk_that_comes_back_takes_its_lines_again(box: SteppedIngest) -> None:
    take_offline(box, "d1")
    box.run_until(lambda: box.counter("ingest.dead_disks") == 1)
    bring_back(box, "d1")
    box.run_until(lambda: box.counter("ingest.dead_disks") == 0)
    box.create_topic()  # the controller lets it lead again
    send_all(box, box.connect(), line(7, HOSTS[1]))
    box.run_until(lambda: box.ledger().received == 1 and box.ledger().balances)
    assert (Path(box.disks[1].path) / f"{TOPIC}-1" / "00000000000000000000.log").stat().st_size > 0


def test_when_every_disk_is_dead_senders_are_slowed_and_memory_is_bounded(box: SteppedIngest) -> None:
    assert box.log_writer is not None
    take_offline(box, "d1")
    box.log_writer.agent.trouble.go_offline(StorageFailed("d0 answers with EIO"))
    relay = box.connect()
    relay.setblocking(False)
    text = lines(0, 20_000)
    sent = idle_turns = 0
    while idle_turns < 200:
        try:
            count = relay.send(text[sent : sent + 65536])
        except BlockingIOError:
            count = 0
        sent += count
        idle_turns = 0 if count else idle_turns + 1
        box.step()
    assert sent < len(text)
    assert box.ledger().stored == 0
    assert box.ledger().in_flight * 1000 < 6 << 20


def test_a_log_writer_that_stays_away_makes_its_disk_dead_and_one_that_just_died_does_not(box: SteppedIngest) -> None:
    box.kill_other_log_writer("d1")
    for _ in range(50):
        box.step()
    assert box.counter("ingest.dead_disks") == 0
    disks = box.agent._disks
    assert disks.refresh(box.clock.monotonic_ns() + AWAY_NS + 1_000_000_000)
    assert disks.dead == {"d1"}


def test_a_slow_disk_is_not_a_dead_one(box: SteppedIngest) -> None:
    assert box.ingest is not None and box.log_writer is not None
    relay = box.connect()
    relay.setblocking(False)
    text = b"".join(line(number, HOSTS[1]) for number in range(6000))
    sent = idle_turns = 0
    while idle_turns < 100:  # d1 does not turn
        try:
            count = relay.send(text[sent : sent + 65536])
        except BlockingIOError:
            count = 0
        sent += count
        idle_turns = 0 if count else idle_turns + 1
        box.ingest.turn()
        box.log_writer.turn()
    assert sent < len(text) and box.counter("ingest.connections_paused") > 0
    assert (box.counter("ingest.dead_disks"), box.counter("ingest.moved"), box.ledger().stored) == (0, 0, 0)


def test_lines_that_a_log_writer_had_whose_disk_is_replaced_go_again_and_its_memory_is_free_when_it_is_gone(box: SteppedIngest) -> None:
    relay, sender, arena = box.connect(), box.agent._sender, box.agent._source.arena
    held = box.other_log_writers.pop("d1")  # it stands in the kernel and takes nothing
    send_all(box, relay, lines(0, 40))
    box.run_until(lambda: any(queue.location == "d1" and queue.in_flight for queue in sender.queues.by_key.values()), "d1 was given lines")
    os.unlink(box.layout.log_writer_socket("d1"))
    box.agent._proxies.replace_disk("d1", sender.on_detached)
    assert not any(queue.location == "d1" and queue.in_flight for queue in sender.queues.by_key.values()) and sender.waits
    box.run_until(lambda: {0, 2} <= {int(number) % 4 for number in stored(box)}, "d0 goes on")
    assert arena.free_bytes < arena.size_bytes, "the kernel may still read what the old one was given"
    box._kill_log_writer(held)
    box.start_other_log_writer("d1")
    box.run_until(lambda: len(stored(box)) == 40 and arena.free_bytes == arena.size_bytes, "all is stored, and nothing is held")
    assert {len(hosts) for hosts in stored(box).values()} == {1}
