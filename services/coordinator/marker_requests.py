"""Transaction markers for partitions that other boxes lead: WriteTxnMarkers to their acceptors, many markers in a request.

Owned by the coordinator process, used by `marker_appends`. Until the answer to a request is there, no second marker for one of its partitions is sent: a
partition whose followers are away holds up its own markers and a channel, not those of other partitions. When the image names another leader, or the box is
gone, a marker is given back at once, to be written where the partition is led now; a second marker of the same end changes nothing.
Weak spot: a request is answered as a whole, so the markers that were sent together with that of a slow partition wait with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from appliance.base.errors import ErrorCode, known_error
from appliance.base.model import ProducerId, TopicPartition
from appliance.client.peers import OnAnswer
from appliance.cluster.metadata_image import MetadataImage
from appliance.protocol.schema import Message
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    SECOND_PROTOCOL,
    WRITE_TXN_MARKERS_REQUEST,
    WRITE_TXN_MARKERS_RESPONSE,
    TxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from services.coordinator.transactions.transaction import Marker

CHANNELS = 4
MARKERS_A_REQUEST = 2_000
TIMEOUT_MS = 8_000
"""A little more than an acceptor waits for the followers (`services/acceptor/handlers/write_txn_markers.py`)."""

OnWritten = Callable[[ErrorCode], None]


class MarkerRequester(Protocol):
    """`client.peers.Peers`, as far as it is needed."""

    def ask(
        self,
        broker_id: int,
        question: Message[WriteTxnMarkersRequest],
        reply: Message[WriteTxnMarkersResponse],
        body: WriteTxnMarkersRequest,
        on_answer: OnAnswer,
        timeout_ms: int,
        *,
        channel: int,
    ) -> None: ...


class _Sent(NamedTuple):
    """A marker that a box was asked to write, or will be."""

    marker: Marker
    on_written: OnWritten


class _Box:
    """What one box has to write. `under_way`: by channel, what has not been answered yet, by partition."""

    def __init__(self) -> None:
        self.waiting: list[_Sent] = []
        self.under_way: dict[int, dict[TopicPartition, list[_Sent]]] = {}

    @property
    def free_channel(self) -> int | None:
        return next((channel for channel in range(CHANNELS) if channel not in self.under_way), None)

    def take_batch(self) -> list[_Sent]:
        """Those whose partitions are in no other request."""
        busy = {place for sent in self.under_way.values() for place in sent}
        batch: list[_Sent] = []
        left: list[_Sent] = []
        for sent in self.waiting:
            (batch if sent.marker.topic_partition not in busy and len(batch) < MARKERS_A_REQUEST else left).append(sent)
        self.waiting = left
        return batch


class MarkerRequests:
    """All of one coordinator."""

    def __init__(self, peers: MarkerRequester) -> None:
        self._peers = peers
        self._boxes: dict[int, _Box] = {}
        self._given_back: list[tuple[OnWritten, ErrorCode]] = []

    def __len__(self) -> int:
        """Markers that are not answered."""
        return sum(len(box.waiting) + sum(len(sent) for channel in box.under_way.values() for sent in channel.values()) for box in self._boxes.values())

    def write(self, broker_id: int, marker: Marker, on_written: OnWritten) -> None:
        """`on_written` once, with a later turn."""
        self._boxes.setdefault(broker_id, _Box()).waiting.append(_Sent(marker, on_written))

    def turn(self) -> int:
        """Send what can be sent, give back what has to be tried elsewhere."""
        given_back, self._given_back = self._given_back, []
        for on_written, code in given_back:
            on_written(code)
        return len(given_back) + sum(self._send(broker_id, box) for broker_id, box in self._boxes.items() if box.waiting)

    def _send(self, broker_id: int, box: _Box) -> int:
        channel = box.free_channel
        batch = box.take_batch() if channel is not None else []
        if channel is None or not batch:
            return 0
        by_partition: dict[TopicPartition, list[_Sent]] = {}
        for sent in batch:
            by_partition.setdefault(sent.marker.topic_partition, []).append(sent)
        box.under_way[channel] = by_partition
        markers = _joined(sent.marker for sent in batch)

        def on_answer(response: WriteTxnMarkersResponse | None) -> None:
            if box.under_way.get(channel) is by_partition:
                del box.under_way[channel]
            codes = _codes(markers, response)
            for sent in [sent for several in by_partition.values() for sent in several]:
                sent.on_written(codes.get(_key(sent.marker), ErrorCode.NOT_LEADER_OR_FOLLOWER))
            by_partition.clear()

        self._peers.ask(
            broker_id, WRITE_TXN_MARKERS_REQUEST, WRITE_TXN_MARKERS_RESPONSE, WriteTxnMarkersRequest(markers), on_answer, TIMEOUT_MS, channel=channel
        )
        return len(batch)

    def refresh(self, image: MetadataImage) -> None:
        """Leaders as they are now: what was asked of a box that does not lead a partition any more is given back."""
        for broker_id, box in self._boxes.items():
            kept = []
            for sent in box.waiting:
                if leader_of(image, sent.marker.topic_partition) == broker_id:
                    kept.append(sent)
                else:
                    self._give_back(sent)
            box.waiting = kept
            for by_partition in box.under_way.values():
                for place in [place for place in by_partition if leader_of(image, place) != broker_id]:
                    for sent in by_partition.pop(place):
                        self._give_back(sent)

    def _give_back(self, sent: _Sent) -> None:
        self._given_back.append((sent.on_written, ErrorCode.NOT_LEADER_OR_FOLLOWER))


def leader_of(image: MetadataImage, place: TopicPartition) -> int:
    """The broker that should lead a partition; -1: none, or there is no such partition."""
    topic = image.topics.get(place.topic)
    return topic.partitions[place.partition].leader if topic is not None and 0 <= place.partition < len(topic.partitions) else -1


_Key = tuple[ProducerId, int, str, int]


def _key(marker: Marker) -> _Key:
    return marker.producer_id, marker.producer_epoch, *marker.topic_partition


def _joined(markers: Iterable[Marker]) -> tuple[TxnMarker, ...]:
    """One entry for each end of a transaction, with all its partitions."""
    ends: dict[tuple[ProducerId, int, bool, int, bool], dict[str, list[int]]] = {}
    for (topic, partition), producer_id, producer_epoch, is_commit, coordinator_epoch, raises_epoch in markers:
        ends.setdefault((producer_id, producer_epoch, is_commit, coordinator_epoch, raises_epoch), {}).setdefault(topic, []).append(partition)
    joined = []
    for (producer_id, producer_epoch, is_commit, coordinator_epoch, raises_epoch), by_topic in ends.items():
        topics = tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in by_topic.items())
        joined.append(TxnMarker(producer_id, producer_epoch, is_commit, topics, coordinator_epoch, SECOND_PROTOCOL if raises_epoch else 0))
    return tuple(joined)


def _codes(markers: tuple[TxnMarker, ...], response: WriteTxnMarkersResponse | None) -> Mapping[_Key, ErrorCode]:
    """By producer and partition; empty without an answer, and for whatever it leaves out."""
    if response is None or len(response.markers) != len(markers):
        return {}
    return {
        (marker.producer_id, marker.producer_epoch, topic.topic, each.partition): known_error(each.error_code)
        for marker, result in zip(markers, response.markers, strict=True)
        if marker.producer_id == result.producer_id
        for topic in result.topics
        for each in topic.partitions
    }
