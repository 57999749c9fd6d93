"""A queue that takes from each lane in turn: who asks for much waits behind himself and nobody else.

Owned by one process; pure. Weak spot: a lane is whoever the caller says it is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    def __init__(self) -> None:
        self._lanes: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._count = 0

    def add(self, lane: Hashable, item: Item) -> None:
        self._lanes.setdefault(lane, deque()).append(item)
        self._count += 1

    def first(self) -> Item:
        """Whose turn it is; he stays."""
        return next(iter(self._lanes.values()))[0]

    def take(self) -> Item:
        """As `first`, and the next lane's turn comes."""
        lane, items = self._lanes.popitem(last=False)
        item = items.popleft()
        if items:
            self._lanes[lane] = items
        self._count -= 1
        return item

    def __len__(self) -> int:
        return self._count
