"""Asks again and again where a group stands, as a member that comes would, through every fail-over of its coordinator.

What it receives is a history of `assign` events, which `copy_history` judges like any other: never less than was known to be committed when it asked, never
more than any member had begun to commit. It asks for stable offsets, as consumers of `read_committed` do. Owned by the test that made it, which closes it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from lab.load import QUICK_RECONNECT

PAUSE_SECONDS = 0.05
CALL_SECONDS = 5.0


class GroupWatcher:
    """Asks from the beginning on, on a thread of its own. While no broker can say, there is no event."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int) -> None:
        self._partitions = [(topic, number) for number in range(partitions)]
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUICK_RECONNECT})
        self._is_over = threading.Event()
        self.events: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(PAUSE_SECONDS):
            asked_at = time.monotonic_ns()
            try:
                answer = self._consumer.committed([TopicPartition(*each) for each in self._partitions], CALL_SECONDS)
            except KafkaException:
                continue
            positions = {each.partition: max(0, each.offset) for each in answer if each.error is None}
            self.events.append({"event": "assign", "positions": positions, "asked_at": asked_at, "at": time.monotonic_ns()})

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(CALL_SECONDS * 4)
        self._consumer.close()
