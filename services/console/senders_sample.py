"""Counts senders and silent senders, from files that the ingests write once a second.

Owned by the console's loop. A file is read again after it was replaced; silence is judged by the
present time. Weak: senders that exceed an ingest's limit are not included.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from appliance.base.layout import BoxLayout
from appliance.senders.sender_accounts import OTHERS, read_senders, senders_file


class SendersSample(NamedTuple):
    """`silent` are those of `known` that were not heard for long."""

    known: int = 0
    silent: int = 0


class SendersReader:
    """Reads the files repeatedly."""

    def __init__(self, layout: BoxLayout, silent_ms: int) -> None:
        self._layout = layout
        self._silent_ms = silent_ms
        self._changed_ns: dict[str, int] = {}
        self._last_seen_ms: dict[str, dict[str, int]] = {}

    def look(self, ingests: list[str], wall_ms: int) -> SendersSample:
        """Return the senders of these ingests together: one that any of them heard is not silent."""
        last_seen_ms: dict[str, int] = {}
        for name in ingests:
            for host, seen_ms in self._of(name).items():
                last_seen_ms[host] = max(seen_ms, last_seen_ms.get(host, 0))
        return SendersSample(len(last_seen_ms), sum(wall_ms - seen_ms >= self._silent_ms for seen_ms in last_seen_ms.values()))

    def _of(self, name: str) -> dict[str, int]:
        path = senders_file(self._layout, name)
        try:
            changed_ns = os.stat(path).st_mtime_ns
        except OSError:
            return {}
        if self._changed_ns.get(name) != changed_ns:
            self._changed_ns[name] = changed_ns
            self._last_seen_ms[name] = {known.host: known.last_seen_ms for known in read_senders(path) if known.host != OTHERS}
        return self._last_seen_ms[name]
