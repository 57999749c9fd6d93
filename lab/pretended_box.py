"""Shared memory of a whole box, made by one process: counters, partition tables, an image. For programs that only read a box (the console, its benchmark).

Everything in it is real (layouts, files, names) but the processes: every pid is ours, or one that is gone. No disk is touched.
"""

from __future__ import annotations

import os
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout, Disk
from appliance.base.model import LeaderEpoch, TopicId
from appliance.base.settings import Box
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage, write_image
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_ONLINE, ROLE_LEADER, PartitionTableWriter, Row

SUPERVISOR = "supervisor"


class PretendedBox:
    """Every process serves and every partition is led, until a test says otherwise."""

    def __init__(self, layout: BoxLayout, clock: Clock, disks: tuple[str, ...] = ("d0", "d1"), topics: dict[str, int] | None = None) -> None:
        """`topics`: name → partitions, which go round the disks."""
        self.layout = layout
        self.clock = clock
        self.box = Box("b", 1, [Disk(name, f"/srv/{name}") for name in disks], "/srv/state", "127.0.0.1", "127.0.0.1", 9092, 514, 8080, pid=os.getpid())
        Path(layout.box_file).write_bytes(self.box.to_json())
        self.counters: dict[str, Counters] = {}
        for name in (SUPERVISOR, *self.box.process_names()):
            self.begin_life(name)
        self.tables = {name: PartitionTableWriter.create(layout.shared_memory_name("table", name, 1), 1) for name in disks}
        self.rows: dict[tuple[str, int], tuple[PartitionTableWriter, int, Row]] = {}
        images = {}
        for number, (topic, partitions) in enumerate((topics or {}).items()):
            topic_id = TopicId((number + 1).to_bytes(16, "big"))
            homes = [disks[partition % len(disks)] for partition in range(partitions)]
            images[topic] = TopicImage(topic, topic_id, tuple(PartitionImage(1, LeaderEpoch(0), (1,), (1,), home) for home in homes), {})
            for partition, home in enumerate(homes):
                row = Row._make((bytes(topic_id), partition, 0, ROLE_LEADER, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0))
                self.rows[topic, partition] = self.tables[home], self.tables[home].add_row(row)[0], row
        for table in self.tables.values():
            table.set_disk_state(DISK_ONLINE)
        write_image(layout.image_file, MetadataImage(1, "cluster", 1, {}, images))

    def begin_life(self, process: str) -> Counters:
        """Start a first or next incarnation of a process, which serves."""
        counters = Counters.create_or_adopt(self.layout, process, self.clock.monotonic_ns(), self.clock.wall_ms())
        counters.counter("runtime.starts").add()
        counters.set_state("serving")
        counters.beat(self.clock.monotonic_ns())
        self.counters[process] = counters
        return counters

    def beat(self) -> None:
        """All of them turn."""
        for counters in self.counters.values():
            counters.beat(self.clock.monotonic_ns())

    def append(self, topic: str, partition: int, records: int, size_bytes: int) -> None:
        """Records come, and are below the high watermark at once."""
        table, index, row = self.rows[topic, partition]
        row = row._replace(log_end_offset=row.log_end_offset + records, high_watermark=row.high_watermark + records)
        row = row._replace(active_position=row.active_position + size_bytes)
        self.rows[topic, partition] = table, index, row
        table.store_progress(index, row.log_end_offset, row.high_watermark, row.active_position)

    def close(self) -> None:
        for table in self.tables.values():
            table.close()
        for counters in self.counters.values():
            counters.close()
