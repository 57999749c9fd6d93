"""The box as its users see it from outside, at one moment: where its logs begin and end (Kafka's offsets), and what its ingest counted (`/metrics`).

Owned by the master. Needs no access to the box's machine. Weak spot: offsets and counters are read one after the other; while lines still come they
fit together only nearly, so they are compared when all is quiet.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Mapping

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicPartition
from appliance.client.address import Address
from appliance.client.admin import create_topic, list_offsets
from appliance.client.cluster import ClusterClient
from appliance.client.groups import committed_offsets, set_offsets
from appliance.protocol.offset_apis import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from loadtest.users.reconciliation import Look, Stored, StoredRange, SyslogBooks

HTTP_SECONDS = 5.0
SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
RECEIVED = "millrace_ingest_received_lines_total"
STORED = "millrace_ingest_stored_lines_total"
COUNTED = "millrace_ingest_lost_lines_total"
KERNEL_DROPS = "millrace_ingest_kernel_drops_total"


class MetadataCache:
    """One box. Raises what `ClusterClient` raises when it does not answer."""

    def __init__(self, bootstrap: Iterable[Address], metrics_url: str) -> None:
        self._cluster = ClusterClient(bootstrap, client_id="millrace-loadtest")
        self._metrics_url = metrics_url

    def close(self) -> None:
        self._cluster.close()

    def ensure_topic(self, name: str, partitions: int) -> int:
        """Makes it where it is not there; returns how many partitions it has, each with a leader."""
        try:
            found = self._cluster.topic(name)
        except RequestRefused as refusal:
            if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            create_topic(self._cluster, name, partitions=partitions)
            found = self._cluster.topic(name)
        return len(found.partitions)

    def look(self, topics: Iterable[str], with_books: bool) -> Look:
        return Look(self.stored(topics), self.books() if with_books else None)

    def stored(self, topics: Iterable[str]) -> dict[str, StoredRange]:
        partitions = [TopicPartition(topic, known.partition) for topic in topics for known in self._cluster.topic(topic).partitions]
        # The start first: retention in between cannot make a range of negative length.
        starts = list_offsets(self._cluster, partitions, EARLIEST_TIMESTAMP)
        ends = list_offsets(self._cluster, partitions, LATEST_TIMESTAMP)
        return {f"{known.topic}/{known.partition}": StoredRange(starts[known].offset, ends[known].offset) for known in partitions}

    def books(self) -> SyslogBooks | None:
        """None if nothing answers, or if the answer has no such counters."""
        try:
            with urllib.request.urlopen(self._metrics_url, timeout=HTTP_SECONDS) as answer:
                return read_books(answer.read().decode())
        except OSError:
            return None

    def begin_groups(self, groups: Iterable[str], stored: Stored) -> None:
        """Groups without members go on from the ends of the logs: what is older is not theirs."""
        ends = {_parse(partition): known.log_end_offset for partition, known in stored.items()}
        for group in groups:
            set_offsets(self._cluster, group, ends)

    def uncommitted(self, groups: Iterable[str], stored: Stored) -> dict[str, int]:
        """How many records each group has not committed."""
        found = {}
        for group in groups:
            committed = {str_of(partition): known.offset for partition, known in committed_offsets(self._cluster, group).items()}
            found[group] = sum(max(0, known.log_end_offset - committed.get(partition, 0)) for partition, known in stored.items())
        return found


def read_books(text: str) -> SyslogBooks | None:
    """The ingest's counters in Prometheus's text form, summed over processes. None where they are not in it."""
    received: dict[str, int] = {}
    counted: dict[str, int] = {}
    stored: int | None = None
    dropped = 0
    for name, labels, value in samples(text):
        if name == RECEIVED:
            _add(received, labels.get("listener", "").removeprefix("syslog-"), value)
        elif name == COUNTED:
            _add(counted, labels.get("reason", ""), value)
        elif name == STORED:
            stored = (stored or 0) + int(value)
        elif name == KERNEL_DROPS:
            dropped += int(value)
    return None if stored is None else SyslogBooks(received, stored, counted, dropped)


def samples(text: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    for line in text.splitlines():
        if found := SAMPLE.match(line):
            yield found["name"], dict(LABEL.findall(found["labels"] or "")), float(found["value"])


def _add(sums: dict[str, int], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0) + int(value)


def _parse(partition: str) -> TopicPartition:
    topic, _, number = partition.rpartition("/")
    return TopicPartition(topic, int(number))


def str_of(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
