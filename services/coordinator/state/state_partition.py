"""One partition of a state topic that this box leads: its tenure, the appends to it, and its load.

Values that `state_topic` changes. Weak: whether the tenure still holds is read from the row at each use, 1 µs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import LocalReplica
from appliance.cluster.state_log import OnAppended
from appliance.shm.partition_table import PARTITION_AND_GENERATION, ROLE_AND_EPOCH, ROLE_LEADER, TornRow

if TYPE_CHECKING:
    from services.coordinator.state.state_load import StateLoad

READ_NOTHING = -1
NO_SLOT = -1
_HALF = (1 << 32) - 1


class Tenure(NamedTuple):
    """What must stay the same for memory to follow the log."""

    disk: str
    table: str
    row: int
    row_generation: int
    leader_epoch: int


def tenure_of(placement: LocalReplica) -> Tenure | None:
    """The leadership under which this box leads the partition."""
    try:
        role_and_epoch = placement.read_words()[ROLE_AND_EPOCH]
    except TornRow:
        return None
    if role_and_epoch >> 32 != ROLE_LEADER:
        return None
    return Tenure(placement.disk, placement.table.shared.name, placement.row, placement.row_generation, role_and_epoch & _HALF)


class AppendOwner(Protocol):
    """The `StateTopic` of an append: receives the log-writer's answer."""

    def on_completion(self, append: StateAppend, entry: tuple[Any, ...]) -> None: ...

    def on_lost(self, append: StateAppend) -> None: ...


class StateAppend:
    """A batch on its way. Its bytes are in the arena (`slot`), or in `data` while they wait."""

    __slots__ = (
        "data", "deadline_ns", "end_offset", "guard", "is_answered", "is_coordinated", "on_appended", "partition", "record_count", "slot", "topic",
    )  # fmt: skip

    def __init__(
        self, topic: AppendOwner, partition: int, data: bytes, record_count: int, is_coordinated: bool, deadline_ns: int, on_appended: OnAppended
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.data = data
        self.record_count = record_count
        self.is_coordinated = is_coordinated
        self.deadline_ns = deadline_ns
        self.on_appended = on_appended
        self.slot = NO_SLOT
        self.guard: int | None = None
        """Set where another box was asked before: what the log-writer gave us then."""
        self.end_offset = -1
        self.is_answered = False

    def answer(self, code: ErrorCode) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.on_appended(code)


class StatePartition:
    """One partition that this box leads."""

    __slots__ = ("appended", "began_ns", "is_loaded", "load", "load_at_ns", "placement", "read_to", "tenure", "waiting")

    def __init__(self, tenure: Tenure, placement: LocalReplica) -> None:
        self.tenure = tenure
        self.placement = placement
        self.is_loaded = False
        self.load: StateLoad | None = None
        self.load_at_ns = 0
        self.began_ns = 0
        self.read_to = READ_NOTHING
        """Where the log that is read ended; served when the high watermark is there."""
        self.waiting: deque[StateAppend] = deque()
        """Not offered yet."""
        self.appended: deque[StateAppend] = deque()
        """In the log, and not below the high watermark."""

    def led_words(self) -> tuple[int, ...] | None:
        """The row, if the tenure holds."""
        placement = self.placement
        if placement.proxy.table is not placement.table or placement.proxy.is_hung:
            return None
        try:
            words = placement.read_words()
        except TornRow:
            return None
        tenure = self.tenure
        is_ours = words[ROLE_AND_EPOCH] == ROLE_LEADER << 32 | tenure.leader_epoch and words[PARTITION_AND_GENERATION] & _HALF == tenure.row_generation
        return words if is_ours else None
