"""A queue that takes from each source in turn, so that one with many items delays only itself."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    def __init__(self) -> None:
        self._by_source: OrderedDict[Hashable, deque[Item]] = OrderedDict()
        self._count = 0

    def add(self, source: Hashable, item: Item) -> None:
        self._by_source.setdefault(source, deque()).append(item)
        self._count += 1

    def first(self) -> Item:
        """Return the next item, and keep it."""
        return next(iter(self._by_source.values()))[0]

    def take(self) -> Item:
        """Return the next item; then it is another source's turn."""
        source, items = self._by_source.popitem(last=False)
        item = items.popleft()
        if items:
            self._by_source[source] = items
        self._count -= 1
        return item

    def __len__(self) -> int:
        return self._count
