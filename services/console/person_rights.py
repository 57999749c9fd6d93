"""What a person may see of topics and groups, as the authorizer of the box decides; and whether its login
still holds, also without an authorizer.

Asked as the person, of this box alone, by a client of Kafka in a thread of `KafkaWorkers`, and kept for
some seconds. A page waits for it `WAIT_SECONDS` at most: until the box answers it shows what was known
before, or no names. Weak: what was taken from a person is seen until then, and a search that runs goes on
while the login holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from appliance.base.errors import ErrorCode, MillraceError
from appliance.security.acl import AclOperation
from appliance.security.principals import ActingFor
from services.console.kafka_workers import KafkaWorkers
from services.console.persons import Person

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient

WAIT_SECONDS: Final = 2.0
KEPT_MS: Final = 10_000
RETRY_MS: Final = 2_000
LAST_KNOWN_MS: Final = 5 * 60_000
"""So long a page shows what was known before."""
PERSONS_KEPT: Final = 64
STALE: Final = "the user was deleted, or has another password: log in again"
NOT_YET: Final = "the box has not said yet which topics and groups this user may see"


class Visible(NamedTuple):
    """The names that a person may see. None: all. `why`: why there are not all that there should be."""

    topics: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    why: str = ""

    def has_topic(self, name: str) -> bool:
        return self.topics is None or name in self.topics

    def has_group(self, name: str) -> bool:
        return self.groups is None or name in self.groups


ALL: Final = Visible()
NONE: Final = Visible(frozenset(), frozenset(), NOT_YET)


def is_refused_login(problem: BaseException) -> bool:
    """Whether the box has refused the user for whom it was asked."""
    from appliance.client.security import AuthenticationFailed  # it brings OpenSSL

    return isinstance(problem, AuthenticationFailed)


class _Known:
    """What is known of one person."""

    __slots__ = ("asked", "known_ms", "next_ms", "refused", "visible")

    def __init__(self, visible: Visible) -> None:
        self.visible = visible
        self.known_ms = self.next_ms = 0
        self.asked: asyncio.Task[None] | None = None
        self.refused: MillraceError | None = None


class PersonRights:
    """`judges`: the box has an authorizer. Without `workers` persons see everything."""

    def __init__(self, workers: KafkaWorkers | None, judges: bool, now_ms: Callable[[], int]) -> None:
        self._workers = workers
        self._judges = judges
        self._now_ms = now_ms
        self._known: dict[ActingFor, _Known] = {}
        """those that were asked for longest ago first"""

    async def visible(self, person: Person | None) -> Visible:
        """Return what a person sees. Raises AuthenticationFailed if its login holds no more."""
        if self._workers is None or person is None:
            return ALL
        known = self._known.pop(person.acting, None) or _Known(NONE if self._judges else ALL)
        if len(self._known) >= PERSONS_KEPT:
            del self._known[next(iter(self._known))]
        self._known[person.acting] = known
        if known.asked is None and self._now_ms() >= known.next_ms:
            known.asked = asyncio.get_running_loop().create_task(self._ask(self._workers, person.acting, known))
        if known.asked is not None:
            await asyncio.wait({known.asked}, timeout=WAIT_SECONDS)
        if known.refused is not None:
            raise known.refused
        return known.visible

    async def _ask(self, workers: KafkaWorkers, acting: ActingFor, known: _Known) -> None:
        try:
            known.visible = await workers.ask(partial(visible_to, judges=self._judges), person=acting)
            known.known_ms = self._now_ms()
            known.next_ms = known.known_ms + KEPT_MS
        except (MillraceError, TimeoutError) as problem:
            if isinstance(problem, MillraceError) and is_refused_login(problem):
                known.refused = problem
                self._known.pop(acting, None)
            known.next_ms = self._now_ms() + RETRY_MS
            if self._judges:
                is_recent = known.known_ms and self._now_ms() - known.known_ms < LAST_KNOWN_MS
                known.visible = (known.visible if is_recent else NONE)._replace(why=f"{NOT_YET}: {str(problem) or 'no answer in time'}")
        finally:
            known.asked = None

    async def why_not_read(self, person: Person | None, topic: str) -> tuple[int, str] | None:
        """Return status and text, if a person may not read the records of a topic. Raises as `KafkaWorkers.ask`."""
        if self._workers is None or person is None:
            return None
        if not self._judges:
            await self.visible(person)
            return None
        code, may = await self._workers.ask(partial(read_right, topic=topic), person=person.acting)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return 404, f"there is no topic {topic[:300]}"
        return None if may else (403, f"{person.principal} may not read topic {topic[:300]}")


def visible_to(cluster: ClusterClient, judges: bool) -> Visible:
    """Return what the principal of a client may see. Without an authorizer only its login is verified."""
    from appliance.client.messages import LIST_GROUPS
    from appliance.protocol.group_apis import ListGroupsRequest

    if not judges:
        cluster.metadata([])
        return ALL
    topics = frozenset(cluster.metadata().topics)
    try:
        answer = cluster.ask_controller(LIST_GROUPS, ListGroupsRequest())  # by the Unix socket this is the box itself
    except MillraceError as problem:
        return Visible(topics, frozenset(), f"{NOT_YET}: {problem}")
    return Visible(topics, frozenset(group.group_id for group in answer.groups), NOT_YET if answer.error_code else "")


def read_right(cluster: ClusterClient, topic: str) -> tuple[int, bool]:
    """Return the error of a topic, and whether the principal of a client may read it."""
    from appliance.client.messages import METADATA
    from appliance.protocol.metadata import MetadataRequest, MetadataRequestTopic

    request = MetadataRequest((MetadataRequestTopic(name=topic),), False, include_topic_authorized_operations=True)
    (found,) = cluster.ask_controller(METADATA, request).topics
    is_denied = found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return found.error_code, not is_denied and found.authorized_operations >= 0 and bool(found.authorized_operations >> AclOperation.READ & 1)


def require_alter(cluster: ClusterClient) -> None:
    """Raise RequestRefused unless the principal of a client may alter the cluster, as orders about replicas need in Kafka."""
    from appliance.client.errors import refused
    from appliance.client.messages import DESCRIBE_CLUSTER
    from appliance.protocol.cluster_apis import DescribeClusterRequest

    answer = cluster.ask_controller(DESCRIBE_CLUSTER, DescribeClusterRequest(include_cluster_authorized_operations=True))
    if answer.error_code or not answer.cluster_authorized_operations >> AclOperation.ALTER & 1:
        raise refused(answer.error_code or ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "order moves between disks: it needs Alter on the cluster")


def without_names(document: dict[str, Any], visible: Visible) -> dict[str, Any]:
    """Return the document of disks without partitions and moves of topics that a person may not see."""
    disks = [disk | {"held": [each for each in disk["held"] if visible.has_topic(each["topic"])]} for disk in document["disks"]]
    return document | {"disks": disks, "moves": [move for move in document["moves"] if visible.has_topic(move["topic"])]}
