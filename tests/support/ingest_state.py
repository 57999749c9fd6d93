"""What an ingest keeps on its state directory, without an ingest: journal and spool of one
incarnation after the other, a clock and a log of the test's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from appliance.base.clock import ManualClock
from appliance.senders.listener import Listener, ListenerTransport, Protocol
from appliance.shm.counters import Counters
from lab.listening_log import ListeningLog
from lab.scratch_layout import make_layout, remove_layout
from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.records.ack_group import AckGroup, Share
from services.ingest.records.event import EventSource
from services.ingest.replay.journal_records import Begun, JournalRecord
from services.ingest.replay.replay_journal import Checkpoint, ReplayJournal
from services.ingest.replay.replay_memory import Part

LISTENER = Listener("relp", Protocol.RELP, ListenerTransport.TCP, 0)
SOURCE = EventSource(b"192.0.2.1:601", b"192.0.2.1", b"relp")


class WaitingBatch:
    """What of an `OutgoingBatch` journal and spool look at."""

    def __init__(self, records: int = 1, parts: list[Part] | None = None, topic: str = "syslog", partition: int = 0, sequence: int = 0) -> None:
        self.topic = topic
        self.topic_id = b"syslog-topic-id!"
        self.partition = partition
        self.record_count = records
        self.producer_id, self.producer_epoch, self.base_sequence = 7, 0, sequence
        share = Share(AckGroup(LISTENER, SOURCE))
        share.count = records
        share.parts = parts or []
        self.shares = [share]

    @property
    def parts(self) -> list[Part]:
        return self.shares[0].parts


class IngestState:
    """One state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.boot = bytes(range(16))
        """The machine's; another one after its power was cut."""
        self.log = ListeningLog()
        self.layout = make_layout()
        self.counters = Counters.create_or_adopt(self.layout, "ingest@0", 1)

    def journal(self, checkpoint: Checkpoint = lambda: (), limit_bytes: int = 1 << 20, keep_ms: int = 600_000) -> ReplayJournal:
        return ReplayJournal(str(self.directory / "journal"), self.boot, limit_bytes, keep_ms, self.clock, self.counters, self.log, checkpoint)

    def spool(self, limit_bytes: int = 1 << 20) -> IngestSpool:
        return IngestSpool(str(self.directory / "spool"), limit_bytes, self.clock, self.counters, self.log)

    def journalled(self) -> list[JournalRecord]:
        """What the next incarnation reads, without the header of files."""
        journal = self.journal()
        records: list[JournalRecord] = []
        while journal.unread:
            records += [record for record in journal.read_one() if not isinstance(record, Begun)]
        return records

    def files(self, kind: str) -> list[Path]:
        return sorted((self.directory / kind).iterdir())

    def counter(self, label: str) -> int:
        return self.counters.counter(label).value

    def close(self) -> None:
        remove_layout(self.layout)


def fail_all(error: OSError) -> Any:
    """In the place of a call of `file_io`."""

    def failing(*_arguments: Any, **_named: Any) -> Any:
        raise error

    return failing
