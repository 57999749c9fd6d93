"""One seed, one clock, one list of what is to happen: everything in the simulation happens because it stands in that list.

The network is here, too: a message is an event at its receiver, later, or never. Owned by one run. Weak spot: events of one instant happen in the order in
which they were planned; chance is in the delays.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

MS = 1_000_000
SECOND = 1_000 * MS
TRACE_LENGTH = 400
STEPS_MAX = 100_000
"""Of one run: a hundred times what a short one takes. A loop of immediate retries exceeds it."""

ZOOKEEPER = 0
CLIENTS = 9
"""Node numbers of the network; boxes are 1, 2, 3, …"""


class Network:
    """What two nodes hear of each other. `slow` and `loss`: chances of a message to take long, or never to arrive; `slow_zookeeper`:
    of one to or from ZooKeeper."""

    def __init__(self) -> None:
        self.cut: set[tuple[int, int]] = set()
        """(from, to) of what does not arrive."""
        self.slow_zookeeper = 0.0
        self.slow_boxes: set[int] = set()
        """What they and other boxes say to each other takes long, half of it."""
        self.slow = 0.0
        self.loss = 0.0

    def heal(self) -> None:
        self.cut.clear()
        self.calm()

    def calm(self) -> None:
        self.slow = self.loss = self.slow_zookeeper = 0.0
        self.slow_boxes.clear()

    @property
    def is_calm(self) -> bool:
        return not (self.slow or self.loss or self.slow_zookeeper or self.slow_boxes)


class World:
    """Time, chance, the list of events, and what happened (the newest `TRACE_LENGTH` lines of it)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = SECOND
        self.network = Network()
        self.trace: deque[str] = deque(maxlen=TRACE_LENGTH)
        self.steps = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def after(self, delay: int, act: Callable[..., None], *arguments: Any) -> None:
        self._planned += 1
        heapq.heappush(self._events, (self.now + delay, self._planned, act, arguments))

    def run_until(self, end: int) -> None:
        events = self._events
        while events and events[0][0] <= end:
            self.now, _, act, arguments = heapq.heappop(events)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise AssertionError(f"seed {self.seed} does not end: {act} at {self.now}")
            act(*arguments)
        self.now = end

    def delay(self, is_zookeeper: bool = False) -> int:
        """Of one message."""
        network, chance = self.network, self.chance
        slow = max(network.slow, network.slow_zookeeper) if is_zookeeper else network.slow
        if slow and chance.random() < slow:
            return int(chance.random() * 600 * MS)
        return 200_000 + int(chance.random() * 2 * MS)

    def is_lost(self, source: int, target: int) -> bool:
        network = self.network
        return (source, target) in network.cut or (network.loss > 0 and self.chance.random() < network.loss)

    def send(self, source: int, target: int, act: Callable[..., None], *arguments: Any) -> None:
        """A message, by itself: others may overtake it."""
        if self.is_lost(source, target):
            return
        slow_boxes = self.network.slow_boxes
        if slow_boxes and (source in slow_boxes or target in slow_boxes) and source != CLIENTS != target and self.chance.random() < 0.5:
            self.after(int(self.chance.random() * 300 * MS), act, *arguments)
        else:
            self.after(self.delay(), act, *arguments)

    def note(self, text: str) -> None:
        self.trace.append(f"{(self.now - SECOND) / MS:10.3f} ms  {text}")
