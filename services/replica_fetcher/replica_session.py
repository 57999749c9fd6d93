"""A fetch session (KIP-227) as the follower keeps it: what the leader was told of each partition, so that only what changed is told again.

A fetch may follow another one that is still under way, of a session that is there; the leader answers both, in their order. Owned by one lane. Pure.
Weak spot: it believes that the leader remembers what it was told; an error, or a lost connection, begins a new session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TypeAlias

from appliance.base.model import TopicId
from appliance.protocol.fetch import FetchPartition, ForgottenPartition

Key: TypeAlias = tuple[TopicId, int]
EPOCH_MAX = 2**31 - 1
_by_topic = attrgetter("topic_id")


class ReplicaSession:
    """`asked` has every partition that the leader reads for us, as we named it last; `epoch` is that of the next fetch."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.is_denied = False
        """The leader answered, and has none for us: every fetch is a first one."""
        self.asked: dict[Key, FetchPartition] = {}

    def reset(self) -> None:
        """The next fetch begins a new session, and names everything."""
        self.session_id = self.epoch = 0
        self.is_denied = False
        self.asked.clear()

    @property
    def is_new(self) -> bool:
        """Whether the leader has not told us of a session yet: until it has, there is one fetch after the other."""
        return self.session_id == 0

    def plan(self, keys: Iterable[Key], wanted_of: Callable[[Key], FetchPartition | None]) -> tuple[list[FetchPartition], list[ForgottenPartition]]:
        """What the next fetch names and what it takes back, of `keys`, which may have changed; what `wanted_of` has no answer for is not fetched now."""
        asked = self.asked
        named: list[FetchPartition] = []
        forgotten: list[ForgottenPartition] = []
        for key in keys:
            wanted = wanted_of(key)
            known = asked.get(key)
            if wanted is None:
                if known is not None:
                    del asked[key]
                    forgotten.append(ForgottenPartition("", *key))
            elif wanted != known:
                asked[key] = wanted
                named.append(wanted)
        named.sort(key=_by_topic)
        forgotten.sort(key=_by_topic)
        return named, [] if self.is_new else forgotten

    def on_sent(self) -> None:
        """A fetch of this session's went off."""
        self.epoch = 1 if self.epoch >= EPOCH_MAX else self.epoch + 1

    def on_answer(self, session_id: int) -> None:
        """The leader answered without an error. It gives no session (0) when it has no room for one: then every fetch is a first one."""
        if session_id and (self.is_new or session_id == self.session_id):
            self.session_id = session_id
        else:
            self.session_id = self.epoch = 0
            self.is_denied = not session_id
