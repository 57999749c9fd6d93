"""A connection without a socket: what a session sends, and whether it holds or closes."""

from __future__ import annotations

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.steps import Steps, run_to_end
from services.ingest.records.event import EventSource
from tests.support.recording_intake import RecordingIntake


class RecordingConnection:
    """`sent` is everything that was sent and not yet taken by `take_sent`."""

    def __init__(self, listener: Listener | None = None, intake: RecordingIntake | None = None, principal: str = "") -> None:
        self.listener = listener or Listener("test", Protocol.SYSLOG, ListenerTransport.TCP, 0)
        self.intake = intake or RecordingIntake()
        self.source = EventSource(b"192.0.2.7:4711", b"192.0.2.7", str(self.listener.protocol).encode())
        self.principal = principal
        self.quota_wait_ms = 0
        self.charged_bytes = 0
        self.unsent_bytes = 0
        """A test says how much the peer does not take."""
        self.sent = bytearray()
        self.has_delivered = True
        self.is_held = False
        self.closed = ""
        """The reason."""

    @property
    def is_closed(self) -> bool:
        return bool(self.closed)

    def send(self, data: bytes) -> None:
        if not self.closed:
            self.sent += data

    def take_sent(self) -> bytes:
        """What was sent since the last call."""
        sent = bytes(self.sent)
        self.sent.clear()
        return sent

    def charge(self, size_bytes: int) -> None:
        self.charged_bytes += size_bytes

    def run(self, steps: Steps) -> None:
        run_to_end(steps)

    def hold(self) -> None:
        assert not self.is_held, "holds do not nest"
        self.is_held = True

    def release(self) -> None:
        assert self.is_held, "only what is held is released"
        self.is_held = False

    def close(self, reason: str) -> None:
        assert reason, "a reason is the label of a counter"
        self.closed = self.closed or reason
