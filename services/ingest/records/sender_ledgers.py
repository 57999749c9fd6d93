"""The accounts of an ingest's senders, in memory and, once a second, in
`RUN/ingest@K/senders.json`.

Owned by one ingest agent; its next incarnation continues from the file, and commands read it.

Weak: a `kill -9` loses what was counted since the last write, a second at most. What was in flight
then is only in a sender's `received` (the listener's ledger accounts for it).
"""

from __future__ import annotations

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.senders.sender_accounts import SenderAccounts, SenderLedger
from appliance.senders.senders_file import read_senders, senders_file, write_senders


class SenderLedgers:
    """`of` returns an account; `write_changes` is called once a second."""

    def __init__(self, layout: BoxLayout, process_name: str, clock: Clock) -> None:
        self._path = senders_file(layout, process_name)
        self._clock = clock
        self._accounts = SenderAccounts(read_senders(self._path))
        self._written = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, host: bytes, listener: str = "") -> SenderLedger:
        """Return the account of an address; the caller keeps it as long as its connection."""
        book = self._accounts.of(host.decode("ascii", "replace"))
        book.seen(self._clock.wall_ms())
        if listener:
            book.listeners.add(listener)
        return book

    def write_changes(self) -> bool:
        """Write the accounts that changed; return True if there are any."""
        mark = self._accounts.news_mark()
        if mark == self._written:
            return False
        self._written = mark
        try:
            write_senders(self._path, self._accounts.figures())
        except OSError:
            self._written = 0  # the runtime directory is being removed or is full: retry in a second
        return True

    def close(self) -> None:
        self.write_changes()
