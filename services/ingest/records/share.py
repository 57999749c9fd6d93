"""A share: what one unit has in one batch. Batches are stored or refused whole; shares carry that back to the units.

Made by the batcher, settled by whoever settles batches. `parts` are the addresses of its records, as replay memory knows them: runs of (identity, first
ordinal, count) in the order of the records; a record whose replay nobody could recognise has none.
"""

from __future__ import annotations

from services.ingest.records.ack_group import AckGroup

Part = tuple[bytes, int, int]


class Share:
    """`count` records for which this is the place where they are stored, and `copies` of others that are stored elsewhere, too."""

    __slots__ = ("copies", "count", "group", "is_completed", "parts")

    def __init__(self, group: AckGroup) -> None:
        self.group = group
        self.count = 0
        self.copies = 0
        self.parts: list[Part] = []
        self.is_completed = False

    @property
    def is_awaited(self) -> bool:
        """Whether its unit is settled only when this batch is stored."""
        return self.group.on_completed is not None and self.group.listener.acks != 0

    @property
    def wants_all(self) -> bool:
        """Whether it is stored only when all in-sync replicas have it."""
        return self.group.listener.acks == -1

    def add_part(self, identity: bytes, ordinal: int, count: int = 1) -> None:
        """The addresses of the records that were added last."""
        if self.parts:
            last, first, counted = self.parts[-1]
            if last == identity and first + counted == ordinal:
                self.parts[-1] = (identity, first, counted + count)
                return
        self.parts.append((identity, ordinal, count))
