"""Groups on the partitions that this box leads (`services/coordinator/coordinated_groups.py`): what becomes of the offsets of topics that go."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from appliance.base.model import TopicId
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from services.coordinator.coordinated_groups import CoordinatedGroups


class World:
    """Groups over an image that the test changes; `ended` says of which topics the offsets had to go."""

    def __init__(self) -> None:
        self.view = SimpleNamespace(image=MetadataImage.empty())
        self.ended: list[set[str]] = []
        box = SimpleNamespace(integer=lambda _name: 1, text=lambda _name: "bidirectional")
        topic = SimpleNamespace(serve=lambda _coordinator: None, count_partitions=lambda: 1, refresh=lambda: None)
        counters = cast(Any, SimpleNamespace(counter=lambda _label: None))
        self.groups = CoordinatedGroups(cast(Any, box), cast(Any, topic), cast(Any, self.view), cast(Any, None), lambda: 7, counters)
        self.groups.coordinator = cast(Any, SimpleNamespace(on_topics_deleted=self._on_topics_deleted))

    def _on_topics_deleted(self, topics: Collection[str], now_ms: int) -> None:
        assert now_ms == 7
        self.ended.append(set(topics))

    def see(self, **topics: int) -> None:
        """The next image, with these topics and their ids."""
        images = {name: TopicImage(name, TopicId(bytes([number]) * 16), (), {}) for name, number in topics.items()}
        self.view.image = MetadataImage(self.view.image.generation + 1, "", 1, {}, images)
        self.groups.refresh()


def test_offsets_go_with_their_topic() -> None:
    world = World()
    world.see(a=1, b=2)
    world.see(b=2)
    world.see(b=2, c=3)
    assert world.ended == [{"a"}]


def test_offsets_of_a_topic_that_was_recreated_between_two_images_are_removed() -> None:
    world = World()
    world.see(a=1, b=2)
    world.see(a=3, b=2)
    world.see(a=3, b=2)
    assert world.ended == [{"a"}]
