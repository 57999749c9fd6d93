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
from appliance.shm.arena import DATA_POSITION, PieceMemory
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
    sealed: list[Source | RingPair] = []
    with scratch_layout() as layout:
        made += [Counters.create_or_adopt(layout, name, life) for name in [*box.process_names(), "supervisor"]]
        made += [PartitionTableWriter.create(layout.shared_memory_name("table", disk.name, life), life) for disk in box.disks]
        for disk in box.disks:
            pieces = PieceMemory.create(layout.shared_memory_name("arena", f"log-reader@{disk.name}", life), reader_bytes, life)
            assert all(pieces.allocate(slot) for slot in range(pieces.slots)), "while cold data are read"
            made.append(pieces)
        for source, (arena_bytes, ring_entries) in sizes.items():
            sealed.append(Source(layout, source, life, arena_bytes, ring_entries))
            sealed += [RingPair.create("rings", ring_entries, life) for disk in box.disks]
        need = shared_memory_need(box)
        assert held_bytes(layout.shared_memory_prefix) == need.cold_reads + need.others
        objects = [each.arena.shared if isinstance(each, Source) else each.shared for each in sealed]
        restarting = 8 * MIB + DATA_POSITION + 2 * len(objects[1].memory)
        assert sum(len(each.memory) for each in objects) + restarting == need.sealed, "the acceptor's 5 MiB are rounded up to a power of two"
        assert need.restart > reader_bytes
        for each in sealed:
            each.close()
    assert held_bytes(layout.shared_memory_prefix) == 0


def test_the_default_box_does_not_fit_where_only_its_arenas_do() -> None:
    need = need_of(resolve_options(RunOptions(), cores=1)[0])
    assert need.sealed >> 20 == 192 + 16 + 1 + 128 + 1, "acceptor, ingest, coordinator, controller, an acceptor that restarts, and rings"
    assert need.cold_reads >> 20 == 2 * 32, "two log-readers"
    problem = shared_memory_problem(need, 64 * MIB, need.sealed)
    assert problem is not None and "64 MiB free" in problem and "65 for cold reads" in problem.partition("needs")[2]
    assert shared_memory_problem(need, need.total - 1, need.sealed) is not None
    assert shared_memory_problem(need, need.total, need.sealed) is None
    assert need.total < 128 * MIB


def test_a_box_whose_arenas_need_more_than_half_of_the_memory_does_not_start() -> None:
    need = need_of(resolve_options(RunOptions(), cores=1)[0])
    problem = shared_memory_problem(need, need.total, need.sealed - 1)
    assert (
        problem is not None and "arenas and rings need 339 MiB" in problem and "more than half of the memory of this machine or container (338 MiB)" in problem
    )


def test_only_a_box_that_may_have_neighbours_reserves_memory_for_copies() -> None:
    alone = Box("need", 1, [Disk("d0", "/d0")], "", "", "", 0, 0, 0)
    need = shared_memory_need(alone)
    assert shared_memory_need(alone._replace(embedded_zookeeper=False)).sealed - need.sealed > 64 * MIB
    assert shared_memory_need(alone._replace(zookeeper_members=["1=10.0.0.1:2181:2888:3888"])).sealed - need.sealed > 64 * MIB


def test_every_further_process_and_disk_needs_more() -> None:
    def total(**options: object) -> int:
        return need_of(resolve_options(RunOptions(**options), cores=1)[0]).total  # type: ignore[arg-type]

    def sealed(**options: object) -> int:
        return need_of(resolve_options(RunOptions(**options), cores=1)[0]).sealed  # type: ignore[arg-type]

    assert sealed(acceptors=2) - sealed() > 128 * MIB
    assert total(data=["/a", "/b", "/c"]) > total(data=["/a", "/b"])


def test_what_is_needed_is_said_in_parts() -> None:
    problem = shared_memory_problem(SharedMemoryNeed(0, 192 * MIB, 128 * MIB, 5 * MIB - 1), 100 * MIB, 0)
    assert problem is not None
    assert "needs 325 MiB (192 for cold reads, 128 for a process that restarts, 5 for tables and counters)" in problem
