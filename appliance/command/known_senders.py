"""The senders of a box over all its ingests, and the silent ones: without a record for `ingest.sender.silent.ms`. From the files that ingests write.

Weak spot: the files are on tmpfs, so silence before the box started is unknown; senders above the limit of an ingest are not listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout
from appliance.senders.sender_accounts import OTHERS, SenderFigures, add_figures
from appliance.senders.senders_file import read_senders, senders_file

INGEST = "ingest@"


class KnownSenders(NamedTuple):
    """One look."""

    all: list[SenderFigures]
    """The busiest first, `OTHERS` last."""
    silent: list[SenderFigures]
    """Longest first."""
    limit_ms: int
    now_ms: int

    @property
    def known_count(self) -> int:
        return sum(known.host != OTHERS for known in self.all)

    def document(self) -> dict[str, Any]:
        silent = [{"host": known.host, "silent_ms": known.silent_ms(self.now_ms)} for known in self.silent]
        return {"known": self.known_count, "silent_limit_ms": self.limit_ms, "silent": silent}


def look_at_senders(layout: BoxLayout, process_names: Sequence[str], limit_ms: int, now_ms: int) -> KnownSenders:
    """Those of the ingests among these processes."""
    ingests = [name for name in process_names if name.startswith(INGEST)]
    senders = add_figures(known for name in ingests for known in read_senders(senders_file(layout, name)))
    silent = [known for known in senders if known.host != OTHERS and known.silent_ms(now_ms) >= limit_ms]
    return KnownSenders(senders, sorted(silent, key=lambda known: known.last_seen_ms), limit_ms, now_ms)
