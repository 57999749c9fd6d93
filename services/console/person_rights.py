"""What a person may see of topics and groups, as the authorizer of the box decides.

Asked as the person, by a client of Kafka in a thread of `KafkaWorkers`, and kept for some seconds.
Weak: what was taken from a person is seen until then, and a search that runs goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.security.acl import AclOperation
from appliance.security.principals import ActingFor
from services.console.kafka_workers import KafkaWorkers
from services.console.persons import Person

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient

KEPT_MS: Final = 10_000
PERSONS_KEPT: Final = 64


class Visible(NamedTuple):
    """The names that a person may see. None: all."""

    topics: frozenset[str] | None = None
    groups: frozenset[str] | None = None

    def has_topic(self, name: str) -> bool:
        return self.topics is None or name in self.topics

    def has_group(self, name: str) -> bool:
        return self.groups is None or name in self.groups


ALL: Final = Visible()


class PersonRights:
    """`workers` None: the box has no authorizer, and persons see everything."""

    def __init__(self, workers: KafkaWorkers | None, now_ms: Callable[[], int]) -> None:
        self._workers = workers
        self._now_ms = now_ms
        self._kept: dict[ActingFor, tuple[asyncio.Task[Visible], int]] = {}
        """with the time until which it is kept"""

    async def visible(self, person: Person | None) -> Visible:
        """Return what a person sees. Raises as `KafkaWorkers.ask`."""
        if self._workers is None or person is None:
            return ALL
        key = person.acting
        task, until_ms = self._kept.pop(key, (None, 0))
        if task is None or (task.done() and (self._now_ms() >= until_ms or task.exception() is not None)):
            if len(self._kept) >= PERSONS_KEPT:
                del self._kept[next(iter(self._kept))]
            task, until_ms = asyncio.get_running_loop().create_task(self._workers.ask(visible_to, person=key)), self._now_ms() + KEPT_MS
        self._kept[key] = task, until_ms
        return await asyncio.shield(task)

    async def may_read(self, person: Person | None, topic: str) -> bool:
        """Whether a person may read the records of a topic. Raises as `KafkaWorkers.ask`."""
        if self._workers is None or person is None:
            return True
        found: bool = await self._workers.ask(partial(may_read, topic=topic), person=person.acting)
        return found


def visible_to(cluster: ClusterClient) -> Visible:
    """Return what the principal of a client may see."""
    from appliance.client.groups import list_groups

    topics = frozenset(cluster.metadata().topics)
    try:
        return Visible(topics, frozenset(group.group_id for group in list_groups(cluster)))
    except RequestRefused:  # by another box, which the console cannot ask for a person
        return Visible(topics, frozenset())


def may_read(cluster: ClusterClient, topic: str) -> bool:
    """Return whether the principal of a client may read a topic; what is not there it may."""
    from appliance.client.messages import METADATA
    from appliance.protocol.metadata import MetadataRequest, MetadataRequestTopic

    request = MetadataRequest((MetadataRequestTopic(name=topic),), False, include_topic_authorized_operations=True)
    (found,) = cluster.ask_controller(METADATA, request).topics
    return found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or bool(found.authorized_operations >> AclOperation.READ & 1)
