"""The state that previous incarnations left, and that this one keeps for the next: counters, rings,
journal, spool.

Owned by one ingest. Order of a start: read the counters as they were found; what is in the spool
stays in flight in them; read the rings of the dead incarnation when the log-writers have released
them; read the journal, 20 ms each turn.

Weak: senders are not read before the journal is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.base.layout import boot_id
from appliance.cluster.metadata_image import MetadataImage
from appliance.runtime.agent import ServiceContext
from appliance.senders.listener import SYSLOG_TCP, Listener
from services.ingest.producer.batch_sender import BatchSender
from services.ingest.producer.ingest_spool import IngestSpool
from services.ingest.producer.previous_incarnation import PreviousIncarnation, WriterIncarnation
from services.ingest.producer.spool_replay import SpoolReplay
from services.ingest.replay.journalled_batches import SequenceRequester
from services.ingest.replay.replays import Replays


class PreviousIncarnations:
    """Call `turn` each turn."""

    def __init__(self, context: ServiceContext, listeners: Mapping[str, Listener], peers: SequenceRequester, writer_incarnation: WriterIncarnation) -> None:
        box, counters, clock, log = context.box, context.counters, context.clock, context.log
        state = f"{box.state_directory}/ingest/{context.instance or '0'}"
        found = {label: counters.counter(label).value for label in counters.labels()}
        self.spool = IngestSpool(f"{state}/spool", box.integer("ingest.spool.bytes"), clock, counters, log)
        self._left_over = SpoolReplay(self.spool, found, listeners, lambda name: listeners[SYSLOG_TCP]._replace(name=name))
        now_ns = clock.monotonic_ns()
        self.accounting = PreviousIncarnation(context.layout, context.process_name, context.incarnation, counters, log, now_ns, self._left_over.records)
        self.replays = Replays(
            f"{state}/journal",
            f"{context.process_name}.{context.incarnation:x}",
            boot_id(),
            box.integer("ingest.replay.entries.max"),
            box.integer("ingest.replay.ms"),
            peers,
            clock,
            counters,
            log,
        )
        self._writer_incarnation = writer_incarnation

    @property
    def topics(self) -> Sequence[str]:
        """Topics of the batches in the spool."""
        return self._left_over.topics

    def turn(self, now_ns: int, image: MetadataImage, sender: BatchSender) -> int:
        work = 0
        if not self._left_over.is_done:
            work += self._left_over.turn(self.replays, sender, now_ns)
        if not (self.accounting.is_accounted and self.accounting.is_final):
            work += self.accounting.account(now_ns, self._writer_incarnation)
        return work + self.replays.do_work(now_ns // 1_000_000, image, self.accounting.is_final)

    def close(self) -> None:
        self.accounting.close()
        self.replays.close()
        self.spool.close()
