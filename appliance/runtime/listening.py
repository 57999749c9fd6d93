"""The listening sockets of a box. The supervisor opens them and passes them on, so that no restart
of a process refuses a connection.

Weak: UDP datagrams that arrive while ingest restarts wait in the receive buffer of the socket,
which is limited.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import NamedTuple

from appliance.base.settings import KafkaListener, SenderSocket

KAFKA_SOCKET = "kafka"
KAFKA_BACKLOG = 1024
SYSLOG_BACKLOG = 1024
HTTP_BACKLOG = 128
INGEST_BACKLOG = 1024
UDP_RECEIVE_BYTES = 16 << 20
NO_ROOM_TO_ACCEPT = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of `accept` after which retrying at once would spin."""
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; the socket module does not name it
_FREE_PORT_TRIES = 20


class ListenSockets(NamedTuple):
    """Open sockets by their LISTEN_FDNAMES names, and their ports."""

    sockets: dict[str, socket.socket]
    kafka_port: int
    syslog_port: int
    http_port: int
    ingest_port: int = 0
    senders: tuple[SenderSocket, ...] = ()
    """The sockets of the tables of senders, with their ports."""
    listeners: tuple[KafkaListener, ...] = ()
    """Those of the setting `listeners`, with their ports."""

    def close(self) -> None:
        for sock in self.sockets.values():
            sock.close()


def open_listen_sockets(
    host: str,
    kafka_port: int,
    syslog_port: int,
    http_port: int,
    ingest_port: int,
    senders: Sequence[SenderSocket] = (),
    listeners: Sequence[KafkaListener] = (),
) -> tuple[ListenSockets, list[str]]:
    """Open all sockets; returns them and the problems. If there are problems, the caller closes the
    sockets."""
    sockets: dict[str, socket.socket] = {}
    try:
        family, address = _resolve(host)
    except OSError as error:
        problem = f"--listen {host}: not a name or address of this machine ({error.strerror}); use an address of `ip addr`, or 127.0.0.1"
        return ListenSockets(sockets, kafka_port, syslog_port, http_port, ingest_port), [problem]
    problems = []
    for name, option, port, backlog in (
        *([] if listeners else [("kafka", "--kafka-port", kafka_port, KAFKA_BACKLOG)]),
        ("http", "--http-port", http_port, HTTP_BACKLOG),
        ("ingest-http", "--ingest-port", ingest_port, INGEST_BACKLOG),
    ):
        try:
            sockets[name] = _open_tcp(family, address, port, backlog)
        except OSError as error:
            problems.append(_bind_problem(host, port, "TCP", option, error))
    try:
        sockets["syslog-tcp"], sockets["syslog-udp"] = _open_syslog(family, address, syslog_port)
    except OSError as error:
        problems.append(_bind_problem(host, syslog_port, "TCP and UDP", "--syslog-port", error))
    listening = []
    for name, listener in zip(kafka_socket_names(listeners), listeners, strict=True):
        try:
            sockets[name] = _open_tcp(*_resolve(listener.address), listener.port, KAFKA_BACKLOG)
        except OSError as error:
            problems.append(_listener_problem(listener, error))
        else:
            listening.append(listener._replace(port=sockets[name].getsockname()[1]))
    opened = []
    for sender in senders:
        try:
            sockets[sender.name] = _open_sender(sender, family, address)
        except OSError as error:
            problems.append(_sender_problem(sender, error))
        else:
            opened.append(sender._replace(port=sockets[sender.name].getsockname()[1]))
    kafka, syslog, http, ingest = (sockets[name].getsockname()[1] if name in sockets else 0 for name in ("kafka", "syslog-tcp", "http", "ingest-http"))
    # a wrong address is wrong for each port
    return ListenSockets(sockets, kafka, syslog, http, ingest, tuple(opened), tuple(listening)), list(dict.fromkeys(problems))


def kafka_socket_names(listeners: Sequence[KafkaListener]) -> list[str]:
    """Return the LISTEN_FDNAMES names of the listeners' sockets; that of the first has no suffix,
    so that its socket unit is always the same."""
    return [KAFKA_SOCKET if index == 0 else f"{KAFKA_SOCKET}-{listener.name.lower()}" for index, listener in enumerate(listeners)]


def _resolve(host: str) -> tuple[int, str]:
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, str(address[0])


def _open_tcp(family: int, address: str, port: int, backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _open_sender(sender: SenderSocket, family: int, address: str) -> socket.socket:
    """Open a socket of the ingest table, at its own address or that of the box. Raises OSError."""
    if sender.address:
        family, address = _resolve(sender.address)
    if not sender.is_datagram:
        return _open_tcp(family, address, sender.port, INGEST_BACKLOG)
    udp = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        udp.bind((address, sender.port))
    except OSError:
        udp.close()
        raise
    _enlarge_receive_buffer(udp)
    return udp


def _open_syslog(family: int, address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Open one port number for both transports.

    With port 0, retry until a number is free for both.
    """
    for attempt in range(_FREE_PORT_TRIES if port == 0 else 1):
        tcp = _open_tcp(family, address, port, SYSLOG_BACKLOG)
        udp = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            udp.bind((address, tcp.getsockname()[1]))
        except OSError:
            tcp.close()
            udp.close()
            if port or attempt == _FREE_PORT_TRIES - 1:
                raise
            continue
        _enlarge_receive_buffer(udp)
        return tcp, udp
    raise AssertionError("unreachable")


def _enlarge_receive_buffer(udp: socket.socket) -> None:
    """As root, set the size beyond net.core.rmem_max; otherwise up to that."""
    try:
        udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, UDP_RECEIVE_BYTES)
    except OSError:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UDP_RECEIVE_BYTES)


def _sender_problem(sender: SenderSocket, error: OSError) -> str:
    transport, what = ("UDP" if sender.is_datagram else "TCP"), f"{sender.where}: cannot listen on {sender.address or 'the address of the box'}"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{what}: {error.strerror}; it must be an address of `ip addr`, or be left out"
    what = f"{what} port {sender.port} ({transport}): {error.strerror}"
    if isinstance(error, PermissionError):
        return f"{what}; ports below 1024 need root, choose another"
    return f"{what}; see its owner with `ss -lntup 'sport = :{sender.port}'`, stop it, or choose another port"


def _listener_problem(listener: KafkaListener, error: OSError) -> str:
    what = f"listeners: cannot listen on {listener.name}://{listener.address}:{listener.port}: {error.strerror}"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{what}; it must be an address of `ip addr`"
    if isinstance(error, PermissionError):
        return f"{what}; ports below 1024 need root, choose another"
    return f"{what}; see its owner with `ss -lntup 'sport = :{listener.port}'`, stop it, or choose another port"


def _bind_problem(host: str, port: int, transport: str, option: str, error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {host}: {error.strerror}; {host} is no address of this machine, choose another with --listen"
    what = f"cannot listen on {host} port {port} ({transport}): {error.strerror}"
    if isinstance(error, PermissionError):
        return f"{what}; ports below 1024 need root, choose another with {option}"
    return f"{what}; see its owner with `ss -lntup 'sport = :{port}'`, stop it, or choose another port with {option} (0: any free one)"
