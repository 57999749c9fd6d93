"""The ZooKeeper session: a client of kazoo whose threads never run our callbacks.

Owned by the controller process; the only module that imports kazoo. kazoo's three threads talk to
the server, append events to a queue and signal an eventfd that the controller's poller watches.
`drain` handles the queue inside the duty cycle, so no callback of ours runs on another thread.
`SessionState` states what may be assumed in each state.

Weak: kazoo wakes its thread with one byte per request through a socket pair that holds some 270
bytes and then blocks, hence the window of `IN_FLIGHT_MAX` and the rejection of requests without a
connection. `close` waits for kazoo's threads, at most `CLOSE_SECONDS`; if a server hangs, the
session ends by its time-out.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from kazoo import exceptions as kazoo_exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionDropped, ConnectionHandler
from kazoo.protocol.serialization import SASL
from kazoo.protocol.states import KazooState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id

from appliance.base.zookeeper_access import ZooKeeperAccess, ZooKeeperTls
from appliance.cluster.zookeeper_probe import PROBE_TIMEOUT_SECONDS, zookeeper_serves
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from services.controller.zookeeper.digest_md5 import DigestMd5, SaslFailed
from services.controller.zookeeper.requests import (
    Acl,
    AclEntry,
    BadVersion,
    Check,
    Create,
    Delete,
    Exists,
    Get,
    GetAcl,
    GetChildren,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Request,
    RequestRejected,
    SetAcl,
    SetData,
    Write,
    ZooKeeperConnectionLost,
    ZooKeeperFailed,
    acl_of,
)

IN_FLIGHT_MAX = 64
CLOSE_SECONDS = 2.0
RECONNECT_SECONDS = 0.05
RECONNECT_SECONDS_MAX = 0.2
TLS_PROBE_SECONDS = 1.0
"""For each step of a probe with TLS: a JVM that has just started takes long for its first handshake."""
REFUSED_SECONDS = 0.5
"""Pause before the next attempt, after a server has rejected the credentials."""


class SessionState(Enum):
    """What may be assumed in each state, and what is done."""

    CONNECTING = "connecting"
    """Before the first connection: nothing is known. The image file of the previous incarnation stays,
    and requests wait until their time-out."""
    CONNECTED = "connected"
    """A server accepted the session, old or new. Our ephemeral nodes exist if the session id is the
    old one; what was read may have changed. Everything is repeated: registration, election, load,
    image, disks. Boxes that are not registered then have a session's time-out before their replicas
    are replaced as leaders."""
    SUSPENDED = "suspended"
    """The connection broke: the session may have expired, another broker may be controller, and writes
    in flight may or may not have taken place. Started operations are dropped, admin and AlterPartition
    requests wait, rows and image stay. Produce and fetch continue; of replicated partitions acks=0 and
    1 and consumers' fetches while the lease lasts (`shm/lease.py`)."""
    EXPIRED = "expired"
    """Our ephemeral nodes are deleted, another broker may be controller. As suspended; kazoo opens a
    new session, with a new broker epoch."""
    CLOSED = "closed"
    """A clean stop of the box ended the session, so other boxes know at once. A controller process that
    stops alone leaves its session to its next incarnation."""


class SavedSession(NamedTuple):
    """What the next incarnation of the controller needs to resume the session."""

    session_id: int
    password: bytes

    def save(self, path: str, hosts: str) -> None:
        document = {"zookeeper": hosts, "session_id": self.session_id, "password": self.password.hex()}
        temporary = f"{path}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(orjson.dumps(document))
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str, hosts: str) -> SavedSession | None:
        """Return the session that was saved for this connect string; None if there is none or it
        cannot be read.
        """
        try:
            document = orjson.loads(Path(path).read_bytes())
            if document["zookeeper"] != hosts:
                return None
            return cls(int(document["session_id"]), bytes.fromhex(document["password"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


class ZooKeeperReply(NamedTuple):
    """The result of a request: `failure` is None if `value` is valid."""

    value: Any
    failure: ZooKeeperFailed | None


OnReply = Callable[[ZooKeeperReply], None]


class _ProbingHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Connect only to a server that reports that it serves.

    A server that has bound its port and is not initialised yet accepts a connection and forgets it
    without closing it (seen in one start of ten); kazoo then waits a whole session time-out for the
    reply. Runs on kazoo's own thread, so it may block for a moment. kazoo's own TLS also trusts the
    authorities of the system.
    """

    def __init__(self, tls: ZooKeeperTls | None) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        host, port = kwargs["address"] if "address" in kwargs else args[0]
        context = None if self._tls is None else self._tls.context()  # each time: files are renewed
        if not zookeeper_serves(host, port, PROBE_TIMEOUT_SECONDS if context is None else TLS_PROBE_SECONDS, context):
            raise ConnectionRefusedError(f"the ZooKeeper at {host}:{port} does not serve yet")
        connected = super().create_connection(*args, **kwargs)
        return connected if context is None else _encrypted(connected, context, host)

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> BackgroundThread:
        """Start a thread. Raises ThreadRefused: then the process ends and is restarted, instead of
        waiting for ever.
        """
        thread = BackgroundThread(partial(func, *args, **kwargs), "zookeeper-session")
        thread.start()
        return thread


def _encrypted(connected: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(connected, server_hostname=host)
    except OSError:
        connected.close()
        raise


class _AuthenticatedConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """Log in by SASL before anything is sent.

    kazoo's own SASL needs a package that is not maintained, and gives the session up for ever if
    the server dies during the login.
    """

    def __init__(self, client: KazooClient, retry: KazooRetry, access: ZooKeeperAccess) -> None:
        super().__init__(client, retry, logger=client.logger, sasl_options={})
        self._access = access
        self.refusals = 0
        """How often a server has rejected the secret."""

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        exchange = DigestMd5(self._access.user, self._access.password, os.urandom(16).hex())
        try:
            challenge = self._exchange(b"", 1, timeout)
            if challenge or self._access.guards:
                exchange.verify(self._exchange(exchange.respond(challenge), 2, timeout))
        except SaslFailed as failure:
            self.refusals += 1
            self.client.handler.sleep_func(REFUSED_SECONDS)
            raise ConnectionDropped(f"{host} rejected the login: {failure}") from failure

    def _exchange(self, token: bytes, xid: int, timeout: float) -> bytes:
        self._submit(SASL(token), timeout, xid)
        header, buffer, offset = self._read_header(timeout)
        if header.err or header.xid != xid:
            raise SaslFailed(f"the server returned error {header.err}")
        return SASL.deserialize(buffer, offset)[0] or b""


def authenticated_client(access: ZooKeeperAccess | None, **options: Any) -> KazooClient:
    """Return a kazoo client with these credentials: SASL on servers of our own, ZooKeeper's digest
    scheme elsewhere.
    """
    if access is None:
        return KazooClient(**options)
    if not access.is_own:
        return KazooClient(auth_data=[("digest", f"{access.user}:{access.password}")], **options)
    client = KazooClient(**options)
    client._connection = _AuthenticatedConnection(client, client._conn_retry.copy(), access)
    return client


class ZooKeeperSession:
    """One session, reconnected as needed.

    `drain` calls `on_state(state)`, `on_change(path)` and the `on_reply` of each request.
    """

    def __init__(
        self,
        connect: str,
        session_timeout_ms: int,
        saved: SavedSession | None,
        on_state: Callable[[SessionState], None],
        on_change: Callable[[str], None],
        access: ZooKeeperAccess | None = None,
        tls: ZooKeeperTls | None = None,
    ) -> None:
        """`access`: the credentials of the session, which also decide the ACL of each node that it creates; None for an open ZooKeeper."""
        self._access = access
        self._hosts, _, chroot = connect.partition("/")
        self._chroot = f"/{chroot.strip('/')}" if chroot.strip("/") else ""
        self._on_state = on_state
        self._on_change = on_change
        self.state = SessionState.CONNECTING
        self.session_id = 0
        self.password = b""
        self._arrived: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[Request, OnReply]] = deque()
        self._in_flight = 0
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        retry = KazooRetry(max_tries=-1, delay=RECONNECT_SECONDS, backoff=2, max_jitter=0.2, max_delay=RECONNECT_SECONDS_MAX)
        self._client = authenticated_client(
            access,
            hosts=self._hosts,
            timeout=session_timeout_ms / 1000,
            client_id=(saved.session_id, saved.password) if saved else None,
            connection_retry=retry,
            randomize_hosts=False,  # the own member is first: its session survives a partition between two boxes
            handler=_ProbingHandler(tls),
        )
        self._client.logger.disabled = True  # the operator sees the states instead
        self._client.add_listener(self._on_kazoo_state)

    def start(self) -> None:
        self._client.start_async()

    @property
    def refusals(self) -> int:
        """How often servers have rejected the credentials."""
        return getattr(self._client._connection, "refusals", 0)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `drain` has something to do."""
        return self._doorbell

    # --- on kazoo's threads: nothing but queueing -------------------------------------------------------------------------

    def _hand_over(self, event: Callable[[], None]) -> None:
        self._arrived.append(event)
        try:
            os.eventfd_write(self._doorbell, 1)
        except OSError:
            pass  # closed meanwhile

    def _on_kazoo_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            session_id, password = self._client.client_id or (0, b"")
            self._hand_over(lambda: self._become_connected(session_id, password))
        else:
            lost = SessionState.SUSPENDED if state == KazooState.SUSPENDED else SessionState.EXPIRED
            self._hand_over(lambda: self._become(lost))

    def _on_watch(self, event: WatchedEvent) -> None:
        if event.path is not None:
            path = event.path[len(self._chroot) :] or "/"
            self._hand_over(lambda: self._on_change(path))

    # --- in the duty cycle -------------------------------------------------------------------------------------------------

    def drain(self, limit: int = 256) -> int:
        """Handle at most `limit` events; return how many."""
        try:
            os.eventfd_read(self._doorbell)
        except BlockingIOError:
            pass
        handled = 0
        while self._arrived and handled < limit:
            self._arrived.popleft()()
            handled += 1
        if self._arrived:
            os.eventfd_write(self._doorbell, 1)
        return handled

    def submit(self, request: Request, on_reply: OnReply) -> None:
        """Send a request; `on_reply` is called exactly once, from a later `drain`.

        Without a connection the reply is `ZooKeeperConnectionLost`.
        """
        if self.state is not SessionState.CONNECTED:
            self._hand_over(lambda: on_reply(ZooKeeperReply(None, ZooKeeperConnectionLost("there is no connection to ZooKeeper"))))
            return
        self._waiting.append((request, on_reply))
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and self._in_flight < IN_FLIGHT_MAX:
            request, on_reply = self._waiting.popleft()
            self._in_flight += 1
            self._send(request, on_reply)

    def _send(self, request: Request, on_reply: OnReply) -> None:
        def on_result(result: Any) -> None:
            self._hand_over(lambda: self._complete(request, result, on_reply))

        self._start(request).rawlink(on_result)

    def _complete(self, request: Request, result: Any, on_reply: OnReply) -> None:
        self._in_flight -= 1
        failure = result.exception
        if failure is not None:
            on_reply(ZooKeeperReply(None, _failure_of(request, failure)))
        else:
            on_reply(_reply_of(request, result.value))
        self._send_waiting()

    def _start(self, request: Request) -> Any:
        client = self._client
        if isinstance(request, Multi):
            return self._transaction(request).commit_async()
        path = self._path(request.path)
        if isinstance(request, Get):
            return client.get_async(path, self._on_watch if request.watch else None)
        if isinstance(request, GetChildren):
            return client.get_children_async(path, self._on_watch if request.watch else None)
        if isinstance(request, Exists):
            return client.exists_async(path, self._on_watch if request.watch else None)
        if isinstance(request, Create):
            return client.create_async(path, request.data, self._acl_of(request.path), request.ephemeral, request.sequence)
        if isinstance(request, SetData):
            return client.set_async(path, request.data, request.version)
        if isinstance(request, GetAcl):
            return client.get_acls_async(path)
        if isinstance(request, SetAcl):
            return client.set_acls_async(path, _kazoo_acl(request.acl))
        return client.delete_async(path, request.version)

    def _transaction(self, multi: Multi) -> Any:
        transaction = self._client.transaction()
        for write in multi.writes:
            path = self._path(write.path)
            if isinstance(write, Create):
                transaction.create(path, write.data, self._acl_of(write.path), write.ephemeral, write.sequence)
            elif isinstance(write, SetData):
                transaction.set_data(path, write.data, write.version)
            elif isinstance(write, Delete):
                transaction.delete(path, write.version)
            else:
                transaction.check(path, write.version)
        return transaction

    def _path(self, path: str) -> str:
        return (self._chroot + path if path != "/" else self._chroot) or "/"

    def _acl_of(self, path: str) -> list[ACL]:
        return _kazoo_acl(acl_of(path, self._access))

    def _become_connected(self, session_id: int, password: bytes) -> None:
        self.session_id, self.password = session_id, password
        parts = self._chroot.strip("/").split("/") if self._chroot else []
        for depth in range(1, len(parts) + 1):
            # No reply is needed: the requests of one session are carried out in order.
            self._client.create_async("/" + "/".join(parts[:depth]), acl=self._acl_of("/"))
        self._become(SessionState.CONNECTED)

    def _become(self, state: SessionState) -> None:
        if self.state is SessionState.CLOSED:
            return
        self.state = state
        if state is not SessionState.CONNECTED:
            self._refuse_waiting()
        self._on_state(state)

    def _refuse_waiting(self) -> None:
        refused, self._waiting = self._waiting, deque()
        for _request, on_reply in refused:
            on_reply(ZooKeeperReply(None, ZooKeeperConnectionLost("the connection to ZooKeeper was lost")))

    # --- the end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session: ZooKeeper deletes its ephemeral nodes at once. Waits for kazoo's
        threads, at most `CLOSE_SECONDS`.
        """
        if self.state is SessionState.CLOSED:
            return
        self.state = SessionState.CLOSED
        self._refuse_waiting()
        stopping = BackgroundThread(self._stop_client, "zookeeper-close")
        try:
            stopping.start()
            stopping.join(CLOSE_SECONDS)
        except ThreadRefused:
            pass  # the session then ends by its time-out
        os.close(self._doorbell)

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception:  # noqa: S110
            pass  # the session then ends by its time-out

    def abandon(self) -> None:
        """Disconnect without closing the session, as a killed process does.

        The session and its ephemeral nodes stay until the time-out, or until the next incarnation
        resumes it.
        """
        self.state = SessionState.CLOSED
        self._client._stopped.set()
        connection = self._client._connection
        if connection._socket is not None:
            try:
                connection._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        connection.stop(CLOSE_SECONDS)
        self._client.handler.stop()
        connection.close()
        os.close(self._doorbell)


_FAILURES: tuple[tuple[type[Exception], type[ZooKeeperFailed]], ...] = (
    (kazoo_exceptions.NoNodeError, NoNode),
    (kazoo_exceptions.NodeExistsError, NodeExists),
    (kazoo_exceptions.BadVersionError, BadVersion),
    (kazoo_exceptions.NotEmptyError, NotEmpty),
    (kazoo_exceptions.ConnectionLoss, ZooKeeperConnectionLost),
    (kazoo_exceptions.SessionExpiredError, ZooKeeperConnectionLost),
    (kazoo_exceptions.ConnectionClosedError, ZooKeeperConnectionLost),
)


def _failure_of(request: Request, failure: Exception) -> ZooKeeperFailed:
    name = request.path if not isinstance(request, Multi) else f"{len(request.writes)} writes, the first to {request.writes[0].path}"
    text = f"{type(request).__name__} {name}: {type(failure).__name__} {failure}".rstrip()
    for theirs, ours in _FAILURES:
        if isinstance(failure, theirs):
            return ours(text)
    return RequestRejected(text)


def _reply_of(request: Request, value: Any) -> ZooKeeperReply:
    if isinstance(request, Multi):
        return _reply_of_multi(request, value)
    if isinstance(request, Get):
        data, stat = value
        return ZooKeeperReply(_node(data, stat), None)
    if isinstance(request, Exists):
        return ZooKeeperReply(None if value is None else _node(b"", value), None)
    if isinstance(request, GetAcl):
        return ZooKeeperReply(tuple(AclEntry(entry.perms, entry.id.scheme, entry.id.id) for entry in value[0]), None)
    if isinstance(request, SetAcl):
        return ZooKeeperReply(None, None)
    if isinstance(request, GetChildren):
        return ZooKeeperReply(tuple(sorted(value)), None)
    return ZooKeeperReply(value.version if isinstance(request, SetData) else value, None)


def _reply_of_multi(request: Multi, results: list[Any]) -> ZooKeeperReply:
    """Return the results, or the failure: in a refused transaction RolledBack precedes the failed
    write, RuntimeInconsistency follows it.
    """
    for index, (write, result) in enumerate(zip(request.writes, results, strict=True)):
        if isinstance(result, Exception) and not isinstance(result, kazoo_exceptions.RolledBackError):
            return ZooKeeperReply(None, MultiFailed(index, write, _failure_of(_alone(write), result)))
    return ZooKeeperReply(tuple(result.version if isinstance(write, SetData) else result for write, result in zip(request.writes, results, strict=True)), None)


def _alone(write: Write) -> Request:
    return Exists(write.path) if isinstance(write, Check) else write


def _kazoo_acl(acl: Acl) -> list[ACL]:
    return [ACL(entry.permissions, Id(entry.scheme, entry.identity)) for entry in acl]


def _node(data: bytes | None, stat: Any) -> Node:
    return Node(data or b"", stat.version, stat.czxid, stat.ephemeralOwner or 0, stat.ctime)
