"""The two conventions between a process and its parent: LISTEN_FDS and NOTIFY_SOCKET.

systemd and `millrace run` use the same ones (sd_listen_fds(3), sd_notify(3)); no library is needed.
Weak: notifications are datagrams. One that cannot be delivered at once is dropped, because a
process never waits for its parent.
"""

from __future__ import annotations

import os
import socket

from appliance.shm.counters import Counters

FIRST_LISTEN_DESCRIPTOR = 3
REFUSED = "X_MILLRACE_REFUSED"
FAILED_STARTS = "runtime.failed_starts"
"""Incarnations in a row that ended before they served."""


def notify(message: str) -> bool:
    """Send an sd_notify message; returns False if no parent listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as channel:
        try:
            channel.sendto(message.encode(), address)
        except OSError:
            return False
    return True


def notify_refused(reason: str) -> None:
    """Report that the cluster keeps refusing this box. `millrace run` then ends a start; systemd
    ignores the message, and the process keeps waiting."""
    notify(f"{REFUSED}={reason}".replace("\n", " "))


class SystemdNotifier:
    """Reports readiness and status to the parent and in the counters of the process."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.is_ready = False

    def ready(self) -> None:
        self.is_ready = True
        self._counters.counter(FAILED_STARTS).set(0)
        self._counters.set_state("serving")
        notify("READY=1")

    def status(self, text: str) -> None:
        notify("STATUS=" + text.replace("\n", " "))


def take_listen_sockets() -> dict[str, socket.socket]:
    """Take the passed sockets, by name; non-blocking and close-on-exec. The variables are removed,
    so that children do not see them."""
    count = int(os.environ.pop("LISTEN_FDS", "0") or "0")
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    pid = os.environ.pop("LISTEN_PID", "")
    if not count or (pid and pid != str(os.getpid())):
        return {}
    sockets = {}
    for index in range(count):
        received = socket.socket(fileno=FIRST_LISTEN_DESCRIPTOR + index)
        received.setblocking(False)
        os.set_inheritable(received.fileno(), False)
        sockets[names[index] if index < len(names) else f"unnamed-{index}"] = received
    return sockets
