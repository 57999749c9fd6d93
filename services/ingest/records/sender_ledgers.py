"""The accounts of an ingest's senders, kept in the process and written into `RUN/ingest@K/senders.json` once a second if there is news.

Owned by one ingest agent; its next life begins with what the file says, and commands read it. Weak: a kill -9 loses what was counted since the last writing, a
second at most; and what was under way then stays in a sender's `received` alone (the listener's ledger books it).
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.senders.sender_accounts import SenderAccounts, SenderLedger
from appliance.senders.senders_file import read_senders, senders_file, write_senders


class SenderLedgers:
    """`of` gives an account, `look` (once a second) writes."""

    def __init__(self, layout: BoxLayout, process_name: str, clock: Clock) -> None:
        self._path = senders_file(layout, process_name)
        self._clock = clock
        self._accounts = SenderAccounts(read_senders(self._path))
        self._written = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, host: bytes, listener: str = "") -> SenderLedger:
        """The account of an address; to be held as long as its connection."""
        book = self._accounts.of(host.decode("ascii", "replace"))
        book.seen(self._clock.wall_ms())
        if listener:
            book.listeners.add(listener)
        return book

    def look(self) -> bool:
        """Write what changed; whether anything did."""
        mark = self._accounts.news_mark()
        if mark == self._written:
            return False
        self._written = mark
        try:
            write_senders(self._path, self._accounts.figures())
        except OSError:
            self._written = 0  # the runtime directory is going, or full: the next look tries again
        return True

    def close(self) -> None:
        self.look()
