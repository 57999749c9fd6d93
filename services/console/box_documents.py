"""What the page of disks and boxes shows, as JSON, and the draining of a disk.

Disks are read from the console's own samples, so they are shown while no broker answers. Boxes and
reassignments are asked for through a client of Kafka. Orders about disks are for root and the user
of the box: an installed console, which runs as another user, shows the command instead. Weak: sizes
and free bytes are those of the last sample, up to two seconds old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.base.model import NO_LEADER, BrokerId, TopicId
from appliance.client.boxes import describe_boxes, ongoing_reassignments
from appliance.client.cluster import ClusterClient
from appliance.cluster.disk_moves import DrainTarget, DrainView, drain_view, standing_moves
from appliance.ipc.move_orders import Patience, cancel_drain, order_moves
from appliance.runtime.unit_process import SYSTEMD
from services.console.box_sample import BoxSample
from services.console.disk_sample import DiskSample
from services.console.overview import disk_document
from services.console.parameters import Parameters, WrongParameter

PARTITIONS_SHOWN = 500
"""Of a disk, the largest first; and of reassignments and moves."""
PATIENCE = Patience(1, 15_000)
"""Shorter than `kafka_workers.ANSWER_SECONDS`: no order is given after the page said that it failed."""


class DiskContents:
    """The disks of this box; `last_sample` is the console's."""

    def __init__(self, layout: BoxLayout, last_sample: Callable[[], BoxSample]) -> None:
        self._layout = layout
        self._last_sample = last_sample

    def document(self, _cluster: ClusterClient, _given: Parameters) -> dict[str, Any]:
        """Return each disk with its state and what lies on it, and the moves between disks."""
        sample = self._last_sample()
        names = {bytes(topic.topic_id): name for name, topic in sample.image.topics.items()}
        disks = []
        for disk in sample.box.disks:
            held = sorted(sample.disks[disk.name].partitions, key=lambda each: -each.size_bytes)
            partitions = [
                {
                    "topic": names.get(each.row.topic_id, each.row.topic_id.hex()),
                    "partition": each.row.partition,
                    "is_known": each.row.topic_id in names,
                    "is_led": self._is_led(sample, names.get(each.row.topic_id), each.row.partition),
                    "size_bytes": each.size_bytes,
                }
                for each in held[:PARTITIONS_SHOWN]
            ]
            size_bytes = sum(each.size_bytes for each in held)
            disks.append(disk_document(disk.name, disk.path, sample) | {"held": partitions, "held_bytes": size_bytes})
        moves = standing_moves(self._layout, sample.image, [disk.name for disk in sample.box.disks])
        return {
            "box": sample.box.broker_id,
            "disks": disks,
            "moves": [move._asdict() for move in moves[:PARTITIONS_SHOWN]],
            "moves_count": len(moves),
            "may_drain": sample.box.managed_by != SYSTEMD and len(disks) > 1,
        }

    @staticmethod
    def _is_led(sample: BoxSample, topic: str | None, partition: int) -> bool:
        known = sample.image.topics.get(topic) if topic is not None else None
        return known is not None and partition < len(known.partitions) and known.partitions[partition].leader == sample.box.broker_id

    def drain(self, _cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
        """Plan what draining a disk moves; with `execute` order it, with `cancel` take it back."""
        given.require_known("disk", "cancel", "execute")
        sample, name = self._last_sample(), given.text("disk")
        if name not in sample.disks:
            raise WrongParameter(f"there is no disk {name[:40]}; there are {', '.join(sample.disks)}")
        if sample.box.managed_by == SYSTEMD:
            words = f"the console of an installed box gives no orders about disks; run: sudo millrace disk drain {name}"
            raise RequestRefused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, words)
        if given.flag("cancel"):
            cancel_drain(self._layout, name, PATIENCE)
            return {"disk": name}
        view = self._view(sample, name)
        plan = view.plan()
        if view.unordered and not view.is_readable:
            raise RequestRefused(ErrorCode.KAFKA_STORAGE_ERROR, f"disk {name} cannot be read now ({view.state}), so its partitions have no known size")
        if plan.unplaced:
            without = f"{len(plan.unplaced)} partitions of disk {name} fit on no other disk; add one: millrace disk add PATH"
            raise RequestRefused(ErrorCode.INVALID_REQUEST, without)
        if given.flag("execute"):
            order_moves(self._layout, name, [[move.topic, move.partition, move.target_disk] for move in plan.moves], None, PATIENCE)
        moves = [move._asdict() for move in plan.moves[:PARTITIONS_SHOWN]]
        return {"disk": name, "moves": moves, "moves_count": len(plan.moves), "size_bytes": plan.size_bytes, "standing": len(view.moves)}

    def _view(self, sample: BoxSample, name: str) -> DrainView:
        sizes = {(str(TopicId(each.row.topic_id)), each.row.partition): each.size_bytes for each in sample.disks[name].partitions}
        moves = standing_moves(self._layout, sample.image, list(sample.disks))
        return drain_view(name, sample.image, sizes, moves, [self._target(sample, disk, look) for disk, look in sample.disks.items()], None)

    @staticmethod
    def _target(sample: BoxSample, name: str, look: DiskSample) -> DrainTarget:
        shown = disk_document(name, "", sample)
        state = f"{look.state}, draining" if shown["is_draining"] else look.state
        return DrainTarget(name, look.state, state, shown["free_bytes"] or 0, shown["size_bytes"] or 0, shown["is_draining"])


def boxes_document(cluster: ClusterClient, _given: Parameters) -> dict[str, Any]:
    """Return the boxes of the cluster with their disks, replicas and leaders, and the reassignments under way."""
    boxes = describe_boxes(cluster)
    partitions = [part for topic in cluster.metadata(None).topics.values() for part in topic.partitions]
    replicas = Counter(broker for part in partitions for broker in part.assigned_replicas)
    behind = Counter(broker for part in partitions for broker in part.assigned_replicas if broker not in part.isr)
    led = Counter(part.leader for part in partitions)
    ongoing = ongoing_reassignments(cluster)
    return {
        "boxes": [
            {
                "broker_id": box.broker_id,
                "address": box.address,
                "rack": box.rack,
                "is_controller": box.is_controller,
                "answers": box.contents is not None,
                "disks": [disk._asdict() | {"error": disk.error.name} for disk in box.contents.disks] if box.contents else [],
                "replicas": replicas[BrokerId(box.broker_id)],
                "behind": behind[BrokerId(box.broker_id)],
                "led": led[BrokerId(box.broker_id)],
            }
            for box in boxes
        ],
        "missing": {str(broker): replicas[broker] for broker in sorted(replicas.keys() - {box.broker_id for box in boxes})},
        "leaderless": led[NO_LEADER],
        "reassignments": [{"topic": topic, "partition": number} | each._asdict() for (topic, number), each in sorted(ongoing.items())[:PARTITIONS_SHOWN]],
        "reassignments_count": len(ongoing),
    }
