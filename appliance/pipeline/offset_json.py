"""The JSON in which Spark's Kafka connector writes partitions, offsets and times: `{"syslog": {"0": 23, "1": -1}}`. Values only.

It is also the form of a stream's offsets in Spark's checkpoints, so names and numbers are sorted: the same offsets are the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from appliance.base.model import TopicPartition
from appliance.pipeline.source_problem import SourceProblem

LATEST, EARLIEST = -1, -2
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_PARTITIONS_EXAMPLE = '{"topicA":[0,1],"topicB":[0,1]}'

OffsetDocument: TypeAlias = dict[str, dict[str, int]]


def offsets_to_document(offsets: Mapping[TopicPartition, int]) -> OffsetDocument:
    """What `json.dumps` turns into the connector's text."""
    document: OffsetDocument = {}
    for partition in sorted(offsets):
        document.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return document


def offsets_from_document(document: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Inverse of `offsets_to_document`."""
    return {TopicPartition(topic, int(number)): int(offset) for topic, numbers in document.items() for number, offset in numbers.items()}


def parse_offsets(name: str, text: str) -> dict[TopicPartition, int]:
    """Offsets or times of partitions, from an option's text. Raises `SourceProblem`."""
    document = _load(name, text, _OFFSETS_EXAMPLE)
    found = {}
    for topic, numbers in document.items():
        if not isinstance(numbers, dict) or not numbers:
            raise _malformed(name, text, _OFFSETS_EXAMPLE)
        for number, offset in numbers.items():
            if not number.isascii() or not number.isdigit() or not _is_integer(offset):
                raise _malformed(name, text, _OFFSETS_EXAMPLE)
            found[TopicPartition(topic, int(number))] = int(offset)
    if not found:
        raise _malformed(name, text, _OFFSETS_EXAMPLE)
    return found


def parse_partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Partitions, from an option's text. Raises `SourceProblem`."""
    document = _load(name, text, _PARTITIONS_EXAMPLE)
    found = []
    for topic, numbers in document.items():
        if not isinstance(numbers, list) or not all(_is_integer(number) and number >= 0 for number in numbers):
            raise _malformed(name, text, _PARTITIONS_EXAMPLE)
        found += [TopicPartition(topic, number) for number in numbers]
    if not found:
        raise _malformed(name, text, _PARTITIONS_EXAMPLE)
    return tuple(sorted(set(found)))


def describe_partitions(partitions: Iterable[TopicPartition]) -> str:
    """`a-0, a-1`, or the first few of many."""
    names = [str(each) for each in sorted(partitions)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _load(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        raise _malformed(name, text, example) from None
    if not isinstance(document, dict):
        raise _malformed(name, text, example)
    return document


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _malformed(name: str, text: str, example: str) -> SourceProblem:
    return SourceProblem(f"option '{name}': expected e.g. {example}, got {text}")
