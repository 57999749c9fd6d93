"""What the clients of one acceptor have used of their quotas, for the other acceptors of the box.

Only the owner writes. The others read the totals of the quotas that their own clients share, and count what has been
added since. A quota is found by a 64-bit digest of its name, in one of a few neighbouring slots; a slot that is
needed for another quota is that which was written longest ago. Weak: a quota whose slot was taken is not shared
until its next use; an acceptor that begins to count a quota learns of the others' last seconds a part only.
"""

from __future__ import annotations

from typing import Final

from appliance.base.layout import BoxLayout
from appliance.shm.mapping import HEADER_BYTES, MAX_WORD, WORD_BYTES, LayoutMismatch, SharedObject, SharedObjectAbsent, inode_of

# Quota use: byte, name, meaning.
#
# │     0 │                        │ magic MLRquota in the header
# │    64 │ _FIRST_WORD            │ 4,096 slots of five words: digest (0: free), total, time of the last write in ms,
# │       │                        │ and a total and a time of up to `PERIOD_MS` before that

PURPOSE: Final = b"MLRquota"
SLOTS: Final = 4096
NEIGHBOURS: Final = 8
_FIRST_WORD: Final = HEADER_BYTES // WORD_BYTES
PERIOD_MS: Final = 10_000
_SLOT_WORDS: Final = 5
_DIGEST, _TOTAL, _WRITTEN, _FORMER_TOTAL, _FORMER_TIME = range(_SLOT_WORDS)
_SIZE_BYTES: Final = HEADER_BYTES + SLOTS * _SLOT_WORDS * WORD_BYTES


def _name(layout: BoxLayout, process_name: str) -> str:
    return layout.shared_memory_name("quotas", process_name)


def _slots(digest: int) -> range:
    """Return the first words of the slots in which a digest may be."""
    first = digest % (SLOTS - NEIGHBOURS + 1)
    return range(_FIRST_WORD + first * _SLOT_WORDS, _FIRST_WORD + (first + NEIGHBOURS) * _SLOT_WORDS, _SLOT_WORDS)


class QuotaUse:
    """The owner's side. Each incarnation begins with an empty object."""

    def __init__(self, layout: BoxLayout, process_name: str, incarnation: int) -> None:
        self._shared = SharedObject.create(_name(layout, process_name), PURPOSE, _SIZE_BYTES, incarnation)

    def add(self, digest: int, amount: int, now_ms: int) -> None:
        """Add to the total of a quota."""
        words = self._shared.words
        slot = self._slot_of(digest)
        if now_ms - words[slot + _FORMER_TIME] > PERIOD_MS:
            words[slot + _FORMER_TOTAL] = words[slot + _TOTAL]
            words[slot + _FORMER_TIME] = now_ms
        words[slot + _TOTAL] = (words[slot + _TOTAL] + amount) & MAX_WORD
        words[slot + _WRITTEN] = now_ms

    def _slot_of(self, digest: int) -> int:
        words, slots = self._shared.words, _slots(digest)
        for slot in slots:
            if words[slot + _DIGEST] == digest:
                return slot
        slot = min(slots, key=lambda each: words[each + _WRITTEN])  # a free one was never written
        words[slot + _DIGEST] = 0  # readers discard a total between two digests
        for field in (_TOTAL, _FORMER_TOTAL, _FORMER_TIME):
            words[slot + field] = 0
        words[slot + _DIGEST] = digest
        return slot

    def close(self) -> None:
        self._shared.close()


class QuotaUseReader:
    """The side of another acceptor. `attach` regularly: the owner creates its object late, and anew after a restart."""

    def __init__(self, layout: BoxLayout, process_name: str) -> None:
        self._name = _name(layout, process_name)
        self._shared: SharedObject | None = None
        self._inode = 0

    def attach(self) -> None:
        inode = inode_of(self._name)
        if inode == self._inode:
            return
        self.close()
        if inode:
            try:
                self._shared = SharedObject.attach(self._name, PURPOSE, writable=False)
            except (SharedObjectAbsent, LayoutMismatch):
                return
            self._inode = inode

    def total(self, digest: int) -> int:
        """Return the total of a quota; 0 if the owner does not count it. It begins anew when the owner does."""
        if self._shared is None:
            return 0
        words = self._shared.words
        for slot in _slots(digest):
            if words[slot + _DIGEST] == digest:
                total = int(words[slot + _TOTAL])
                return total if words[slot + _DIGEST] == digest else 0
        return 0

    def recent(self, digest: int, now_ms: int) -> int:
        """Return what was added in the last `PERIOD_MS`, or a part of it."""
        if self._shared is None:
            return 0
        words = self._shared.words
        for slot in _slots(digest):
            if words[slot + _DIGEST] == digest:
                added = int(words[slot + _TOTAL]) - int(words[slot + _FORMER_TOTAL])
                return added if words[slot + _DIGEST] == digest and added > 0 and now_ms - words[slot + _WRITTEN] <= PERIOD_MS else 0
        return 0

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
        self._shared, self._inode = None, 0
