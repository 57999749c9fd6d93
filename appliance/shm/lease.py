"""How long this box's registration in the cluster surely stands: one word, written by the controller process, read by whoever leads partitions.

CLOCK_BOOTTIME in ns, because a machine that slept must find its lease over. The writer may say: the time at which it sent a request that ZooKeeper has
answered, and the session's time-out on top. Until then no other box can have been told that we are gone. Safety does not rest on it (the in-sync set
does that); it keeps a leader that was cut off from taking what would be lost (acks=0 and 1) and from giving what is old, and only where others hold
replicas. The object outlives its writer: a controller that is started again finds its word. Owned by the controller process.
Weak spot: an object that was never made holds nobody back: no controller of this boot has kept a lease.
"""

from __future__ import annotations

from typing import Final

from appliance.base.layout import BoxLayout
from appliance.shm.atomic import WORD_BYTES
from appliance.shm.mapping import HEADER_BYTES, INCARNATION_WORD, LayoutMismatch, SharedObject, SharedObjectAbsent

PURPOSE: Final = b"MLRlease"
_UNTIL_WORD: Final = HEADER_BYTES // WORD_BYTES
_SIZE_BYTES: Final = HEADER_BYTES + WORD_BYTES


def _name(layout: BoxLayout) -> str:
    return layout.shared_memory_name("lease", "controller")


class LeaseWriter:
    """The controller's side. A new life goes on where the last one of the same boot was; it knows nothing of another boot."""

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
        """Our registration stands until then at least. An answer that comes late takes nothing back."""
        self._shared.words[_UNTIL_WORD] = max(until_ns, self._shared.words[_UNTIL_WORD])

    def end(self) -> None:
        """The session is over, or the box leaves."""
        self._shared.words[_UNTIL_WORD] = 0

    def close(self) -> None:
        """The word stays: what was told holds."""
        self._shared.close()


class LeaseReader:
    """Everybody else's side."""

    def __init__(self, layout: BoxLayout) -> None:
        self._name = _name(layout)
        self._shared: SharedObject | None = None
        self.look_for()

    def look_for(self) -> None:
        """Find the object, if it was made since; now and then."""
        if self._shared is None:
            try:
                self._shared = SharedObject.attach(self._name, PURPOSE, writable=False)
            except (SharedObjectAbsent, LayoutMismatch):
                pass

    def holds(self, now_ns: int) -> bool:
        """Whether it is not over; `now_ns` of the clock that runs on while the machine sleeps."""
        shared = self._shared
        return shared is None or now_ns < shared.words[_UNTIL_WORD]

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None


def lease_holds(layout: BoxLayout, now_ns: int) -> bool:
    """For one look: whether a controller of this boot has kept a lease, and it is not over."""
    try:
        shared = SharedObject.attach(_name(layout), PURPOSE, writable=False)
    except (SharedObjectAbsent, LayoutMismatch):
        return False
    try:
        return shared.is_of_this_boot() and now_ns < shared.words[_UNTIL_WORD]
    finally:
        shared.close()
