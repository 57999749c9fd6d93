"""The follower's side of a fetch session (KIP-227): what the last fetches named, so that the next
one names only what changed.

In an established session a second fetch may be sent before the first one is answered; the leader
answers both in order. Owned by one `LeaderFetcher`. Pure. Weak spot: it assumes that the leader
keeps the session; an error or a lost connection starts a new one.
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
    """`asked`: every partition of the session, as the last fetch named it; `epoch`: the session
    epoch of the next fetch.
    """

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.is_denied = False
        """The leader gave no session: every fetch is a full one."""
        self.asked: dict[Key, FetchPartition] = {}

    def reset(self) -> None:
        """Start a new session: the next fetch names all partitions."""
        self.session_id = self.epoch = 0
        self.is_denied = False
        self.asked.clear()

    @property
    def is_new(self) -> bool:
        """True until the leader has given a session; so long only one fetch is in flight."""
        return self.session_id == 0

    def plan(self, keys: Iterable[Key], wanted_of: Callable[[Key], FetchPartition | None]) -> tuple[list[FetchPartition], list[ForgottenPartition]]:
        """Return what the next fetch names and what it forgets, of `keys`; a partition for which
        `wanted_of` returns None is not fetched now.
        """
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
        """Count a sent fetch."""
        self.epoch = 1 if self.epoch >= EPOCH_MAX else self.epoch + 1

    def on_answer(self, session_id: int) -> None:
        """Apply a response without error.

        Session id 0: the leader's cache is full, and every fetch is a full one.
        """
        if session_id and (self.is_new or session_id == self.session_id):
            self.session_id = session_id
        else:
            self.session_id = self.epoch = 0
            self.is_denied = not session_id
