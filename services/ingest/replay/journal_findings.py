"""Combine the records of all journal files: open batches, what is stored, and the streams that
broke with the process.

Pure; exists while a new incarnation reads the journal. What a file of another boot reports as
stored was in the page cache of that boot, and a power cut may have removed it from the log. So
every batch of such a file is open again until its leader reports what it has. Otherwise a record
that only a journal remembers would be acknowledged and lost.

Weak: a stream whose older frames were in a removed or damaged file is known from the next file on.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.ingest.replay.alignment import DIGEST_BYTES
from services.ingest.replay.frame_stream import REMEMBERED_FRAMES, FrameStream
from services.ingest.replay.journal_records import Begun, Done, Forgotten, Frames, JournalledBatch, JournalRecord
from services.ingest.replay.ordinals import Ordinals
from services.ingest.replay.replay_memory import ReplayMemory

_Stamp = tuple[int, int, int]


class JournalFindings:
    """`add` every record, oldest first; the memory learns at once what is stored. Then take what is
    open."""

    def __init__(self, memory: ReplayMemory, boot: bytes) -> None:
        self._memory = memory
        self._boot = boot
        self._is_of_this_boot = False
        self._open: dict[_Stamp, JournalledBatch] = {}
        self._streams: dict[bytes, FrameStream] = {}

    def add(self, record: JournalRecord) -> None:
        if isinstance(record, JournalledBatch):
            self._open[record.stamp] = record
        elif isinstance(record, Begun):
            self._is_of_this_boot = record.boot == self._boot
        elif isinstance(record, Done):
            self._on_done(record)
        elif isinstance(record, Frames):
            self._add_frames(record)
        elif isinstance(record, Forgotten):
            self._forget(record.identity)
        elif self._is_of_this_boot:
            for first, count in Ordinals(record.first, record.bits).runs():
                self._memory.add_stored(record.topic, [(record.identity, first, count)])

    def _on_done(self, record: Done) -> None:
        if record.is_stored and not self._is_of_this_boot:
            return
        batch = self._open.pop(record[:3], None)
        if batch is not None and record.is_stored:
            self._memory.add_stored(batch.topic, batch.parts)

    def _forget(self, identity: bytes) -> None:
        """From here on this identity is new."""
        self._streams.pop(identity, None)
        self._memory.forget(identity)
        for stamp, batch in self._open.items():
            if any(part[0] == identity for part in batch.parts):
                self._open[stamp] = batch._replace(parts=[part for part in batch.parts if part[0] != identity])

    def _add_frames(self, record: Frames) -> None:
        stream = self._streams.get(record.identity)
        if stream is None or not stream.base <= record.first_serial <= stream.end:
            stream = self._streams[record.identity] = FrameStream((record.listener, record.host), record.identity, record.first_serial)
            self._memory.keep(record.identity)
        known = (stream.end - record.first_serial) * DIGEST_BYTES
        stream.digests += record.digests[known:]
        surplus = stream.end - stream.base - REMEMBERED_FRAMES
        if surplus > REMEMBERED_FRAMES:
            del stream.digests[: surplus * DIGEST_BYTES]
            stream.base += surplus
            self._memory.trim_stream(record.identity)

    def broken_streams(self) -> Iterator[FrameStream]:
        """Yield all streams without a clean end. Their answered end is unknown: it is derived from
        what is stored."""
        for stream in self._streams.values():
            stream.answered_end = None
            stream.journalled_end = stream.end
            yield stream

    def open_batches(self) -> list[JournalledBatch]:
        """Return the batches whose result is not recorded, or recorded in another boot."""
        return [batch for batch in self._open.values() if batch.parts]
