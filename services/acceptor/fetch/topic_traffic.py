"""Bytes by topic, as far as nobody else's figures tell them: what acceptors send out. (What comes in is in the partition tables.)

One counter `fetch.topic_bytes{topic="…"}` for each topic, made when its first bytes leave. Owned by one acceptor. Weak spot: after
`TOPICS_MAX` topics the rest are counted together, under `…{topic=""}`, because a process has only so many counters; a topic that was deleted keeps its place.
"""

from __future__ import annotations

from appliance.shm.counters import Counter, Counters

TOPICS_MAX = 200
LABEL = 'fetch.topic_bytes{{topic="{topic}"}}'
_PREFIX = LABEL.partition("{")[0]


class TopicTraffic:
    """The counters of one acceptor, by topic."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._by_topic: dict[str, Counter] = {}
        self._room = TOPICS_MAX - sum(label.startswith(_PREFIX) for label in counters.labels())

    def add(self, topic: str, size_bytes: int) -> None:
        counter = self._by_topic.get(topic)
        if counter is None:
            counter = self._by_topic[topic] = self._counter_of(topic)
        counter.add(size_bytes)

    def _counter_of(self, topic: str) -> Counter:
        """A previous life's counter is taken up again, whatever room is left."""
        label = LABEL.format(topic=topic)
        if label not in self._counters.labels():
            if self._room <= 0:
                return self._counters.counter(LABEL.format(topic=""))
            self._room -= 1
        return self._counters.counter(label)
