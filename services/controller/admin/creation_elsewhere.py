"""Request topics from the controller on another box: CreateTopics for clients or processes of this
box.

Only the cluster's controller creates topics. Clients that create one explicitly find it by
themselves; an automatic creation starts at any box that a client uses. Owned by the controller
process of a box that is not the controller. Weak: without a controller nothing is created, and
clients retry.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.base.errors import ErrorCode, known_error
from appliance.base.model import INTERNAL_TOPICS
from appliance.client.peers import Peers
from appliance.cluster.metadata_image import MetadataImage
from appliance.cluster.placement import TopicCreation
from appliance.protocol.topic_apis import CREATE_TOPICS_REQUEST, CREATE_TOPICS_RESPONSE, CreatableTopic, CreateTopicsRequest, CreateTopicsResponse, TopicConfig
from services.controller.admin.topic_administration import OnResult, Result

TIMEOUT_MS = 10_000
_VERSION_MIN = 4
"""From this version on, −1 means the defaults."""


class CreationElsewhere:
    """`internal_topic(name)` returns how to create a coordinator's topic."""

    def __init__(self, peers: Peers, image: Callable[[], MetadataImage], internal_topic: Callable[[str], TopicCreation | None]) -> None:
        self._peers = peers
        self._image = image
        self._internal_topic = internal_topic
        self._refreshed = MetadataImage.empty()

    def ensure(self, name: str, num_partitions: int, on_result: OnResult) -> None:
        """As `TopicAdministration.ensure`: an existing topic is as good as a new one."""
        wanted = self._internal_topic(name) if name in INTERNAL_TOPICS else TopicCreation(name, num_partitions)
        if wanted is None:
            on_result(Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' is not created automatically."))
            return
        configs = tuple(TopicConfig(key, value) for key, value in wanted.configs)
        topic = CreatableTopic(name, wanted.num_partitions, wanted.replication_factor, (), configs)

        def on_answer(response: CreateTopicsResponse | None) -> None:
            if response is None or not response.topics:
                on_result(Result(ErrorCode.LEADER_NOT_AVAILABLE, "The controller did not answer."))
                return
            code = known_error(response.topics[0].error_code)
            on_result(Result(ErrorCode.NONE if code is ErrorCode.TOPIC_ALREADY_EXISTS else code, response.topics[0].error_message))

        self._refresh()
        request = CreateTopicsRequest((topic,), TIMEOUT_MS)
        self._peers.ask(self._image().controller_id, CREATE_TOPICS_REQUEST, CREATE_TOPICS_RESPONSE, request, on_answer, TIMEOUT_MS, version_min=_VERSION_MIN)

    def do_work(self, now_ns: int) -> int:
        self._refresh()
        return self._peers.do_work(now_ns)

    def _refresh(self) -> None:
        image = self._image()
        if image is not self._refreshed:
            self._refreshed = image
            self._peers.refresh(image.brokers)

    def close(self) -> None:
        self._peers.close()
