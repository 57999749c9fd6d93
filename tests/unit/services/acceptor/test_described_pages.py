"""DescribeTopicPartitions over an image: pages in the order of names, cursors, what is not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.model import TopicId
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.protocol.topic_apis import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, PartitionCursor, TopicToDescribe
from services.acceptor.handlers.metadata import describe_page


def image_with(**partitions: int) -> MetadataImage:
    partition = PartitionImage(1, 3, (1, 2), (1,), "d0")
    topics = {name: TopicImage(name, TopicId(name.encode().ljust(16)), (partition,) * count, {}) for name, count in partitions.items()}
    return MetadataImage(1, "cluster", 1, {1: BrokerImage(1, "h", 9092)}, topics)


def topics_of(page: DescribeTopicPartitionsResponse) -> list[tuple[str | None, int, list[int]]]:
    return [(topic.name, topic.error_code, [partition.partition_index for partition in topic.partitions]) for topic in page.topics]


def ask(image: MetadataImage, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> DescribeTopicPartitionsResponse:
    topics = tuple(TopicToDescribe(name) for name in names)
    return describe_page(image, DescribeTopicPartitionsRequest(topics, limit, PartitionCursor(*cursor) if cursor else None))


def test_a_page_ends_at_the_limit_and_says_where_the_next_begins() -> None:
    image = image_with(b=3, a=2, c=1)
    assert topics_of(ask(image)) == [("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])] and ask(image).next_cursor is None
    first = ask(image, limit=4)
    assert topics_of(first) == [("a", 0, [0, 1]), ("b", 0, [0, 1])] and first.next_cursor == PartitionCursor("b", 2)
    exact = ask(image, limit=2)
    assert topics_of(exact) == [("a", 0, [0, 1])] and exact.next_cursor == PartitionCursor("b", 0)
    assert topics_of(ask(image, cursor=("b", 2))) == [("b", 0, [2]), ("c", 0, [0])]


def test_replicas_on_brokers_that_are_not_there_are_offline() -> None:
    (topic,) = ask(image_with(a=1)).topics
    assert topic.partitions[0].offline_replicas == (2,) and topic.topic_authorized_operations == 3576


def test_a_requested_topic_that_is_absent_has_its_error() -> None:
    page = ask(image_with(a=1), "nowhere", "a", "a", "no/name")
    assert topics_of(page) == [("a", 0, [0]), ("no/name", 17, []), ("nowhere", 3, [])]
    assert topics_of(ask(image_with(a=1), "a", cursor=("a", -1))) == [("a", 42, [])]


def test_a_cursor_at_a_topic_that_went_goes_on_behind_it() -> None:
    assert topics_of(ask(image_with(a=1, c=1), cursor=("b", 7))) == [("c", 0, [0])]


@given(partitions=st.dictionaries(st.text("abcd", min_size=1, max_size=3), st.integers(1, 7), max_size=6), limit=st.integers(-1, 9))
def test_pages_together_are_the_whole(partitions: dict[str, int], limit: int) -> None:
    image = image_with(**partitions)
    found: list[tuple[str | None, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(100):
        page = ask(image, limit=limit, cursor=cursor)
        described = [(name, index) for name, _code, indexes in topics_of(page) for index in indexes]
        assert len(described) <= max(1, limit)
        found += described
        if page.next_cursor is None:
            break
        cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)
    else:
        pytest.fail("the pages do not end")
    assert found == [(name, index) for name in sorted(partitions) for index in range(partitions[name])]
