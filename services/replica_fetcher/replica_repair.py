"""One damaged place that is to be repaired from another box: whom to ask for which bytes, why it did not work so far, and the memory that its copy lies in.

Owned by `ReplicaRepairs`. Weak spot: what was tried is known by the finding; the same damage, found again, is tried again.
"""

from __future__ import annotations

from typing import Protocol

from appliance.cluster.metadata_image import BrokerImage, PartitionImage
from appliance.ipc.descriptors import Completion
from appliance.ipc.scrub_report import FoundDamage
from appliance.shm.arena import Arena

PIECE_BYTES = 1 << 20
"""What is asked for first; more, where the log-writer cannot tell by so much."""


class Repair:
    """`damage` on `disk`."""

    def __init__(self, disk: str, damage: FoundDamage) -> None:
        self.disk = disk
        self.damage = damage
        self.sources: list[BrokerImage] = []
        """Boxes to ask, the first one now."""
        self.piece_bytes = PIECE_BYTES
        self.empty_answers = 0
        self.is_final = False
        """True if every box that could have a healthy copy has answered; else another attempt may succeed."""
        self.is_reported = False
        self.reasons: list[str] = []

    @property
    def name(self) -> str:
        return f"{self.damage.topic}-{self.damage.partition}"

    @property
    def segment(self) -> tuple[str, str, int, int]:
        return self.disk, self.damage.topic, self.damage.partition, self.damage.base_offset

    def begin(self, own_id: int, partition: PartitionImage | None, brokers: dict[int, BrokerImage]) -> None:
        """A new try, with the replicas that are in sync now; the leader first."""
        self.reasons, self.sources = [], []
        self.piece_bytes, self.empty_answers = PIECE_BYTES, 0
        if partition is None:
            self.is_final = False
            self.reasons.append("the topic is not known")
            return
        candidates = [partition.leader, *(replica for replica in partition.isr if replica != partition.leader)]
        self.sources = [brokers[replica] for replica in candidates if replica != own_id and replica in brokers]
        self.is_final = set(partition.replicas) <= {own_id, *(source.id for source in self.sources)}
        if not self.sources:
            self.reasons.append("there is no other replica" if self.is_final else "no other replica is in sync")

    def give_source_up(self, reason: str, may_change: bool = False) -> None:
        """The next one is asked."""
        self.reasons.append(f"broker {self.sources[0].id}: {reason}")
        self.is_final = self.is_final and not may_change
        del self.sources[0]
        self.piece_bytes, self.empty_answers = PIECE_BYTES, 0

    def want_more(self, most_bytes: int) -> bool:
        """Ask for a larger piece, if there may be one."""
        if self.piece_bytes >= most_bytes:
            return False
        self.piece_bytes = min(most_bytes, 4 * self.piece_bytes)
        return True


class RepairOwner(Protocol):
    """Receives the completions of repair orders."""

    def on_ordered(self, copy: RepairCopy, completion: Completion | None) -> None:
        """`completion` is None when the log-writer died, or is set aside. Called once for each order."""


class RepairCopy:
    """An answer in the arena; from the order on also what the log-writer's completion is known by."""

    def __init__(self, owner: RepairOwner, repair: Repair, arena: Arena, position: int) -> None:
        self.repair = repair
        self.position = position
        self.reaches = False
        """It goes on behind where the damage was found."""
        self._owner: RepairOwner | None = owner
        self._arena: Arena | None = arena

    def end(self, completion: Completion | None) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.on_ordered(self, completion)

    def release(self) -> None:
        """The log-writer has done with the memory, or is dead."""
        arena, self._arena = self._arena, None
        if arena is not None:
            arena.free(self.position)
