"""The share of one ack group in one batch. Batches are stored or refused whole; shares pass the
result to the groups.

Made by the batcher, completed by the acknowledger. `parts` are the addresses of its records in the
replay memory: runs of (identity, first ordinal, count) in the order of the records. A record whose
repeat cannot be recognised has none.
"""

from __future__ import annotations

from services.ingest.records.ack_group import AckGroup

Part = tuple[bytes, int, int]


class Share:
    """`count` records that count as stored by this batch, and `copies` of records that count
    elsewhere."""

    __slots__ = ("copies", "count", "group", "is_completed", "parts")

    def __init__(self, group: AckGroup) -> None:
        self.group = group
        self.count = 0
        self.copies = 0
        self.parts: list[Part] = []
        self.is_completed = False

    @property
    def is_awaited(self) -> bool:
        """True if its group completes only after this batch is stored."""
        return self.group.on_completed is not None and self.group.listener.acks != 0

    @property
    def wants_all(self) -> bool:
        """True if it is stored only when all in-sync replicas have it."""
        return self.group.listener.acks == -1

    def add_part(self, identity: bytes, ordinal: int, count: int = 1) -> None:
        """Add the addresses of the records that were appended last."""
        if self.parts:
            last, first, counted = self.parts[-1]
            if last == identity and first + counted == ordinal:
                self.parts[-1] = (identity, first, counted + count)
                return
        self.parts.append((identity, ordinal, count))
