"""The acceptor processes that still send from slots of a log-reader's memory.

A process that received a part of an answer holds its slot until it sends RELEASE or is dead according
to its pidfd: a socket may hang up while its owner still sends. A slot is held once for each answer.
Weak spot: an acceptor that is stopped (SIGSTOP) keeps its slots.
"""

from __future__ import annotations

import os
import select
import socket
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from struct import Struct

from appliance.runtime.poller import Poller
from appliance.shm.counters import Counter

_PEER = Struct("iII")


class SlotHolder:
    """One acceptor process and the slots that it sends from."""

    __slots__ = ("pid", "pidfd", "slots")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.slots: Tally[int] = Tally()
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:
            self.pidfd = -1  # it is dead, or the kernel has no pidfds: its hang-up has to do


class ColdHolders:
    """All holders of one log-reader.

    `on_release(slot)` is called for each hold that ends, `on_reaped` after a process has died and
    all its holds were released.
    """

    def __init__(self, poller: Poller, held: Counter, on_release: Callable[[int], None], on_reaped: Callable[[], None]) -> None:
        self._poller = poller
        self._held = held
        self._on_release = on_release
        self._on_reaped = on_reaped
        self._by_pid: dict[int, SlotHolder] = {}

    def holder(self, sock: socket.socket) -> SlotHolder:
        """Return the process at the other end of a connection (SO_PEERCRED)."""
        pid = _peer_pid(sock)
        holder = self._by_pid.get(pid)
        if holder is None:
            holder = self._by_pid[pid] = SlotHolder(pid)
            if holder.pidfd >= 0:
                self._poller.register(holder.pidfd, select.EPOLLIN, lambda _events: self._reap(holder))
        return holder

    def hold(self, holder: SlotHolder, slot: int) -> None:
        """Add a hold of one slot, once for each answer."""
        holder.slots[slot] += 1
        self._held.add()

    def release(self, sock: socket.socket, slots: Iterable[int]) -> None:
        """End one hold of each of these slots, because the process has sent their bytes.

        Slots that it does not hold are ignored.
        """
        holder = self._by_pid.get(_peer_pid(sock))
        if holder is None:
            return
        for slot in slots:
            if holder.slots[slot] > 0:
                self._release(holder, slot)

    def on_hang_up(self) -> None:
        """Handle a closed connection.

        Its process keeps its slots until its pidfd proves that it is dead; without pidfds they are
        released now.
        """
        for holder in list(self._by_pid.values()):
            if holder.pidfd < 0:
                self._reap(holder)

    def _release(self, holder: SlotHolder, slot: int) -> None:
        holder.slots[slot] -= 1
        if not holder.slots[slot]:
            del holder.slots[slot]
        self._held.add(-1)
        self._on_release(slot)

    def _reap(self, holder: SlotHolder) -> None:
        """It is dead, and sends nothing any more."""
        if self._by_pid.pop(holder.pid, None) is None:
            return
        for slot, count in list(holder.slots.items()):
            for _ in range(count):
                self._release(holder, slot)
        self._forget(holder)
        self._on_reaped()

    def _forget(self, holder: SlotHolder) -> None:
        if holder.pidfd >= 0:
            self._poller.unregister(holder.pidfd)
            os.close(holder.pidfd)

    def close(self) -> None:
        """Close the pidfds."""
        for holder in self._by_pid.values():
            self._forget(holder)


def _peer_pid(sock: socket.socket) -> int:
    pid: int = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
    return pid
