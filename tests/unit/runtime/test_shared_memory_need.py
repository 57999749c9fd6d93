"""What a box takes of /dev/shm is known before it starts, down to the page."""

from __future__ import annotations

from appliance.base.clock import SystemClock
from appliance.base.layout import Disk
from appliance.base.setting_row import SettingValue
from appliance.base.settings import Box
from appliance.ipc.source import Source
from appliance.runtime.preflight import need_of, shared_memory_problem
from appliance.runtime.run_options import RunOptions, resolve_options
from appliance.runtime.shared_memory import CONTROLLER_ARENA_BYTES, CONTROLLER_RING_ENTRIES, SharedMemoryNeed, held_bytes, shared_memory_need
from appliance.shm.arena import PieceMemory
from appliance.shm.counters import Counters
from appliance.shm.partition_table import PartitionTableWriter
from appliance.shm.ring import RingPair
from lab.scratch_layout import scratch_layout
from services.controller import disk_commands

MIB = 1 << 20


def test_the_controllers_share_is_what_it_makes() -> None:
    assert (CONTROLLER_ARENA_BYTES, CONTROLLER_RING_ENTRIES) == (disk_commands.ARENA_BYTES, disk_commands.RING_ENTRIES)


def test_the_need_is_what_the_objects_of_a_box_hold() -> None:
    settings: dict[str, SettingValue] = {"acceptor.arena.bytes": 5 * MIB, "ingest.arena.bytes": MIB, "socket.request.max.bytes": 2 * MIB}
    settings["replica.fetcher.arena.bytes"] = 4 * MIB
    box = Box("need", 1, [Disk("d0", "/d0"), Disk("d1", "/d1")], "", "", "", 0, 0, 0, embedded_zookeeper=False, settings=settings)
    life = SystemClock().monotonic_ns()
    entries = box.integer("channel.ring.entries")
    reader_bytes = box.integer("log.reader.arena.bytes")
    sizes = {"acceptor@0": (5 * MIB, entries), "ingest@0": (MIB, entries), "controller": (CONTROLLER_ARENA_BYTES, CONTROLLER_RING_ENTRIES)}
    sizes["coordinator"] = (box.integer("coordinator.arena.bytes"), entries)
    sizes["replica-fetcher"] = (4 * MIB, entries)
    made: list[object] = []
    with scratch_layout() as layout:
        made += [Counters.create_or_adopt(layout, name, life) for name in [*box.process_names(), "supervisor"]]
        made += [PartitionTableWriter.create(layout.shared_memory_name("table", disk.name, life), life) for disk in box.disks]
        for disk in box.disks:
            pieces = PieceMemory.create(layout.shared_memory_name("arena", f"log-reader@{disk.name}", life), reader_bytes, life)
            assert all(pieces.allocate(slot) for slot in range(pieces.slots)), "while cold data are read"
            made.append(pieces)
        for source, (arena_bytes, ring_entries) in sizes.items():
            made.append(Source(layout, source, life, arena_bytes, ring_entries))
            made += [RingPair.create(layout.shared_memory_name("channel", f"{source}.{disk.name}.1", life), ring_entries, life) for disk in box.disks]
        need = shared_memory_need(box)
        assert held_bytes(layout.shared_memory_prefix) == need.arenas + need.others
        assert need.restart > 8 * MIB, "the acceptor's 5 MiB are rounded up to a power of two"
    assert held_bytes(layout.shared_memory_prefix) == 0


def test_the_default_box_does_not_fit_where_only_its_arenas_do() -> None:
    need = need_of(resolve_options(RunOptions(), cores=1)[0])
    assert need.arenas >> 20 == 192 + 2 * 32 + 16, "acceptor, ingest, two log-readers and coordinator"
    problem = shared_memory_problem(need, 274 * MIB)
    assert problem is not None and "274 MiB free" in problem and "272 for arenas" not in problem.partition("needs")[0]
    assert shared_memory_problem(need, need.total - 1) is not None
    assert shared_memory_problem(need, need.total) is None
    assert need.total < (340 + 2 * 33 + 16) * MIB, "the coordinator has an arena of 16"


def test_only_a_box_that_may_have_neighbours_reserves_memory_for_copies() -> None:
    alone = Box("need", 1, [Disk("d0", "/d0")], "", "", "", 0, 0, 0)
    need = shared_memory_need(alone)
    assert shared_memory_need(alone._replace(embedded_zookeeper=False)).arenas - need.arenas > 64 * MIB
    assert shared_memory_need(alone._replace(zookeeper_members=["1=10.0.0.1:2181:2888:3888"])).arenas - need.arenas > 64 * MIB


def test_every_further_process_and_disk_needs_more() -> None:
    def total(**options: object) -> int:
        return need_of(resolve_options(RunOptions(**options), cores=1)[0]).total  # type: ignore[arg-type]

    assert total(acceptors=2) - total() > 128 * MIB
    assert total(data=["/a", "/b", "/c"]) > total(data=["/a", "/b"])


def test_what_is_needed_is_said_in_parts() -> None:
    problem = shared_memory_problem(SharedMemoryNeed(192 * MIB, 128 * MIB, 5 * MIB - 1), 100 * MIB)
    assert problem is not None
    assert "needs 325 MiB (192 for arenas, 128 for a process that restarts, 5 for tables, rings and counters)" in problem
