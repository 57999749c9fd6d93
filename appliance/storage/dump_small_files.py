"""The small files beside segments and in a log directory, as text for `millrace log dump FILE`.

Functions from a file's whole content to lines; nothing is read here. Damage is shown as a line,
because it is what the reader of the dump looks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

from appliance.storage import checkpoints
from appliance.storage.directory_identity import CLEAN_SHUTDOWN_MARKER
from appliance.storage.meta_properties import META_PROPERTIES
from appliance.storage.producer_state import BrokenSnapshot, ProducerState
from appliance.storage.segment_files import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from appliance.storage.transaction_index import TRANSACTION_ENTRY, transaction_index_problem


def dump_transaction_index(content: bytes, base_offset: int) -> Iterator[str]:
    whole = len(content) // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size
    for version, producer_id, first_offset, last_offset, last_stable_offset in TRANSACTION_ENTRY.iter_unpack(content[:whole]):
        yield f"version: {version} producerId: {producer_id} firstOffset: {first_offset} lastOffset: {last_offset} lastStableOffset: {last_stable_offset}"
    problem = transaction_index_problem(content, base_offset)
    if problem is not None:
        yield f"NOT AS IT SHOULD BE: {problem}"


def dump_snapshot(content: bytes) -> Iterator[str]:
    state = ProducerState()
    try:
        state.decode(content)
    except BrokenSnapshot as problem:
        yield f"NOT A SNAPSHOT: {problem}"
        return
    if not len(state):
        yield "no producers"
    for producer_id, entry in state.snapshot():
        open_from = entry.transaction_first_offset
        line = (
            f"producerId: {producer_id} producerEpoch: {entry.producer_epoch} coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {open_from if open_from >= 0 else 'None'} lastTimestamp: {entry.timestamp}"
        )
        for batch in entry.batches:
            line += (
                f" firstSequence: {batch.base_sequence} lastSequence: {batch.last_sequence} lastOffset: {batch.last_offset} "
                f"offsetDelta: {batch.last_offset - batch.base_offset}"
            )
        yield line


def _dump_offsets(content: bytes) -> Iterator[str]:
    yield from _dump_checkpoint(content, ("topic", "partition", "offset"))


def _dump_epochs(content: bytes) -> Iterator[str]:
    yield from _dump_checkpoint(content, ("leaderEpoch", "startOffset"))


def _dump_checkpoint(content: bytes, names: tuple[str, ...]) -> Iterator[str]:
    if not content:
        yield "NOT A CHECKPOINT: it is empty"
        return
    try:
        entries = checkpoints.decode_lines(content)
    except checkpoints.BrokenCheckpoint as problem:
        yield f"NOT A CHECKPOINT: {problem}"
        return
    if not entries:
        yield "no entries"
    for words in entries:
        if len(words) != len(names):
            yield f"NOT AN ENTRY: {' '.join(words)}"
        else:
            yield " ".join(f"{name}: {word}" for name, word in zip(names, words, strict=True))


def _dump_words(content: bytes) -> Iterator[str]:
    """Text of `key=value`, `key: value` or JSON, as it is."""
    text = content.decode("utf-8", "backslashreplace")
    try:
        yield json.dumps(json.loads(text))
    except ValueError:
        yield from text.splitlines()


BY_NAME: Final[dict[str, Callable[[bytes], Iterator[str]]]] = {
    LEADER_EPOCH_CHECKPOINT: _dump_epochs,
    checkpoints.RECOVERY_POINTS: _dump_offsets,
    checkpoints.LOG_START_OFFSETS: _dump_offsets,
    checkpoints.HIGH_WATERMARKS: _dump_offsets,
    checkpoints.CLEANED: _dump_offsets,
    PARTITION_METADATA: _dump_words,
    META_PROPERTIES: _dump_words,
    CLEAN_SHUTDOWN_MARKER: _dump_words,
}
"""Files that have one name, and the function that describes them."""
