"""The real leader epoch cache without its file: for tests that make thousands of logs."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.storage.leader_epoch_cache import EpochStart, LeaderEpochCache


class MemoryEpochs(LeaderEpochCache):
    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        super().__init__("/nonexistent")
        self._set([EpochStart._make(entry) for entry in entries])

    def _replace(self, entries: list[EpochStart]) -> None:
        self._set(entries)
