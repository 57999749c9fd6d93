"""Share groups: their members, the partitions of each, and what administrators see of them (KIP-932).

Membership is in memory only: after a death of the coordinator a member gets UNKNOWN_MEMBER_ID and
joins again under its id. A group exists while it has members or share partitions, which are in the
log (`share_group_records`). A partition is assigned once its state is initialized; its start offset
is chosen then if this box leads it, else by its leader at the first fetch. The assignor `simple`
gives each partition to a member and each member a partition, so that members share partitions where
they are fewer. Owned by the coordinator. Weak spots: a member without heartbeats keeps its
partitions for `group.share.session.timeout.ms`; racks are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicId
from appliance.protocol import share_apis as apis
from appliance.protocol.consumer_group_apis import AssignedTopic, ConsumerAssignment, MemberAssignment
from appliance.protocol.group_apis import ListedGroup
from appliance.protocol.share_state_apis import UNINITIALIZED, StateResult
from appliance.protocol.topic_partitions import TopicIdPartitions
from appliance.runtime.timers import Timer, Timers
from services.coordinator.groups.member import ClientIdentity
from services.coordinator.groups.ports import NAME_COST, KnownTopic, subscription_cost
from services.coordinator.share.share_group_records import ShareGroupPlaces
from services.coordinator.share.share_leaders import SHARES_MAX, LogBounds
from services.coordinator.share.share_persister import SharePersister
from services.coordinator.share.share_states import Place

SIMPLE: Final = "simple"
JOIN: Final = 0
LEAVE: Final = -1
SUBSCRIPTION_CHARACTERS_MAX: Final = 1 << 19
CHARACTERS_MAX: Final = 32 << 20
NEW_A_HEARTBEAT: Final = 250
LARGE: Final = 10_000
"""Members times partitions, or names of topics, from which a group is assigned once in `ASSIGNMENT_INTERVAL_MS` only."""
ASSIGNMENT_INTERVAL_MS: Final = 1_000
NAME_CHARACTERS_MAX: Final = 1_024
MEMBERS_MAX: Final = 20_000
"""Of all share groups of a box: some 100 MB."""
DESCRIBED_BYTES_MAX: Final = 40 << 20
"""Of one answer, at most; further groups are refused, for a frame of `coordinator.sock` holds 64 MiB."""
WITHOUT_MEMORY: Final = "The coordinator of this box holds as much as it may (coordinator.heap.bytes); nothing new is added to share groups."
SHARE_TYPE: Final = "share"


class ShareSettings(NamedTuple):
    """Kafka's settings `group.share.…` that concern members, and `max.groups`."""

    group_share_session_timeout_ms: int = 45_000
    group_share_heartbeat_interval_ms: int = 5_000
    group_share_max_size: int = 200
    group_share_max_share_sessions: int = 2_000
    max_groups: int = 20_000


class SharedTopics(Protocol):
    """Topics, and the ends of their partitions."""

    @property
    def generation(self) -> int:
        """Another one whenever topics came, went or grew."""

    def find(self, topic: str) -> KnownTopic | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def bounds(self, topic_id: TopicId, partition: int) -> LogBounds: ...

    def refusal(self, group_id: str) -> tuple[ErrorCode, str | None]:
        """Why there can be no share group of this name here, or NONE."""

    def first_offset(self, group_id: str, bounds: LogBounds) -> int:
        """Where delivery begins in a partition that a group reads for the first time."""

    def timing(self, group_id: str) -> tuple[int, int]:
        """Session timeout and heartbeat interval of the group's members, in ms."""


class ShareMember:
    """One member; `sent` is the assignment of its last answer."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.rack_id: str | None = None
        self.client = ClientIdentity("", "")
        self.topics: tuple[str, ...] = ()
        self.member_epoch = 0
        self.previous_epoch = 0
        self.assigned: frozenset[Place] = frozenset()
        self.sent: frozenset[Place] | None = None
        self.timer: Timer | None = None


class ShareGroup:
    """The members of one group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.places: dict[str, tuple[Place, ...]] = {}
        """The partitions of the topics of all subscriptions."""
        self.missing: deque[Place] = deque()
        """Those of them that are not in `confirmed`."""
        self.confirmed: set[Place] = set()
        """Those whose state is known to be initialized. A deletion may have ended between state and group with a former coordinator."""
        self.generation = -1
        """Of the topics, when `places` was made."""
        self.is_stale = True
        """A subscription has changed since."""
        self.assigned_ms = 0


def simple_targets(subscriptions: Mapping[str, Iterable[str]], places: Mapping[str, tuple[Place, ...]]) -> dict[str, frozenset[Place]]:
    """Return the partitions of each member: in turn, for each topic, until every partition and every subscriber has one."""
    targets: dict[str, set[Place]] = {member_id: set() for member_id in subscriptions}
    subscribers_of: dict[str, list[str]] = {topic: [] for topic in sorted(places)}
    for member_id in sorted(subscriptions):
        for topic in subscriptions[member_id]:
            if topic in subscribers_of:
                subscribers_of[topic].append(member_id)
    for topic, subscribers in subscribers_of.items():
        of_topic = places[topic]
        if subscribers and of_topic:
            for index in range(max(len(subscribers), len(of_topic))):
                targets[subscribers[index % len(subscribers)]].add(of_topic[index % len(of_topic)])
    return {member_id: frozenset(target) for member_id, target in targets.items()}


class ShareGroups:
    """All share groups of this box. Each rule is called with a reply, which is called once, now or later."""

    def __init__(
        self,
        settings: ShareSettings,
        places: ShareGroupPlaces,
        persister: SharePersister,
        topics: SharedTopics,
        timers: Timers,
        on_member_gone: Callable[[str, str, bool], None],
    ) -> None:
        self._settings = settings
        self._persister = persister
        self._initialized = places
        self._topics = topics
        self._timers = timers
        self._on_member_gone = on_member_gone
        self.may_grow: Callable[[int], bool] = lambda _bytes: True
        """As `GroupDirectory.may_grow`: false while the coordinator has no memory left; refusals are counted."""
        self._groups: dict[str, ShareGroup] = {}
        self._member_count = 0
        self._characters = 0
        """Of the topics that all members subscribe to."""
        places.on_unload = self._on_unload

    def has(self, group_id: str) -> bool:
        """Whether the name is that of a share group."""
        return group_id in self._groups or bool(self._initialized.of_group(group_id))

    def has_members(self, group_id: str) -> bool:
        return group_id in self._groups

    def names(self) -> set[str]:
        return {*self._groups, *self._initialized.names()}

    # ---- members

    def heartbeat(
        self, request: apis.ShareGroupHeartbeatRequest, client: ClientIdentity, now_ms: int, reply: Callable[[apis.ShareGroupHeartbeatResponse], None]
    ) -> None:
        code, text = self._problem(request)
        group = self._groups.get(request.group_id)
        member = group.members.get(request.member_id) if group is not None else None
        if code is ErrorCode.NONE and request.member_epoch != JOIN and member is None:
            code, text = ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}."
        if code is ErrorCode.NONE and member is not None and request.member_epoch not in (JOIN, LEAVE, member.member_epoch, member.previous_epoch):
            code, text = ErrorCode.FENCED_MEMBER_EPOCH, f"The member is in epoch {member.member_epoch}, not {request.member_epoch}. It must rejoin."
        if code is ErrorCode.NONE and member is None:
            code, text = self.room(request.group_id)
        if code is not ErrorCode.NONE:
            reply(apis.ShareGroupHeartbeatResponse(error_code=code, error_message=text))
            return
        if request.member_epoch == LEAVE:
            self._remove(request.group_id, request.member_id, has_left=True)
            reply(apis.ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE))
            return
        names = () if request.subscribed_topic_names is None else tuple(sorted(set(request.subscribed_topic_names)))
        if request.subscribed_topic_names is None and member is not None:
            names = member.topics
        if member is None or names != member.topics:
            text = self._excess(request.group_id, member, names)
            if text:
                reply(apis.ShareGroupHeartbeatResponse(error_code=ErrorCode.POLICY_VIOLATION, error_message=text))
                return
        if group is None:
            group = self._groups[request.group_id] = ShareGroup(request.group_id)
        self._update(group, member, request, names, client, now_ms)
        self._with_initialized(group, now_ms, lambda: self._answer(request, reply))

    def _excess(self, group_id: str, member: ShareMember | None, names: tuple[str, ...]) -> str | None:
        """Return what would be too much, if the member subscribed to these topics."""
        if member is not None and not self.may_grow(1):
            return WITHOUT_MEMORY
        if self._characters + subscription_cost(names) > CHARACTERS_MAX:
            return f"The members of all share groups of this box subscribe to topics with {CHARACTERS_MAX} characters already, with {NAME_COST} for each."
        new = (place for of_topic in self._places(names).values() for place in of_topic)
        count = self._initialized.count
        if count + sum(not self._initialized.has(group_id, place) for place in new) > SHARES_MAX:
            return f"This box coordinates {count} share partitions, and may coordinate {SHARES_MAX}. Delete groups, or subscribe to fewer partitions."
        return None

    def _problem(self, request: apis.ShareGroupHeartbeatRequest) -> tuple[ErrorCode, str | None]:
        invalid = ""
        if not request.group_id:
            invalid = "GroupId can't be empty."
        elif not request.member_id:
            invalid = "MemberId can't be empty."
        elif request.member_epoch < LEAVE:
            invalid = f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -1."
        elif request.rack_id == "":
            invalid = "RackId can't be empty."
        elif max(len(request.group_id), len(request.member_id), len(request.rack_id or "")) > NAME_CHARACTERS_MAX:
            invalid = f"GroupId, MemberId and RackId may have {NAME_CHARACTERS_MAX} characters."
        elif request.member_epoch == JOIN and not request.subscribed_topic_names:
            invalid = "SubscribedTopicNames must be set in first request."
        elif subscription_cost(request.subscribed_topic_names or ()) > SUBSCRIPTION_CHARACTERS_MAX:
            invalid = f"SubscribedTopicNames have more than {SUBSCRIPTION_CHARACTERS_MAX} characters together, with {NAME_COST} for each."
        if invalid:
            return ErrorCode.INVALID_REQUEST, invalid
        return self._topics.refusal(request.group_id)

    def room(self, group_id: str) -> tuple[ErrorCode, str | None]:
        """Return why the group can have no further member, or cannot be made, or NONE."""
        group = self._groups.get(group_id)
        if self._member_count >= MEMBERS_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, f"The share groups of this box have {MEMBERS_MAX} members already."
        if group is not None and len(group.members) >= self._settings.group_share_max_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED, f"The share group has reached its maximum capacity of {self._settings.group_share_max_size} members."
        if group is None and not self.has(group_id) and len(self.names()) >= self._settings.max_groups:
            return ErrorCode.POLICY_VIOLATION, f"This box coordinates {self._settings.max_groups} share groups already (max.groups)."
        if not self.may_grow(1):
            return ErrorCode.POLICY_VIOLATION, WITHOUT_MEMORY
        return ErrorCode.NONE, None

    def _update(
        self,
        group: ShareGroup,
        member: ShareMember | None,
        request: apis.ShareGroupHeartbeatRequest,
        topics: tuple[str, ...],
        client: ClientIdentity,
        now_ms: int,
    ) -> None:
        is_new = member is None
        if member is None:
            member = group.members[request.member_id] = ShareMember(request.member_id)
            self._member_count += 1
        if request.member_epoch == JOIN:
            member.sent = None
            group.confirmed.clear()
            group.is_stale = True
        if is_new or topics != member.topics:
            self._characters += subscription_cost(topics) - subscription_cost(member.topics)
            group.is_stale = True
            group.group_epoch += 1
        member.client, member.topics = client._replace(client_id=client.client_id[:NAME_CHARACTERS_MAX]), topics
        member.rack_id = request.rack_id or member.rack_id
        self._timers.cancel(member.timer)
        key = group.group_id, member.member_id
        session_timeout_ms, _ = self._topics.timing(group.group_id)
        member.timer = self._timers.schedule(now_ms + session_timeout_ms, lambda _now_ms: self._remove(*key))

    def _remove(self, group_id: str, member_id: str, has_left: bool = False) -> None:
        group = self._groups.get(group_id)
        member = group.members.pop(member_id, None) if group is not None else None
        if group is None or member is None:
            return
        self._timers.cancel(member.timer)
        self._member_count -= 1
        self._characters -= subscription_cost(member.topics)
        group.group_epoch += 1
        group.is_stale = True  # the next heartbeat of another member assigns what it had
        if not group.members:
            del self._groups[group_id]
        self._on_member_gone(group_id, member_id, has_left)

    def _on_unload(self, is_gone: Callable[[str], bool]) -> None:
        """Another box coordinates these groups; their members join there."""
        for group_id in [group_id for group_id in self._groups if is_gone(group_id)]:
            for member in self._groups.pop(group_id).members.values():
                self._timers.cancel(member.timer)
                self._member_count -= 1
                self._characters -= subscription_cost(member.topics)

    # ---- partitions

    def _subscribed(self, group: ShareGroup) -> set[str]:
        return {name for member in group.members.values() for name in member.topics}

    def _places(self, names: Iterable[str]) -> dict[str, tuple[Place, ...]]:
        found = {name: self._topics.find(name) for name in names}
        return {name: tuple((topic.topic_id, number) for number in range(topic.partition_count)) for name, topic in found.items() if topic is not None}

    def _with_initialized(self, group: ShareGroup, now_ms: int, then: Callable[[], None]) -> None:
        """Assign if something has changed, and call `then`: at once, or when new partitions are initialized.

        At most `NEW_A_HEARTBEAT` partitions are new to one heartbeat; the others come with the next ones.
        """
        must_assign = group.is_stale or group.generation != self._topics.generation
        if must_assign:
            is_large = len(group.members) * sum(map(len, group.places.values())) > LARGE or sum(len(member.topics) for member in group.members.values()) > LARGE
            if is_large and now_ms < group.assigned_ms + ASSIGNMENT_INTERVAL_MS:
                then()
                return
            group.places, group.generation, group.is_stale = self._places(self._subscribed(group)), self._topics.generation, False
            group.missing = deque(place for of_topic in group.places.values() for place in of_topic if place not in group.confirmed)
        new = [group.missing.popleft() for _ in range(min(len(group.missing), NEW_A_HEARTBEAT))]

        def assign() -> None:
            if group.members and (must_assign or new):
                self._assign(group, now_ms)
            then()

        if new:
            self._initialize(group, new, assign)
        else:
            assign()

    def _initialize(self, group: ShareGroup, new: list[Place], on_done: Callable[[], None]) -> None:
        """Initialize the states, then let the group have the share partitions. What fails is tried again with the next heartbeat."""
        group_id = group.group_id

        def on_initialized(results: dict[Place, StateResult]) -> None:
            done = [place for place in new if not results[place].error_code]
            group.missing.extend(place for place in new if results[place].error_code)
            self._initialized.change(group_id, done, (), lambda code: on_written(done, code))

        def on_written(done: list[Place], code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                group.confirmed.update(done)
            else:
                group.missing.extend(done)
            on_done()

        self._persister.initialize(group_id, [(place, 0, self._start_offset(group_id, place)) for place in new], on_initialized)

    def _start_offset(self, group_id: str, place: Place) -> int:
        bounds = self._topics.bounds(*place)
        return self._topics.first_offset(group_id, bounds) if bounds.error_code is ErrorCode.NONE else UNINITIALIZED

    def _assign(self, group: ShareGroup, now_ms: int) -> None:
        known = self._initialized.of_group(group.group_id)
        ready = {name: tuple(place for place in of_topic if place in known) for name, of_topic in group.places.items()}
        targets = simple_targets({member.member_id: member.topics for member in group.members.values()}, ready)
        group.assigned_ms = now_ms
        group.group_epoch += any(member.assigned != targets[member.member_id] for member in group.members.values())
        for member in group.members.values():
            member.assigned = targets[member.member_id]

    def _answer(self, request: apis.ShareGroupHeartbeatRequest, reply: Callable[[apis.ShareGroupHeartbeatResponse], None]) -> None:
        group = self._groups.get(request.group_id)
        member = group.members.get(request.member_id) if group is not None else None
        if group is None or member is None:
            reply(apis.ShareGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return
        if member.member_epoch != group.group_epoch:
            member.previous_epoch, member.member_epoch = member.member_epoch, group.group_epoch
        is_sent = member.sent != member.assigned or request.member_epoch == JOIN
        member.sent = member.assigned
        response = apis.ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._topics.timing(group.group_id)[1],
            assignment=MemberAssignment(tuple(TopicIdPartitions(*each) for each in by_topic(member.assigned))) if is_sent else None,
        )
        reply(response)

    # ---- from outside

    def describe(self, request: apis.ShareGroupDescribeRequest) -> apis.ShareGroupDescribeResponse:
        described, left = [], DESCRIBED_BYTES_MAX
        for group_id in dict.fromkeys(request.group_ids):
            group = self._groups.get(group_id)
            left -= 6 * NAME_CHARACTERS_MAX + sum(map(_described_bytes, group.members.values())) if group is not None else 0
            text = "The answer would be too long; describe fewer groups, or a group with fewer topics and members."
            described.append(self._describe(group_id) if left > 0 else apis.DescribedShareGroup(ErrorCode.INVALID_REQUEST, text, group_id))
        return apis.ShareGroupDescribeResponse(groups=tuple(described))

    def _describe(self, group_id: str) -> apis.DescribedShareGroup:
        refusal = self._initialized.refusal(group_id)
        if refusal is not ErrorCode.NONE:
            return apis.DescribedShareGroup(refusal, None, group_id)
        if not self.has(group_id):
            return apis.DescribedShareGroup(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.", group_id, "Dead")
        group = self._groups.get(group_id) or ShareGroup(group_id)
        members = tuple(
            apis.ShareGroupMember(
                member.member_id, member.rack_id, member.member_epoch, *member.client, member.topics, ConsumerAssignment(tuple(self._named(member.assigned)))
            )
            for member in group.members.values()
        )
        epoch = group.group_epoch
        return apis.DescribedShareGroup(
            group_id=group_id, group_state=self.state_of(group_id), group_epoch=epoch, assignment_epoch=epoch, assignor_name=SIMPLE, members=members
        )

    def _named(self, places: Iterable[Place]) -> list[AssignedTopic]:
        named = ((topic_id, self._topics.name_of(topic_id), partitions) for topic_id, partitions in by_topic(places))
        return [AssignedTopic(topic_id, name, partitions) for topic_id, name, partitions in named if name is not None]

    def state_of(self, group_id: str) -> str:
        return "Stable" if group_id in self._groups else "Empty"

    def listed(self, states: set[str], types: set[str]) -> list[ListedGroup]:
        """Return the groups of these states and types in lower case; empty: of all."""
        if types and SHARE_TYPE not in types:
            return []
        found = (ListedGroup(name, SHARE_TYPE, self.state_of(name), "share") for name in sorted(self.names()))
        return [group for group in found if not states or group.group_state.lower() in states]


def _described_bytes(member: ShareMember) -> int:
    """No less than what the member takes: each topic is named twice, by its subscription and by its assignment."""
    names = 4 * (len(member.member_id) + len(member.client.client_id) + len(member.rack_id or "")) + 200
    return names + sum(2 * len(topic.encode("utf-8", "replace")) + 40 for topic in member.topics) + 4 * len(member.assigned)


def by_topic(places: Iterable[Place]) -> list[tuple[TopicId, tuple[int, ...]]]:
    found: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(places):
        found.setdefault(topic_id, []).append(partition)
    return [(topic_id, tuple(partitions)) for topic_id, partitions in found.items()]
