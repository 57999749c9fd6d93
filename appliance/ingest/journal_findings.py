"""Puts together what the files of the replay journal say: batches whose end nobody wrote down, what is stored, and the streams that broke with the process.

Pure; made while a new life reads the journal, and gone after that. Weak: a stream whose older frames stood in a file that is gone or damaged is known from
there on.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.ingest.alignment import DIGEST_BYTES
from appliance.ingest.frame_stream import REMEMBERED_FRAMES, FrameStream
from appliance.ingest.journal_records import Done, Forgotten, Frames, JournalledBatch, JournalRecord, Stored
from appliance.ingest.ordinals import Ordinals
from appliance.ingest.replay_memory import ReplayMemory

_Stamp = tuple[int, int, int]


class JournalFindings:
    """`add` every record, oldest first; then take what came of it."""

    def __init__(self) -> None:
        self._batches: dict[_Stamp, tuple[int, JournalledBatch]] = {}
        """With the number of the record."""
        self._done: dict[_Stamp, bool] = {}
        self._streams: dict[bytes, FrameStream] = {}
        self._stored: list[Stored] = []
        self._forgotten: dict[bytes, int] = {}
        """What stands before the record with this number does not count."""
        self._records = 0

    def add(self, record: JournalRecord) -> None:
        self._records += 1
        if isinstance(record, JournalledBatch):
            self._batches[record.stamp] = self._records, record
        elif isinstance(record, Done):
            self._done[record[:3]] = record.is_stored
        elif isinstance(record, Frames):
            self._add_frames(record)
        elif isinstance(record, Forgotten):
            self._streams.pop(record.identity, None)
            self._forgotten[record.identity] = self._records
        else:
            self._stored.append(record)

    def _add_frames(self, record: Frames) -> None:
        stream = self._streams.get(record.identity)
        if stream is None or not stream.base <= record.first_serial <= stream.end:
            stream = self._streams[record.identity] = FrameStream((record.listener, record.host), record.identity, record.first_serial)
        known = (stream.end - record.first_serial) * DIGEST_BYTES
        stream.digests += record.digests[known:]
        surplus = stream.end - stream.base - REMEMBERED_FRAMES
        if surplus > REMEMBERED_FRAMES:
            del stream.digests[: surplus * DIGEST_BYTES]
            stream.base += surplus

    def broken_streams(self) -> Iterator[FrameStream]:
        """All that had no clean end; of what was answered only as much is known as is stored."""
        for stream in self._streams.values():
            stream.answered_end = None
            stream.journalled_end = stream.end
            yield stream

    def take_stored(self, memory: ReplayMemory) -> list[JournalledBatch]:
        """Tell the memory what is stored; the batches of which that is not known are left."""
        for record in self._stored:
            for first, count in Ordinals(record.first, record.bits).runs():
                memory.add_stored(record.topic, [(record.identity, first, count)])
        unknown = []
        for stamp, (number, found) in self._batches.items():
            batch = found._replace(parts=[part for part in found.parts if self._forgotten.get(part[0], 0) < number])
            is_stored = self._done.get(stamp)
            if not batch.parts:
                continue
            if is_stored is None:
                unknown.append(batch)
            elif is_stored:
                memory.add_stored(batch.topic, batch.parts)
        return unknown
