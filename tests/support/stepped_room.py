"""The connections of senders, stepped by hand: real sockets over loopback, a clock of the test's,
and an intake that remembers.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout, Disk
from appliance.base.logging import Logger, Severity
from appliance.base.settings import Box
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.runtime.systemd import SystemdNotifier
from appliance.senders.listener import Listener, ListenerTransport, Protocol
from appliance.shm.counters import Counters
from lab.scratch_layout import make_layout, remove_layout
from services.ingest.listeners.sender_connections import SenderConnections
from tests.support.recording_intake import RecordingIntake

STEPS_MAX = 2_000
STEP_WAIT_MS = 5


class RoomIntake(RecordingIntake):
    """Has the test's clock, and the partition of the next records."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.blocked_partition: tuple[str, int] | None = None
        self.meets: tuple[str, int] | None = None
        """A partition that takes no more."""

    def _add(self, unit: Any, what: Any) -> None:
        super()._add(unit, what)
        self.blocked_partition = self.meets

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()


class SteppedRoom:
    """One `SenderConnections`; listeners are added by the test."""

    def __init__(self, directory: Path, ingests: int = 1, index: int = 0, layout: BoxLayout | None = None, **settings: Any) -> None:
        self.layout = layout or make_layout()
        self._is_layout_ours = layout is None
        named = {name.replace("_", "."): value for name, value in settings.items()}
        box = Box("stepped", 1, [Disk("d0", str(directory))], str(directory), "127.0.0.1", "127.0.0.1", 1, 1, 1, ingests=ingests, settings=named)
        self.clock = ManualClock()
        self.intake = RoomIntake(self.clock)
        self.poller = Poller()
        self.counters = Counters.create_or_adopt(self.layout, f"ingest@{index}", 1)
        log, name = Logger("ingest@0", Severity.WARNING), f"ingest@{index}"
        context = ServiceContext(self.layout, box, self.clock, self.counters, self.poller, name, str(index), 1, SystemdNotifier(self.counters), log, {})
        self.room = SenderConnections(context, self.intake)
        self._addresses: dict[str, tuple[str, int]] = {}
        self._senders: list[socket.socket] = []

    def listen(self, name: str = "test", protocol: Protocol = Protocol.SYSLOG, transport: ListenerTransport = ListenerTransport.TCP, **options: Any) -> None:
        self.listen_at(socket.create_server(("127.0.0.1", 0)), Listener(name, protocol, transport, 0)._replace(**options))

    def listen_at(self, listening: socket.socket, listener: Listener) -> None:
        """A socket that may be shared with another ingest."""
        self._addresses[listener.name] = listening.getsockname()
        self.room.add(listener, listening)
        self.room.accept(False)
        self.room.accept(True)

    def connect(self, name: str = "test") -> socket.socket:
        """A sender; its receives wait for nothing."""
        sender = socket.create_connection(self._addresses[name])
        self._senders.append(sender)
        sender.setblocking(False)
        return sender

    def adopt(self, sender: socket.socket) -> None:
        """Close it at the end, too."""
        self._senders.append(sender)

    def step(self, wait_ms: int = STEP_WAIT_MS) -> None:
        self.poller.poll(wait_ms)  # loopback delivers a moment later: wait for an event, not for time
        self.room.do_work()

    def pass_time(self, seconds: int) -> None:
        """Second by second, as the agent looks."""
        for _ in range(seconds):
            self.clock.advance_ms(1_000)
            self.room.sweep()
            self.step(0)

    def run_until(self, condition: Callable[[], Any], what: str = "the condition") -> None:
        for _ in range(STEPS_MAX):
            if condition():
                return
            self.step()
        raise AssertionError(f"{what} did not come true; counters: { {label: self.counter(label) for label in self.counters.labels()} }")

    def counter(self, label: str) -> int:
        return self.counters.counter(label).value

    def closed(self, reason: str) -> int:
        return self.counter(f'ingest.closed{{reason="{reason}"}}')

    def is_ended(self, sender: socket.socket) -> bool:
        """Whether the ingest has ended the connection."""
        try:
            return not sender.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        for sender in self._senders:
            sender.close()
        self.room.close()
        self.poller.close()
        if self._is_layout_ours:
            remove_layout(self.layout)
