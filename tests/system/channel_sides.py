"""One side of a channel as a real process: `source` or `log_writer`, with the product's proxies, channel acceptor, rings and table.

Run as `python -m tests.system.channel_sides SIDE INCARNATION [STEP]` with the runtime directory in MILLRACE_RUNTIME. With a STEP it kills itself
with SIGKILL at that very moment: after a connect, between two stores of a ring, before an answer. What it did it wrote before to
`SIDE.INCARNATION.log`, one unbuffered line each. SIGTERM is a clean end: everything outstanding is waited for.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from appliance.base.clock import SystemClock
from appliance.base.layout import BoxLayout
from appliance.ipc import channel, log_writer_proxy
from appliance.ipc import channel_acceptor as log_writer_door
from appliance.ipc.channel import SinkChannel, SourceChannel
from appliance.ipc.channel_acceptor import ChannelAcceptor
from appliance.ipc.proxies import LogWriterProxies
from appliance.ipc.source import Source
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from appliance.shm.doorbell import Doorbell, SourceDoorbellButton
from appliance.shm.partition_table import DISK_ONLINE, SLEEPING_WORD, PartitionTableWriter
from appliance.shm.ring import RingPair
from services.log_writer.previous_incarnations import PreviousTables

DISK = "d0"
SOURCE = "ingest@0"
RING = 32
OFFERS_A_TURN = 4
IN_TRAFFIC = 50
"""How many offers, completions or bursts pass before a step in the middle of traffic."""

stopping = False


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(owner: Any, name: str, passes: int = 0) -> None:
    """Let `owner.name` return `passes` times, then die at its return."""
    original = getattr(owner, name)
    left = passes

    def replaced(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        result = original(*arguments, **named)
        if left == 0:
            die()
        left -= 1
        return result

    setattr(owner, name, replaced)


def die_before(owner: Any, name: str, passes: int = 0) -> None:
    """Let `owner.name` be called `passes` times, then die at its call."""
    original = getattr(owner, name)
    left = passes

    def replaced(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        if left == 0:
            die()
        left -= 1
        return original(*arguments, **named)

    setattr(owner, name, replaced)


def die_between_entry_and_tail(ends: Any, which: str) -> None:
    """Die when an entry of a ring is written and its tail is not published; the first IN_TRAFFIC entries pass."""
    make = getattr(ends, which)

    def made(self: Any, entry: Any) -> Any:
        producer = make(self, entry)
        die_after(_Packing, "pack_into", IN_TRAFFIC)
        producer._pack_into = lambda *place: _Packing.pack_into(entry, *place)
        return producer

    setattr(ends, which, made)


class _Packing:
    @staticmethod
    def pack_into(entry: Any, *place: Any) -> None:
        entry.pack_into(*place)


def after_connect() -> None:
    connect = log_writer_proxy.connect_unix
    log_writer_proxy.connect_unix = lambda path: (control := connect(path), control and die())[0]  # type: ignore[func-returns-value]


SOURCE_STEPS: dict[str, Callable[[], None]] = {
    "after connect": after_connect,
    "after creating rings": lambda: die_after(channel.RingPair, "create"),
    "after HELLO": lambda: die_after(log_writer_proxy.SourceChannel, "greet"),
    "before reading WELCOME": lambda: die_before(SourceChannel, "on_welcome"),
    "after WELCOME": lambda: die_after(SourceChannel, "on_welcome"),
    "between entry and tail": lambda: die_between_entry_and_tail(RingPair, "descriptor_producer"),
    "after offers, before the bell": lambda: die_before(SourceChannel, "ring", IN_TRAFFIC),
    "in the middle of completions": lambda: die_before(SourceSide, "on_completion", IN_TRAFFIC),
}
LOG_WRITER_STEPS: dict[str, Callable[[], None]] = {
    "before accept": lambda: die_before(log_writer_door, "accept"),
    "after accept": lambda: die_after(log_writer_door, "accept"),
    "before mapping": lambda: die_before(log_writer_door, "SinkChannel"),
    "before WELCOME": lambda: die_after(log_writer_door, "SinkChannel"),
    "after WELCOME": lambda: die_after(ChannelAcceptor, "_on_frame"),
    "after taking descriptors": lambda: die_before(LogWriterSide, "execute", IN_TRAFFIC),
    "between entry and tail": lambda: die_between_entry_and_tail(RingPair, "completion_producer"),
    "after completions, before the bell": lambda: die_before(SourceDoorbellButton, "ring_if_sleeping", IN_TRAFFIC),
}


class Side:
    """What both sides have: a poller, counters, and a log that survives them."""

    def __init__(self, kind: str, incarnation: int) -> None:
        self.layout = BoxLayout.from_environment()
        self.incarnation = incarnation
        self.poller = Poller()
        self.clock = SystemClock()
        self.counters = Counters.create_or_adopt(self.layout, kind, incarnation)
        self._log = os.open(f"{self.layout.runtime_directory}/{kind}.{incarnation}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._log, (" ".join(map(str, words)) + "\n").encode())


class SourceSide(Side):
    """Offers numbers, each with its own incarnation and the expected incarnation of its peer."""

    def __init__(self, incarnation: int) -> None:
        super().__init__("source", incarnation)
        self.source = Source(self.layout, SOURCE, incarnation, 1 << 16, RING)
        self.proxies = LogWriterProxies(
            self.source, [DISK], self.poller, self.counters,
            lambda number, entry: self.on_completion(number, entry),
            lambda number: self.write("lost", number),
            lambda disk: self.write("connected", self.proxies.writer_info(disk)["incarnation"]),
            lambda disk: self.write("gone"),
            counts_records=True,
        )  # fmt: skip
        self.proxy = self.proxies.by_disk[DISK]
        self.number = incarnation * 10_000_000

    def on_completion(self, number: int, entry: tuple[Any, ...]) -> None:
        self.write("completed", number, entry[5])

    def turn(self) -> bool:
        work = self.proxies.do_work(self.clock.monotonic_ns())
        if self.proxy.serving and not stopping:
            for _ in range(OFFERS_A_TURN):
                self.number += 1
                self.write("offering", self.number)
                writer_life = self.proxies.writer_info(DISK)["incarnation"]
                descriptor = (1, 0, 0, 0, 0, self.incarnation, 0, 0, self.number, 0, 0, 0, 0, writer_life)
                if not self.proxy.offer(descriptor, 1, self.number):
                    self.write("refused", self.number)
                    break
        self.proxies.flush()
        self.source.doorbell.prepare_to_sleep()
        self.poller.poll(0 if self.proxies.has_completions() else 20 if work == 0 else 1)
        self.source.doorbell.wake()
        return not stopping or bool(self.proxy.outstanding)

    def close(self) -> None:
        self.proxies.close()
        self.source.close()


class LogWriterSide(Side):
    """Carries numbers out by writing them down, and checks whose they are."""

    def __init__(self, incarnation: int) -> None:
        super().__init__("log_writer", incarnation)
        self.table = PartitionTableWriter.create(self.layout.shared_memory_name("table", DISK, incarnation), incarnation)
        PreviousTables(self.layout, DISK, self.table.shared.name).forget()
        self.table.set_disk_state(DISK_ONLINE)
        self.bell = Doorbell(self.table.shared.words, SLEEPING_WORD)
        self.poller.register(self.bell.fileno(), select.EPOLLIN, self.bell.drain)
        self.door = ChannelAcceptor(
            self.bell.fileno(), self.poller, self.counters,
            lambda: {"table": self.table.shared.name, "incarnation": incarnation},
            lambda channel, reason: self.write("forgot", channel.incarnation),
        )  # fmt: skip
        self.door.open(self.layout.log_writer_socket(DISK))

    def execute(self, source: SinkChannel, entry: tuple[Any, ...]) -> tuple[Any, ...]:
        number, token = entry[8], entry[9]
        if entry[5] != source.incarnation or entry[13] != self.incarnation:
            self.write("FOREIGN", *entry)
        self.write("executed", source.incarnation, number)
        return (1, 0, 0, 0, token, number, -1, 0, number + 1, 0, 1, 0)

    def turn(self) -> bool:
        for source in list(self.door.channels):
            entries = source.descriptors.poll(RING)
            if entries:
                source.complete([self.execute(source, entry) for entry in entries])
        self.bell.prepare_to_sleep()
        self.poller.poll(0 if self.door.has_descriptors() else 20)
        self.bell.wake()
        return not stopping or self.door.has_descriptors()

    def close(self) -> None:
        self.door.close()
        self.bell.close()
        self.table.close()


def stop(_signal: int, _frame: Any) -> None:
    global stopping
    stopping = True


def main(arguments: list[str]) -> None:
    kind, incarnation = arguments[0], int(arguments[1])
    signal.signal(signal.SIGTERM, stop)
    if arguments[2:]:
        {"source": SOURCE_STEPS, "log_writer": LOG_WRITER_STEPS}[kind][arguments[2]]()
    side = SourceSide(incarnation) if kind == "source" else LogWriterSide(incarnation)
    side.write("started")
    while side.turn():
        pass
    side.close()


if __name__ == "__main__":
    main(sys.argv[1:])
