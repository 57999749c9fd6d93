"""Senders whose connections are cut at any moment, and that are back within milliseconds with all that they have no answer for: each line is there once.

One ingest and two; ends and resets; also while ingest is killed with -9. A real consumer counts.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import orjson
import pytest
from confluent_kafka import Consumer, TopicPartition

from lab.running_box import Address, RunningBox, listener
from tests.support.numbered_frames import ENCODE, PROTOCOLS, answered, reset

pytestmark = [pytest.mark.system, pytest.mark.slow]

SENDERS, VISITS, WINDOW, KILLS = 6, 60, 20, 3
AWAY_MS = (0, 1, 5, 10, 50)
STAY_MS = (0, 1, 5, 20)
LAST_SECONDS = 60


class CutSender(threading.Thread):
    """From an address of its own, or the streams of several would be one host's."""

    def __init__(self, number: int, listener: str, at: Address, seed: int) -> None:
        super().__init__(daemon=True)
        self.word = f"{listener}-{number}"
        self._listener = listener
        self._at = at
        self._address = f"127.0.1.{number + 1}"
        self._chance = random.Random(seed)
        self.unanswered: list[str] = []
        self.made = 0

    def run(self) -> None:
        for _ in range(VISITS):
            fresh = range(self.made, self.made + WINDOW * (len(self.unanswered) < 10 * WINDOW))
            self.unanswered += [f"{self.word}-{number}" for number in fresh]
            self.made = fresh.stop
            self._visit(self._chance.choice(STAY_MS) * self._chance.random() / 1000)
            time.sleep(self._chance.choice(AWAY_MS) / 1000)
        deadline = time.monotonic() + LAST_SECONDS
        while self.unanswered and time.monotonic() < deadline:
            self._visit(10)

    def _visit(self, seconds: float) -> None:
        heard, deadline = b"", time.monotonic() + seconds
        with socket.socket() as sender:
            try:
                sender.bind((self._address, 0))
                sender.connect(self._at)
                sender.sendall(ENCODE[self._listener](self.unanswered))
                while answered(self._listener, heard) < len(self.unanswered) and (left := deadline - time.monotonic()) > 0:
                    if select.select([sender], [], [], left)[0]:
                        received = sender.recv(65536)
                        if not received:
                            break
                        heard += received
            except OSError:
                pass  # ingest was killed
            if self._chance.random() < 0.5:
                reset(sender)
        del self.unanswered[: answered(self._listener, heard)]


def lines_there(box: RunningBox) -> Counter[str]:
    consumer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": "test", "enable.auto.commit": False, "fetch.wait.max.ms": 50})
    try:
        starts = [TopicPartition("cut", partition, 0) for partition in consumer.list_topics("cut", 10).topics["cut"].partitions]
        wanted = sum(consumer.get_watermark_offsets(start, 10)[1] for start in starts)
        consumer.assign(starts)
        found: Counter[str] = Counter()
        deadline = time.monotonic() + 60
        while found.total() < wanted:
            assert time.monotonic() < deadline, f"{found.total()} of {wanted} records came"
            for message in consumer.consume(5000, 0.1):
                value = message.value()
                assert message.error() is None and value is not None
                found[orjson.loads(value)["message"]] += 1
        return found
    finally:
        consumer.close()


@pytest.fixture(scope="module", params=[1, 2])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    """With that many ingests."""
    senders = {"listener": [listener(name, protocol, topic="cut") for name, protocol in PROTOCOLS.items()]}
    made = start_shared(tmp_path_factory.mktemp("cut") / "box", disks=1, ingests=request.param, settings={"ingest.syslog.partitions": 2}, senders=senders)
    yield made
    assert made.stop() == 0, made.messages
    assert made.leftovers() == []


@pytest.fixture(scope="module")
def sent(box: RunningBox) -> Counter[str]:
    """Lines of all senders that the box has had."""
    return Counter()


@pytest.mark.parametrize("kills", [0, KILLS])
def test_what_a_cut_sender_brings_again_at_once_is_there_once(box: RunningBox, sent: Counter[str], kills: int) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    listeners = [("beats", "relay")[number % 2] for number in range(SENDERS)]
    first = SENDERS if kills else 0  # the box is the same, and its senders are others
    senders = [CutSender(first + number, listener, box.sender(listener), seed + number) for number, listener in enumerate(listeners)]
    for sender in senders:
        sender.start()
    for number in range(kills):
        name = f"ingest@{number % box.box.ingests}"
        box.await_restart(name, box.kill(name))
    for sender in senders:
        sender.join(2 * LAST_SECONDS)
    assert [sender.word for sender in senders if sender.unanswered] == []
    sent.update(f"{sender.word}-{number}" for sender in senders for number in range(sender.made))
    assert lines_there(box) == sent
