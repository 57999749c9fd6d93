"""Recovery of logs whose files end in garbage: tails behind the recovery point torn, zeroed, overwritten, reordered, doubled, grown or stale, in every kind
of file at once. What comes out is a prefix of what was appended, whole below the recovery point, and sound; or the log says that it cannot.

Weak spot: bytes keep their places and stale batches are older ones. A later batch that took the place of an earlier one would be accepted behind a
gap, which compaction leaves by design.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from appliance.base.errors import StorageFailed
from appliance.records.batch import LOG_OVERHEAD, MAGIC_AT
from appliance.storage.log_config import LogConfig
from tests.faults.log_integrity import verify
from tests.faults.tortured_log import TorturedLog, stored_batches
from tests.support.volatile_files import VolatileFiles

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=150)
EVERYDAY_ROUNDS = 60
FOUND_BY_CAMPAIGNS = (726_966_528_140,)
"""A torn time index whose last kept entry was as good as its batch, with garbage before it."""
SECONDS = int(os.environ.get("MILLRACE_TORTURE_SECONDS", "3600"))
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
BYTES_MAX = 8 << 20
"""Of Python's memory while a log of 10 KB is opened; a scan reads pieces of 1 MiB."""


def _mutate(content: bytes, from_position: int, chance: random.Random, others: list[bytes]) -> bytes:
    """Something else behind `from_position`."""
    head, tail = content[:from_position], bytearray(content[from_position:])
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(tail))
        kind = chance.randrange(9)
        if kind == 0:
            del tail[at:]
        elif kind == 1:
            end = chance.randint(at, len(tail))
            tail[at:end] = bytes(end - at)
        elif kind == 2:
            tail += bytes(chance.choice([1, 7, 61, 500, 4096]))
        elif kind == 3 and tail:
            tail[at % len(tail)] ^= 1 << chance.randrange(8)
        elif kind == 4:
            end = min(len(tail), at + chance.randint(1, 60))
            tail[at:end] = chance.randbytes(end - at)
        elif kind == 5:
            stale = chance.choice(others)[: chance.randint(0, 700)]  # of what lay here before
            tail[at : at + len(stale)] = stale
        elif kind == 6:
            blocks = [bytes(tail[start : start + 64]) for start in range(0, len(tail), 64)]
            chance.shuffle(blocks)
            tail = bytearray(b"".join(blocks))
        elif kind == 7:
            tail += tail[at:]
        elif len(tail) > at + 12:
            tail[at + 8 : at + 12] = chance.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\x31"])  # a length that lies
    return head + bytes(tail)


def _prepare(path: Path) -> tuple[TorturedLog, dict[str, int]]:
    """A log, flushed in its middle; and how long each file was then."""
    with VolatileFiles(str(path)):
        log = TorturedLog(path, CONFIG, random.Random(5))
        log.create()
        for number in range(4):
            log.append([20, 60, 130], producer_id=1, records=2)
            log.append_transaction(4, 50, ("commit", "abort")[number % 2])
        log.flush()
        lengths = {name: (log.path / name).stat().st_size for name in os.listdir(log.path)}
        for number in range(8):
            log.append([20, 60, 130], producer_id=2, records=2)
            if number % 3 == 0:
                log.new_epoch()
            log.append_transaction(5, 50, ("commit", "abort", "")[number % 3])
        log.abandon()
    return log, lengths


def _damage(path: Path, lengths: dict[str, int], chance: random.Random) -> None:
    others = [(path / name).read_bytes() for name in sorted(lengths) if name.endswith(".log")]
    for name in sorted(os.listdir(path)):
        durable, content = lengths.get(name, 0), (path / name).read_bytes()
        is_segment_file = name.endswith((".log", ".index", ".timeindex"))
        if is_segment_file and len(content) > durable and chance.random() < 0.4:  # it was written to since
            (path / name).write_bytes(_mutate(content, durable, chance, others))
        elif name not in lengths and chance.random() < 0.1:
            os.unlink(path / name)


def fuzz(seed: int, prepared: TorturedLog, lengths: dict[str, int], top: Path) -> str:
    """One log; how it went."""
    chance = random.Random(seed)
    path = top / "damaged"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(top / "prepared", path)
    log = TorturedLog(path, CONFIG, chance)
    log.memory, log.serial, log.leader_epoch = prepared.memory.copy(), prepared.serial, prepared.leader_epoch
    durable_end = log.memory.durable_end
    _damage(log.path, lengths, chance)
    with VolatileFiles(str(path)):
        try:
            log.open_as("power")
        except StorageFailed:
            log.abandon()
            return "refused"
        if _has_uncovered_damage(log):
            log.abandon()
            return "opened"
        log.settle("power")
        stored = stored_batches(log.path)
        assert [batch.raw for batch in stored if batch.header.last_offset < durable_end] == [
            batch.raw for batch in prepared.memory.history if batch.header.last_offset < durable_end
        ]
        verify(log, is_fresh=True)
        log.append([40], producer_id=6)
        log.close()
    return "opened"


def _has_uncovered_damage(log: TorturedLog) -> bool:
    """No checksum covers base offset and leader epoch of a batch: a flipped bit there may pass for a gap or an epoch, and what follows from it."""
    appended = {batch.raw for batch in log.memory.history}
    covered = {raw[LOG_OVERHEAD - 4 : LOG_OVERHEAD] + raw[MAGIC_AT:] for raw in appended}
    return any(raw not in appended and raw[LOG_OVERHEAD - 4 : LOG_OVERHEAD] + raw[MAGIC_AT:] in covered for _, raw in stored_batches(log.path))


def _run(disk: Path, seeds: Iterable[int]) -> set[str]:
    (disk / "prepared").mkdir(exist_ok=True)
    prepared, lengths = _prepare(disk / "prepared")
    results = set()
    for seed in seeds:
        try:
            results.add(fuzz(seed, prepared, lengths, disk))
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {problem!r}") from problem
    return results


@pytest.mark.slow
def test_recovery_makes_a_prefix_of_whatever_lies_behind_the_recovery_point() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as directory:
        tracemalloc.start()
        try:
            results = _run(Path(os.path.realpath(directory)), [*FOUND_BY_CAMPAIGNS, *range(EVERYDAY_ROUNDS)])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert results == {"opened"}
        assert peak < BYTES_MAX


@pytest.mark.deep
@pytest.mark.slow
def test_recovery_makes_a_prefix_for_as_long_as_there_is_time() -> None:
    """MILLRACE_TORTURE_SECONDS, seeds from the clock; a failure names its seed."""
    ends_at, first = time.monotonic() + SECONDS, time.time_ns() % 10**12
    while time.monotonic() < ends_at:
        with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as directory:
            _run(Path(os.path.realpath(directory)), range(first, first + 500))
        first += 500
