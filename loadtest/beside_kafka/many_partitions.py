"""How long each of many partitions takes no acks=all: a record to every one of them again and again, in one request for each leader, from one thread.

A broker that refuses, or hangs up, makes it request the leaders again. A leader is sent a request every `PACE_SECONDS` at most: without a pause a probe of
some hundred partitions takes both cores of a small machine for itself, and what it measures is its own load. Weak spot: a request for some hundred
partitions is answered when the last of them is, so a pause looks longer by one such round trip and the pace; the longest pause without a fault says how
long that is.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence

from loadtest.benchmark import BenchmarkFailed
from loadtest.generators.produce_many import Leaders, ManyProduces, error_codes, leaders

CONNECT_SECONDS = 0.5
ANSWER_SECONDS = 2.0
ASK_AGAIN_SECONDS = 0.03
TURN_SECONDS = 0.02
PACE_SECONDS = 0.05
Address = tuple[str, int]


class _Link:
    """A connection with at most one request under way."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, timeout=CONNECT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(ANSWER_SECONDS)
        self.asked: list[int] = []
        self.asked_at = 0.0
        self._received = b""

    def send(self, frame: bytes, partitions: list[int]) -> None:
        self.asked, self.asked_at = partitions, time.monotonic()
        self.socket.sendall(frame)

    def receive(self) -> bytes | None:
        """A whole reply without its size, or None if it is not all there. Raises OSError when the other side has hung up."""
        part = self.socket.recv(1 << 18)
        if not part:
            raise ConnectionResetError
        self._received += part
        if len(self._received) < 4 or len(self._received) < 4 + struct.unpack_from(">i", self._received)[0]:
            return None
        reply, self._received = self._received[4:], b""
        return reply


class PartitionsProbe:
    """Of `partitions`, from now on until `stop`. `addresses`: boxes without a fault, which are asked for the leaders."""

    def __init__(self, addresses: Sequence[Address], topic: str, partitions: Iterable[int]) -> None:
        self._addresses, self._topic, self._requests = list(addresses), topic, ManyProduces(topic)
        self._partitions = list(partitions)
        now = time.monotonic()
        self._last = dict.fromkeys(self._partitions, now)
        self._longest = dict.fromkeys(self._partitions, 0.0)
        self._first_after: dict[int, float] = {}
        self._since = now
        self._known = Leaders({}, {})
        self._asked_at = 0.0
        self._links: dict[Address, _Link] = {}
        self._wants_leaders = True
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self) -> float:
        """Forget what was; pauses count from now, which is returned."""
        with self._lock:
            self._since = time.monotonic()
            self._longest = dict.fromkeys(self._partitions, 0.0)
            self._first_after.clear()
            return self._since

    def has_news_of_all(self, since: float) -> bool:
        with self._lock:
            return min(self._last.values()) > since

    def await_news_of_all(self, seconds: float) -> None:
        """Until each has acknowledged something after this moment."""
        now = time.monotonic()
        while not self.has_news_of_all(now):
            if time.monotonic() > now + seconds:
                with self._lock:
                    missing = [partition for partition, last in self._last.items() if last <= now]
                raise BenchmarkFailed(f"{len(missing)} of {len(self._partitions)} partitions took no acks=all in {seconds:g} s, the first {missing[:3]}")
            time.sleep(TURN_SECONDS)

    def longest(self) -> float:
        """The longest pause of any partition since `begin`."""
        with self._lock:
            return max(self._longest.values())

    def pauses(self) -> list[float]:
        """The longest of each partition since `begin`, in order."""
        with self._lock:
            return sorted(self._longest.values())

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._maybe_ask_leaders()
            self._send()
            self._receive()
        for link in self._links.values():
            link.socket.close()

    def _maybe_ask_leaders(self) -> None:
        if not self._wants_leaders or time.monotonic() < self._asked_at + ASK_AGAIN_SECONDS:
            return
        self._asked_at = time.monotonic()
        for address in self._addresses:
            try:
                self._known = leaders_now(address, self._topic)
            except OSError:
                continue
            self._wants_leaders = False
            return

    def _send(self) -> None:
        """To every leader with no request in flight."""
        by_leader: dict[Address, list[int]] = {}
        for partition in self._partitions:
            address = self._known.addresses.get(self._known.by_partition.get(partition, -1))
            if address is None:
                self._wants_leaders = True
            else:
                by_leader.setdefault(address, []).append(partition)
        for address, partitions in by_leader.items():
            try:
                link = self._links[address] if address in self._links else self._links.setdefault(address, _Link(address))
                if not link.asked and time.monotonic() >= link.asked_at + PACE_SECONDS:
                    link.send(self._requests.frame(partitions), partitions)
            except OSError:
                self._drop(address)

    def _receive(self) -> None:
        by_descriptor = {link.socket.fileno(): address for address, link in self._links.items() if link.asked}
        if not by_descriptor:
            self._is_over.wait(TURN_SECONDS / 4)
            return
        readable, _, _ = select.select(list(by_descriptor), [], [], TURN_SECONDS)
        for descriptor in readable:
            address = by_descriptor[descriptor]
            try:
                reply = self._links[address].receive()
            except OSError:
                self._drop(address)
                continue
            if reply is not None:
                self._links[address].asked = []
                self._note(error_codes(reply))
        for address in [address for address, link in self._links.items() if link.asked and time.monotonic() > link.asked_at + ANSWER_SECONDS]:
            self._drop(address)

    def _drop(self, address: Address) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.socket.close()
        self._wants_leaders = True

    def _note(self, codes: dict[int, int]) -> None:
        now = time.monotonic()
        with self._lock:
            for partition, code in codes.items():
                if code:
                    self._wants_leaders = True
                    continue
                began = max(self._last[partition], self._since) if self._longest[partition] == 0.0 else self._last[partition]
                self._longest[partition] = max(self._longest[partition], now - began, 1e-9)
                self._last[partition] = now


def leaders_now(address: Address, topic: str) -> Leaders:
    """As a broker reports them. Raises OSError."""
    link = _Link(address)
    with link.socket:
        link.send(ManyProduces(topic).metadata_frame(), [])
        while (reply := link.receive()) is None:
            pass
    return leaders(reply)
