"""Consumer groups in the coordinator process: their rules (`groups`) on the partitions of `__consumer_offsets` that this box leads.

Owned by the coordinator process. Weak spot: when the topic is made anew with another number of partitions, every group begins anew.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from appliance.base.errors import ErrorCode, known_error
from appliance.base.model import TopicId, TopicPartition
from appliance.base.settings import Box
from appliance.cluster.group_configs import group_number
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.state_log import OFFSETS_TOPIC, ProducerIdentity, partition_of
from appliance.ipc.request_frames import COMMIT_LEGACY_OFFSETS, FETCH_LEGACY_OFFSETS, KAFKA_REQUEST, KafkaRequest, pack_kafka_request
from appliance.ipc.request_link import ControllerLink
from appliance.protocol import topic_apis
from appliance.protocol.apis import ApiKey
from appliance.shm.counters import Counters
from services.coordinator.groups.group_coordinator import GroupCoordinator
from services.coordinator.groups.ports import GroupSettings, InternalTopic, KnownTopic, LegacyCommitted, LegacyFetched, NameBound, StreamsOptions
from services.coordinator.member_rights import MemberRights
from services.coordinator.share.share_group_records import ShareGroupPlaces, WithShareGroups
from services.coordinator.state.state_topic import StateTopic

OnVerified = Callable[[ErrorCode], None]


def group_settings(box: Box, partition_count: int) -> GroupSettings:
    """The box's settings; partitions as the topic has them."""
    others = ("offsets_topic_num_partitions", "group_consumer_migration_policy")
    names = {field: field.replace("_", ".") for field in GroupSettings._fields if field not in others}
    return GroupSettings(
        **{field: box.integer(name) for field, name in names.items()},
        offsets_topic_num_partitions=partition_count,
        group_consumer_migration_policy=box.text("group.consumer.migration.policy"),
    )


def new_member_id() -> str:
    """A random UUID as Java prints it."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


class CoordinatedGroups:
    """`topic` is where their state is."""

    def __init__(
        self,
        box: Box,
        topic: StateTopic,
        view: MetadataCache,
        legacy: LegacyOffsetRequests,
        now_ms: Callable[[], int],
        counters: Counters,
        rights: MemberRights | None = None,
        has_memory: Callable[[], bool] = lambda: True,
    ) -> None:
        """`rights`: of members; None without an authorizer. `has_memory`: false while nothing may grow."""
        self._has_memory = has_memory
        self._box = box
        self._refused = {bound: counters.counter(f'coordinator.refused{{bound="{bound.value}"}}') for bound in NameBound}
        self._topic = topic
        self._view = view
        self._legacy = legacy
        self._rights = rights
        self._now_ms = now_ms
        self._partition_count = box.integer("offsets.topic.num.partitions")
        self.creations: TopicCreations | None = None
        """Of internal topics of streams groups; None: they are not created."""
        self._known_topics: dict[str, TopicId] = {}
        self._share_groups: ShareGroupPlaces | None = None
        self.coordinator = self._make()

    def _make(self) -> GroupCoordinator:
        settings = group_settings(self._box, self._partition_count)
        coordinator = GroupCoordinator(self._topic, settings, new_member_id, self, self._legacy, self.on_refused)
        coordinator.directory.has_memory = self._has_memory
        coordinator.begin(self._now_ms())
        self._topic.serve(coordinator if self._share_groups is None else WithShareGroups(coordinator, self._share_groups))
        return coordinator

    def load_too(self, share_groups: ShareGroupPlaces) -> None:
        """Let share groups have their records of the topic, before it is first loaded."""
        self._share_groups = share_groups
        self._topic.serve(WithShareGroups(self.coordinator, share_groups))

    def on_refused(self, bound: NameBound) -> None:
        """Count what a bound of this box has refused."""
        self._refused[bound].add()

    # -- `groups.ports.Topics`

    @property
    def generation(self) -> int:
        """Grows with the topics, and with the access control lists: both decide what members get."""
        return self._view.image.generation + (self._rights.generation if self._rights is not None else 0)

    def consumer_timing(self, group_id: str) -> tuple[int, int]:
        configs, box = self._view.image.group_configs, self._box
        return (
            group_number(configs, group_id, "consumer.session.timeout.ms", box.integer("group.consumer.session.timeout.ms")),
            group_number(configs, group_id, "consumer.heartbeat.interval.ms", box.integer("group.consumer.heartbeat.interval.ms")),
        )

    def streams_timing(self, group_id: str) -> tuple[int, int]:
        configs, box = self._view.image.group_configs, self._box
        return (
            group_number(configs, group_id, "streams.session.timeout.ms", box.integer("group.streams.session.timeout.ms")),
            group_number(configs, group_id, "streams.heartbeat.interval.ms", box.integer("group.streams.heartbeat.interval.ms")),
        )

    def streams_options(self, group_id: str) -> StreamsOptions:
        configs, box = self._view.image.group_configs, self._box
        return StreamsOptions(
            group_number(configs, group_id, "streams.num.standby.replicas", box.integer("group.streams.num.standby.replicas")),
            group_number(configs, group_id, "streams.initial.rebalance.delay.ms", box.integer("group.streams.initial.rebalance.delay.ms")),
        )

    def create_internal(self, group_id: str, member_id: str, missing: Sequence[InternalTopic]) -> str:
        denied = self._rights.not_created(group_id, member_id, [topic.name for topic in missing]) if self._rights is not None else []
        allowed = [topic for topic in missing if topic.name not in denied]
        refused = self.creations.create(allowed, self._now_ms(), (group_id, member_id)) if allowed and self.creations is not None else ""
        return "; ".join(filter(None, [f"Unauthorized to CREATE on topics {', '.join(denied)}." if denied else "", refused]))

    def visible(self, group_id: str, member_id: str, names: frozenset[str]) -> frozenset[str] | None:
        return names if self._rights is None else self._rights.visible(group_id, member_id, names)

    def has_partition(self, topic: str, partition: int) -> bool:
        image = self._view.image.topics.get(topic)
        return image is not None and 0 <= partition < len(image.partitions)

    def find(self, topic: str) -> KnownTopic | None:
        image = self._view.image.topics.get(topic)
        return KnownTopic(image.topic_id, len(image.partitions)) if image is not None else None

    def name_of(self, topic_id: TopicId) -> str | None:
        image = self._view.image.topics_by_id.get(topic_id)
        return image.name if image is not None else None

    def names(self) -> Iterable[str]:
        return self._view.image.topics

    # -- the topic of their state

    def offsets_partition_of(self, group_id: str) -> TopicPartition | None:
        """Where a group's offsets are; None while there is no such topic."""
        count = self._topic.partition_count
        return TopicPartition(OFFSETS_TOPIC, partition_of(group_id, count)) if count else None

    def commit_verified(self, partition: int, producer: ProducerIdentity, ask: Callable[[Callable[[ErrorCode], None]], None], commit: OnVerified) -> None:
        """Let `commit` commit offsets of a transaction about which another box has to be asked. `commit` hears NONE when they may be committed, which it does
        before it returns; `ask(on_answer)` asks. What ends the transaction here meanwhile makes the commit fail: it would stand behind the marker, open for
        ever, or be taken for a part of the next transaction."""

        def on_guard(code: ErrorCode, guard: int) -> None:
            def on_answer(code: ErrorCode) -> None:
                with self._topic.guards.guarded(partition, producer, guard):
                    commit(code)

            if code is not ErrorCode.NONE or not guard:
                on_answer(code)
            else:
                ask(on_answer)

        self._topic.begin_verification(partition, producer, on_guard)

    def refresh(self) -> None:
        """Image or tables have changed."""
        image = self._view.image
        if image.generation:
            former, self._known_topics = self._known_topics, {name: topic.topic_id for name, topic in image.topics.items()}
            gone = {name for name, topic_id in former.items() if self._known_topics.get(name) != topic_id}  # or made anew between two looks
            if gone:
                self.coordinator.on_topics_deleted(gone, self._now_ms())
        count = self._topic.count_partitions()
        if self._share_groups is not None:
            self._share_groups.partition_count = count
        if count and count != self._partition_count:
            self._topic.end_all()
            self._partition_count = count
            self.coordinator = self._make()
        self._topic.refresh()


# ---- offsets in ZooKeeper, by way of the controller. While ZooKeeper is away, commits wait and end with COORDINATOR_NOT_AVAILABLE


TIMEOUT_MS = 6_000


class LegacyOffsetRequests:
    """Requests to the controller."""

    def __init__(self, controller: ControllerLink) -> None:
        self._controller = controller

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], on_committed: LegacyCommitted) -> None:
        document = {"group": group_id, "offsets": [[*key, offset] for key, offset in offsets.items()]}

        def on_answer(payload: bytes | None) -> None:
            answer = _read(payload)
            if answer["error"]:
                on_committed(dict.fromkeys(offsets, ErrorCode(answer["error"])))
            else:
                on_committed({TopicPartition(topic, partition): ErrorCode(code) for topic, partition, code in answer["errors"]})

        self._controller.request(COMMIT_LEGACY_OFFSETS, orjson.dumps(document), TIMEOUT_MS, on_answer)

    def fetch(self, group_id: str, partitions: Sequence[TopicPartition], on_fetched: LegacyFetched) -> None:
        document = {"group": group_id, "partitions": [list(key) for key in partitions]}

        def on_answer(payload: bytes | None) -> None:
            answer = _read(payload)
            found = answer["offsets"] if not answer["error"] else []
            on_fetched({TopicPartition(topic, partition): offset for topic, partition, offset in found})

        self._controller.request(FETCH_LEGACY_OFFSETS, orjson.dumps(document), TIMEOUT_MS, on_answer)


# ---- internal topics of streams groups, by way of the controller


CREATION_MS: Final = 10_000
CREATED_AT_ONCE_MAX: Final = 10_000
CREATE_TOPICS_VERSION: Final = 7
ASKERS_MAX: Final = 20_000
Member = tuple[str, str]
"""Group and member id."""


class TopicCreations:
    """CreateTopics requests in the name of members, whose quotas count; their rights were checked. Every heartbeat of a group asks for what is missing,
    so a topic that is under way is not asked for again, and neither is one that was refused within `CREATION_MS`, whose error members get."""

    def __init__(self, controller: ControllerLink, on_created: Callable[[KafkaRequest, list[str]], None] = lambda _asker, _names: None) -> None:
        """`on_created` is called with the client and the names of what it has created."""
        self._controller = controller
        self._on_created = on_created
        self._under_way: dict[InternalTopic, int] = {}
        """Topic → until when it is waited for. One of the same name that another group needs otherwise is another one."""
        self._refused: dict[InternalTopic, tuple[int, str]] = {}
        self._askers: OrderedDict[Member, KafkaRequest] = OrderedDict()

    def on_heartbeat(self, member: Member, asked: KafkaRequest) -> None:
        """Remember which client a member is."""
        self._askers[member] = asked._replace(body=b"")
        self._askers.move_to_end(member)
        if len(self._askers) > ASKERS_MAX:
            self._askers.popitem(last=False)

    def create(self, topics: Iterable[InternalTopic], now_ms: int, member: Member) -> str:
        """Begin to create topics; return what refused them of late, or ""."""
        self._under_way = {topic: until_ms for topic, until_ms in self._under_way.items() if until_ms > now_ms}
        self._refused = {topic: refused for topic, refused in self._refused.items() if refused[0] > now_ms}
        texts = [f"{topic.name}: {self._refused[topic][1]}" for topic in topics if topic in self._refused]
        due = [topic for topic in topics if topic not in self._under_way and topic not in self._refused]
        asker = self._askers.get(member)
        if due and asker is not None and len(self._under_way) + len(due) <= CREATED_AT_ONCE_MAX:
            self._under_way.update(dict.fromkeys(due, now_ms + CREATION_MS))
            self._ask(due, now_ms, asker)
        return f"Creation failed: {', '.join(texts)}" if texts else ""

    def _ask(self, due: Sequence[InternalTopic], now_ms: int, asker: KafkaRequest) -> None:
        wanted = tuple(
            topic_apis.CreatableTopic(
                topic.name, topic.partitions, topic.replication_factor or -1, (), tuple(topic_apis.TopicConfig(*config) for config in topic.configs)
            )
            for topic in due
        )
        body = topic_apis.CREATE_TOPICS_REQUEST.encode(CREATE_TOPICS_VERSION, topic_apis.CreateTopicsRequest(wanted, CREATION_MS))
        by_name = {topic.name: topic for topic in due}

        def on_answer(payload: bytes | None) -> None:
            results = topic_apis.CREATE_TOPICS_RESPONSE.decode(payload, 0, len(payload), CREATE_TOPICS_VERSION).topics if payload else ()
            for result in results:
                topic = by_name[result.name]
                self._under_way.pop(topic, None)
                if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    self._refused[topic] = now_ms + CREATION_MS, result.error_message or known_error(result.error_code).name
            if created := [result.name for result in results if not result.error_code]:
                self._on_created(asker, created)

        request = pack_kafka_request(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, asker.client_id, asker.client_host, body, asker.origin.pack())
        self._controller.request(KAFKA_REQUEST, request, CREATION_MS, on_answer)


def _read(payload: bytes | None) -> dict[str, Any]:
    return orjson.loads(payload) if payload else {"error": int(ErrorCode.COORDINATOR_NOT_AVAILABLE)}
