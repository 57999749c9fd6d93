"""The control batch that a TRANSACTION_MARKER descriptor stands for.

`storage/producer_state.py` decides what its producer id and epochs mean, because it knows the log's
producers. Weak spot: it is built again for each partition of a transaction.
"""

from __future__ import annotations

from typing import Any

from appliance.ipc.descriptors import COMMIT_FLAG
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch


def marker_batch(entry: tuple[Any, ...], now_ms: int) -> memoryview:
    """Of a descriptor (`ipc.descriptors.Descriptor`), stamped with no offset yet."""
    coordinator_epoch, producer_epoch = _signed(entry[11], 32), _signed(entry[12] & 0xFFFF, 16)
    marker = EndTransactionMarker(bool(entry[1] & COMMIT_FLAG), coordinator_epoch)
    return memoryview(build_end_transaction_batch(entry[10], producer_epoch, marker, now_ms))


def _signed(word: int, bits: int) -> int:
    return word - (1 << bits) if word >> (bits - 1) else word
