"""Until when the registration of this box in the cluster is certainly valid: one word, written by
the controller, read by all processes that lead partitions.

In ns of CLOCK_BOOTTIME, because a machine that slept must find its lease expired. The writer stores
the time at which it sent a request that ZooKeeper answered, plus the session time-out: before that,
no other box can have seen this one leave. Safety does not depend on the lease (the in-sync set
provides it). It keeps a leader that was cut off from accepting records that would be lost (acks=0
and 1) and from serving stale ones, where other boxes have replicas. The object outlives the
controller; its next incarnation adopts it.

Weak: without the object no process is restricted: no controller of this boot has stored a lease.
"""

from __future__ import annotations

from typing import Final

from appliance.base.layout import BoxLayout
from appliance.shm.mapping import HEADER_BYTES, INCARNATION_WORD, WORD_BYTES, LayoutMismatch, SharedObject, SharedObjectAbsent

# Lease: byte, name, meaning.
#
# │     0 │                        │ magic MLRlease in the header
# │    64 │ _UNTIL_WORD            │ CLOCK_BOOTTIME, ns; 0: ended

PURPOSE: Final = b"MLRlease"
_UNTIL_WORD: Final = HEADER_BYTES // WORD_BYTES
_SIZE_BYTES: Final = HEADER_BYTES + WORD_BYTES


def _name(layout: BoxLayout) -> str:
    return layout.shared_memory_name("lease", "controller")


class LeaseWriter:
    """The controller's side. A new incarnation continues the lease of the same boot, never of
    another one."""

    def __init__(self, layout: BoxLayout, incarnation: int) -> None:
        try:
            self._shared = SharedObject.attach(_name(layout), PURPOSE, writable=True)
            if not self._shared.is_of_this_boot():
                raise SharedObjectAbsent("of another boot")
            self._shared.words[INCARNATION_WORD] = incarnation
            self._shared.own()
        except (SharedObjectAbsent, LayoutMismatch):
            self._shared = SharedObject.create(_name(layout), PURPOSE, _SIZE_BYTES, incarnation)

    @property
    def until_ns(self) -> int:
        return self._shared.words[_UNTIL_WORD]

    def extend(self, until_ns: int) -> None:
        """Extend the lease to `until_ns`. A late answer never shortens it."""
        self._shared.words[_UNTIL_WORD] = max(until_ns, self._shared.words[_UNTIL_WORD])

    def end(self, now_ns: int) -> None:
        """End the lease at `now_ns` (CLOCK_BOOTTIME), unless it ended before: the session has expired,
        or the box leaves the cluster. The time counts for what is allowed for a while without one.
        """
        self._shared.words[_UNTIL_WORD] = min(now_ns, self._shared.words[_UNTIL_WORD])

    def close(self) -> None:
        """Unmap the object; the stored lease stays valid."""
        self._shared.close()


class LeaseReader:
    """The reader's side."""

    def __init__(self, layout: BoxLayout) -> None:
        self._name = _name(layout)
        self._shared: SharedObject | None = None
        self.look_for()

    def look_for(self) -> None:
        """Attach the object if it was created since; call it regularly."""
        if self._shared is None:
            try:
                self._shared = SharedObject.attach(self._name, PURPOSE, writable=False)
            except (SharedObjectAbsent, LayoutMismatch):
                pass

    def holds(self, now_ns: int) -> bool:
        """Return whether the lease is valid; `now_ns` is CLOCK_BOOTTIME."""
        shared = self._shared
        return shared is None or now_ns < shared.words[_UNTIL_WORD]

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None


def lease_holds(layout: BoxLayout, now_ns: int) -> bool:
    """Return, without a reader, whether a controller of this boot has stored a lease that is valid."""
    try:
        shared = SharedObject.attach(_name(layout), PURPOSE, writable=False)
    except (SharedObjectAbsent, LayoutMismatch):
        return False
    try:
        return shared.is_of_this_boot() and now_ns < shared.words[_UNTIL_WORD]
    finally:
        shared.close()
