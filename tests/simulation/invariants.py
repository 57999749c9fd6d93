"""What must hold after every step, one class for each. `Broken` names the rule, and the run that broke it can be had again by its seed.

They see everything at once, as no box does: each record that is appended, each move of a high watermark, each acknowledgement, each state that is written. A
step that concerns nothing of it cannot break it, so nothing is looked at twice. Numbers are those of `INVARIANTS.md` where it has one.
"""

from __future__ import annotations

from appliance.cluster.znodes import PartitionState
from services.controller.zookeeper.requests import SetData, Write
from tests.simulation.records import MemoryLog, Record


class Broken(AssertionError):
    """A rule does not hold."""


def hold(condition: bool, rule: str, text: str) -> None:
    """For what is looked at seldom: `text` is made even if the rule holds."""
    if not condition:
        raise Broken(f"{rule}: {text}")


class AcknowledgedStays:
    """What was acknowledged with acks=all is in the log of every later leader, at its offset (5)."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}
        """value → offset"""
        self.end_offset = 0
        """After the last of them."""
        self._committed_under: dict[int, int] = {}
        """offset → leader epoch under which it came below a high watermark first; a leader under an
        older one need not have it.
        """

    def on_acknowledged(self, value: int, offset: int) -> None:
        self.acknowledged[value] = offset
        self.end_offset = max(self.end_offset, offset + 1)

    def on_high_watermark(self, leader_epoch: int, before: int, offset: int) -> None:
        for at in range(before, offset):
            self._committed_under.setdefault(at, leader_epoch)

    def on_lead(self, broker_id: int, leader_epoch: int, log: MemoryLog) -> None:
        start, end = log.start_offset, log.end_offset
        for value, offset in self.acknowledged.items():
            if offset >= start and self._committed_under.get(offset, -1) < leader_epoch:
                found = log.at(offset).value if offset < end else None
                if found != value:
                    text = f"box {broker_id} leads under epoch {leader_epoch} without {value} at {offset} (it has {found}, its end {end})"
                    raise Broken(f"AcknowledgedStays: {text}")


class HighWatermarkStays:
    """The high watermark of one leader epoch never goes back (2), is within the log (1)."""

    def __init__(self) -> None:
        self._of_epoch: dict[int, int] = {}

    def on_high_watermark(self, broker_id: int, leader_epoch: int, is_leader: bool, offset: int, log: MemoryLog) -> None:
        if not log.start_offset <= offset <= log.end_offset:
            raise Broken(f"HighWatermarkStays: box {broker_id}: {offset} outside of {log.start_offset}..{log.end_offset}")
        if is_leader:
            before = self._of_epoch.get(leader_epoch, offset)
            if offset < before:
                raise Broken(f"HighWatermarkStays: epoch {leader_epoch}: box {broker_id} takes it from {before} back to {offset}")
            self._of_epoch[leader_epoch] = offset


class CommittedStays:
    """Below a high watermark no offset is ever given to another record (3): replicas agree there, and so do consumers."""

    def __init__(self) -> None:
        self.committed: dict[int, Record] = {}

    def on_high_watermark(self, broker_id: int, before: int, offset: int, log: MemoryLog) -> None:
        for at in range(max(before, log.start_offset), offset):
            self._see(at, log.at(at), broker_id)

    def on_consumed(self, offset: int, record: Record) -> None:
        if offset not in self.committed:
            raise Broken(f"CommittedStays: a consumer read {record} at {offset}, which was below no high watermark")
        self._see(offset, record, "a consumer")

    def _see(self, offset: int, record: Record, who: int | str) -> None:
        known = self.committed.setdefault(offset, record)
        if known != record:
            raise Broken(f"CommittedStays: {who} has {record} at {offset} below a high watermark, where {known} was")


class LogsMatch:
    """Two logs that have a record of one leader epoch at one offset have the same one, and the same ones before it; epochs do not decrease (4)."""

    def __init__(self) -> None:
        self._records: dict[tuple[int, int], tuple[Record, int]] = {}

    def on_append(self, broker_id: int, offset: int, record: Record, log: MemoryLog) -> None:
        before = log.at(offset - 1).leader_epoch if offset > log.start_offset else -1
        if before > record.leader_epoch:
            raise Broken(f"LogsMatch: box {broker_id}: epoch {record.leader_epoch} after {before} at {offset}")
        known, known_before = self._records.setdefault((offset, record.leader_epoch), (record, before))
        if known != record or (known_before != before and before >= 0 and known_before >= 0):
            raise Broken(f"LogsMatch: box {broker_id} has {record} after epoch {before} at {offset}, others {known} after {known_before}")


class OneLeader:
    """No other box writes under a leader epoch than the one box that leads under it."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}

    def on_write_as_leader(self, broker_id: int, leader_epoch: int) -> None:
        leader = self._leaders.setdefault(leader_epoch, broker_id)
        if leader != broker_id:
            raise Broken(f"OneLeader: boxes {leader} and {broker_id} both write under epoch {leader_epoch}")


class StatesFollowRules:
    """A partition's state changes by conditional writes only; leader and epoch change together,
    epochs go up, and a leader comes out of the in-sync set.
    """

    def __init__(self) -> None:
        self.epoch = 0

    def on_state(self, old: PartitionState, new: PartitionState, write: Write) -> None:
        rule = "StatesFollowRules"
        hold(isinstance(write, SetData) and write.version >= 0, rule, f"{new} was written without a version")
        hold(bool(new.isr), rule, f"{new} has no replica in sync")
        hold(new.leader_epoch >= old.leader_epoch, rule, f"the leader epoch goes back from {old} to {new}")
        hold(new.leader == old.leader or new.leader_epoch > old.leader_epoch, rule, f"another leader under the same epoch: {old} to {new}")
        hold(new.leader < 0 or new.leader in new.isr, rule, f"{new}: its leader is not in sync")
        hold(new.leader < 0 or new.leader in old.isr, rule, f"{old} to {new}: its leader was not in sync")
        if set(new.isr) - set(old.isr):
            hold(new.leader == old.leader and new.leader_epoch == old.leader_epoch, rule, f"{old} to {new}: a replica joined the ISR with an election")
        self.epoch = new.leader_epoch


class NothingCommittedIsCut:
    """A follower whose disk has kept everything never cuts below its high watermark."""

    def __init__(self) -> None:
        self.hurt: set[int] = set()
        """Boxes that have lost something since they were in sync last."""

    def on_cut(self, broker_id: int, offset: int, high_watermark: int) -> None:
        hold(broker_id in self.hurt, "NothingCommittedIsCut", f"box {broker_id} cuts at {offset}, below its high watermark {high_watermark}")


class ReadsAreCurrent:
    """A coordinator that answers knows everything that was acknowledged before it was asked (95)."""

    def on_state_read(self, broker_id: int, needed: int, offset: int) -> None:
        hold(offset >= needed, "ReadsAreCurrent", f"box {broker_id} answered by what it knew at {offset}, {needed} was acknowledged before it was asked")


class Invariants:
    """All of them; events are reported here."""

    def __init__(self) -> None:
        self.acknowledged = AcknowledgedStays()
        self.watermarks = HighWatermarkStays()
        self.committed = CommittedStays()
        self.logs = LogsMatch()
        self.leaders = OneLeader()
        self.states = StatesFollowRules()
        self.cuts = NothingCommittedIsCut()
        self.reads = ReadsAreCurrent()

    def on_lead(self, broker_id: int, leader_epoch: int, log: MemoryLog, high_watermark: int) -> None:
        self.acknowledged.on_lead(broker_id, leader_epoch, log)
        self.watermarks.on_high_watermark(broker_id, leader_epoch, True, high_watermark, log)

    def on_append(self, broker_id: int, offset: int, record: Record, log: MemoryLog, is_leader: bool) -> None:
        self.logs.on_append(broker_id, offset, record, log)
        if is_leader:
            self.leaders.on_write_as_leader(broker_id, record.leader_epoch)

    def on_high_watermark(self, broker_id: int, leader_epoch: int, is_leader: bool, before: int, offset: int, log: MemoryLog) -> None:
        self.watermarks.on_high_watermark(broker_id, leader_epoch, is_leader, offset, log)
        self.committed.on_high_watermark(broker_id, before, offset, log)
        self.acknowledged.on_high_watermark(leader_epoch, before, offset)

    def on_cut_below_high_watermark(self, broker_id: int, offset: int, high_watermark: int) -> None:
        self.cuts.on_cut(broker_id, offset, high_watermark)

    def on_acknowledged(self, value: int, offset: int) -> None:
        self.acknowledged.on_acknowledged(value, offset)

    def on_consumed(self, offset: int, record: Record) -> None:
        self.committed.on_consumed(offset, record)

    def on_state_read(self, broker_id: int, needed: int, offset: int) -> None:
        self.reads.on_state_read(broker_id, needed, offset)

    def on_state(self, old: PartitionState, new: PartitionState, write: Write) -> None:
        self.states.on_state(old, new, write)
