"""The metadata image: what is written is read, damage is seen, differences are exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.model import TopicId
from appliance.cluster.metadata_image import BrokerImage, ImageUnreadable, MetadataImage, PartitionImage, TopicImage, difference, read_image, write_image


def topic(name: str, partitions: int = 2, leader_epoch: int = 0, number: int = 1) -> TopicImage:
    parts = tuple(
        PartitionImage(1, leader_epoch, (1, 2), (1,), f"d{index % 2}" if index else None, "d2" if index == 1 else None) for index in range(partitions)
    )
    return TopicImage(name, TopicId(number.to_bytes(16, "big")), parts, {"retention.ms": "1"}, name.startswith("__"), 3)


def image(generation: int, *topics: TopicImage) -> MetadataImage:
    brokers = {1: BrokerImage(1, "h", 9092), 2: BrokerImage(2, "::1", 9093, "r")}
    return MetadataImage(generation, "cluster", 1, brokers, {entry.name: entry for entry in topics})


def test_an_image_comes_back_whole() -> None:
    written = image(7, topic("a"), topic("__consumer_offsets", 3, number=2))
    read = MetadataImage.decode(written.encode())
    assert (read.generation, read.cluster_id, read.controller_id) == (7, "cluster", 1)
    assert read.brokers == written.brokers and read.topics == written.topics
    assert read.topics_by_id[TopicId((2).to_bytes(16, "big"))].name == "__consumer_offsets"
    assert read.topics["__consumer_offsets"].is_internal and not read.topics["a"].is_internal


def test_what_has_not_changed_is_the_same_object_as_in_the_former_image() -> None:
    """Readers look only at what is another one: a change of a few partitions costs little, however many there are."""
    former = MetadataImage.decode(image(1, topic("same"), topic("moved", 3, number=2)).encode())
    changed = former.topics["moved"].partitions[1]._replace(leader=2, isr=(2,), partition_epoch=5)
    moved = former.topics["moved"]._replace(partitions=(former.topics["moved"].partitions[0], changed, former.topics["moved"].partitions[2]))
    encoded = image(2, former.topics["same"], moved, topic("fresh", number=3)).encode()
    read = MetadataImage.decode(encoded, former)
    assert read.topics == MetadataImage.decode(encoded).topics
    assert read.topics["same"] is former.topics["same"] and read.topics["moved"] == moved
    assert [one is other for one, other in zip(read.topics["moved"].partitions, former.topics["moved"].partitions, strict=True)] == [True, False, True]


def test_every_damaged_byte_is_seen() -> None:
    encoded = image(7, topic("a")).encode()
    for position in [*range(6), *range(8, len(encoded))]:  # bytes 6 and 7 are reserved
        damaged = bytearray(encoded)
        damaged[position] ^= 1
        with pytest.raises(ImageUnreadable):
            MetadataImage.decode(bytes(damaged))


def test_every_cut_is_seen() -> None:
    encoded = image(7, topic("a")).encode()
    for end in range(len(encoded)):
        with pytest.raises(ImageUnreadable):
            MetadataImage.decode(encoded[:end])


def test_a_difference_names_what_changed_and_nothing_else() -> None:
    old = image(1, topic("same"), topic("moved", number=2), topic("gone", number=3), topic("again", number=4))
    new = image(2, topic("same"), topic("moved", leader_epoch=1, number=2), topic("fresh", number=5), topic("again", number=6))
    found = difference(old, new)
    assert (found.created, found.changed, found.deleted, found.brokers_changed) == (("fresh",), ("again", "moved"), ("gone",), False)
    assert difference(old, MetadataImage(9, old.cluster_id, old.controller_id, old.brokers, old.topics)).is_empty


def test_a_changed_broker_is_a_difference() -> None:
    old, new = image(1), image(2)
    new.brokers[2] = BrokerImage(2, "elsewhere", 9093)
    assert difference(old, new).brokers_changed


def test_a_written_image_replaces_the_old_one(tmp_path: Path) -> None:
    path = str(tmp_path / "image")
    assert read_image(path) is None
    write_image(path, image(1))
    write_image(path, image(2, topic("a")))
    read = read_image(path)
    assert read is not None and read.generation == 2 and list(read.topics) == ["a"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["image"]


def test_a_change_is_found_among_two_thousand_partitions() -> None:
    old = image(1, *(topic(f"t{number}", 20, number=number) for number in range(100)))
    new = image(2, *(topic(f"t{number}", 20, int(number == 50), number=number) for number in range(100)))
    assert difference(old, MetadataImage.decode(new.encode())).changed == ("t50",)
