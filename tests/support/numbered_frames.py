"""Lines as frames of a new session of RELP or Lumberjack, and how many of them its answers acknowledge. By the names of listeners (`PROTOCOLS`)."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

import orjson

PROTOCOLS: Final = {"beats": "lumberjack", "relay": "relp"}
"""By the names of their listeners."""
RELP_OPEN: Final = b"1 open 15 commands=syslog\n"
_STORED = re.compile(rb"rsp 6 200 OK")


def lumberjack(lines: Sequence[str]) -> bytes:
    """One window."""
    payloads = [orjson.dumps({"message": line}) for line in lines]
    events = [b"2J" + struct.pack(">II", number, len(payload)) + payload for number, payload in enumerate(payloads, 1)]
    return b"2W" + struct.pack(">I", len(lines)) + b"".join(events)


def relp(lines: Sequence[str]) -> bytes:
    """A session's first frames."""
    frames = [b"%d syslog %d <13>%b\n" % (number, len(line) + 4, line.encode()) for number, line in enumerate(lines, 2)]
    return RELP_OPEN + b"".join(frames)


ENCODE: Final[dict[str, Callable[[Sequence[str]], bytes]]] = {"beats": lumberjack, "relay": relp}


def answered(listener: str, heard: bytes) -> int:
    """How many lines of the one window, or of the session, these answers speak of."""
    if listener == "beats":
        return max((struct.unpack_from(">I", heard, start + 2)[0] for start in range(0, len(heard) - 5, 6)), default=0)
    return len(_STORED.findall(heard))


def reset(sender: socket.socket) -> None:
    """Cut it off: no end of the stream, and nothing that waits is sent."""
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.close()
