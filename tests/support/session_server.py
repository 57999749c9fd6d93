"""A session of ingest behind a real socket, with an intake that remembers: real clients talk to it without a box.

One thread, one connection after the other or several at a time; what arrives is settled at once as STORED. `streams` has the bytes of each connection, which
can be kept as samples. Weak spot: no TLS, no windows, and nothing ticks.
"""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType

from appliance.senders.listener import Listener
from services.ingest.protocols.session import MakeSession, Session
from services.ingest.records.event import EventSource
from tests.support.recording_connection import RecordingConnection
from tests.support.recording_intake import RecordingIntake

RECEIVE_BYTES = 65536


class SocketConnection(RecordingConnection):
    """What a session sends goes out at the end of each piece."""

    def __init__(self, sock: socket.socket, listener: Listener, intake: RecordingIntake) -> None:
        super().__init__(listener, intake)
        self.socket = sock
        peer = "{}:{}".format(*sock.getpeername()).encode()
        self.source = EventSource(peer, peer.rpartition(b":")[0], str(listener.protocol).encode())

    def flush(self) -> None:
        if data := self.take_sent():
            self.socket.sendall(data)


class SessionServer:
    """`with SessionServer(listener, FluentSession) as server:`"""

    def __init__(self, listener: Listener, make: MakeSession) -> None:
        self.intake = RecordingIntake()
        self.connections: list[SocketConnection] = []
        self.streams: list[bytearray] = []
        self._listener = listener
        self._make = make
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> SessionServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.close()
        self._thread.join(10)
        for connection in self.connections:
            connection.socket.close()
        self._listening.close()
        self._stopped.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._stopped:
                        return
                    if key.fileobj is self._listening:
                        self._accept(selector)
                    elif not self._read(*key.data):
                        selector.unregister(key.fileobj)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        sock, _ = self._listening.accept()
        connection = SocketConnection(sock, self._listener, self.intake)
        session = self._make(connection)
        connection.flush()
        self.connections.append(connection)
        self.streams.append(bytearray())
        selector.register(sock, selectors.EVENT_READ, (connection, session, self.streams[-1]))

    def _read(self, connection: SocketConnection, session: Session, stream: bytearray) -> bool:
        try:
            data = connection.socket.recv(RECEIVE_BYTES)
        except OSError:
            data = b""
        if data:
            stream += data
            session.received(data)
        else:
            session.finished()
        self.intake.complete_all()
        try:
            connection.flush()
        except OSError:
            data = b""
        if not data or connection.closed:
            session.lost()
            connection.socket.close()
            return False
        return True
