"""What a consumer's assignment says, and that it says nothing where it lies."""

from __future__ import annotations

import struct

import pytest

from appliance.base.model import TopicPartition
from appliance.client.groups import read_assignment

ASSIGNMENT = struct.pack(">hi", 0, 2) + struct.pack(">h3siii", 3, b"web", 2, 1, 0) + struct.pack(">h1sii", 1, b"a", 1, 7) + struct.pack(">i", -1)


def test_an_assignment_is_topics_with_partitions() -> None:
    assert read_assignment(ASSIGNMENT) == (TopicPartition("a", 7), TopicPartition("web", 0), TopicPartition("web", 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        ASSIGNMENT[:20],
        struct.pack(">hih", 0, 1, 9) + b"web",
        struct.pack(">hih2si", 0, 1, 2, b"\xff\xfe", 0),
        struct.pack(">hihi", 0, 1, 0, -1),
        struct.pack(">hihi", 0, 1, 0, 1 << 30),
        struct.pack(">hihi", 0, 1 << 30, -6, 0),  # a topic that leads back to itself, a billion times
    ],
)
def test_what_lies_or_ends_early_is_nothing(data: bytes) -> None:
    assert read_assignment(data) == ()
