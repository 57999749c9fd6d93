"""How fast a search reads: `python -m loadtest.search_scan [MEGABYTES] [DIRECTORY]`.

No box is started: a partition's segments are written as ingest writes them (batches of 64 KiB; uncompressed, then zstd), and the search's own
code scans them on one thread, beside `grep` over the same lines and `zstdcat | grep`, and ripgrep if it is installed. CPU seconds count (user and
system), because the machine may be busy; the files are in the page cache. Nothing is asserted; figures are in docs/search.md. Weak spot:
one kind of line.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from appliance.base.model import LeaderEpoch, Offset, Position, TopicId
from appliance.pipeline.local_rows import LocalRow
from appliance.records.batch import stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.shm.partition_table import ROLE_LEADER, Row
from appliance.storage.directory_identity import encode_partition_metadata
from services.search.partition_scan import PartitionScan, Wanted

TOPIC_ID = TopicId(b"0123456789abcdef")
BATCH_BYTES = 64 << 10
FIRST_MS = 1_795_000_000_000
LINE = (
    b'{"time":"2026-11-21T01:54:57.%06d+00:00","host":"web%d","app":"nginx","proc_id":"%d","msg_id":null,"severity":%d,"severity_name":"info",'
    b'"facility":1,"facility_name":"user","structured_data":{},"message":"GET /api/v1/items/%d HTTP/1.1 200 %d upstream 10.0.3.%d took %d ms"}'
)
NEEDLE = b"needle-4711"
QUERIES = (NEEDLE.decode(), '"connection refused" host=web7', "/tim(e|ed)[- ]?out/", "severity<=err", "host=web7 -items", "-debug", "-items")


class OneRow(NamedTuple):
    """A partition table with one row."""

    row: Row

    def read(self, _index: int) -> Row:
        return self.row

    def aborted_end(self, _index: int) -> int:
        return 0

    def close(self) -> None:
        pass


def lines(count: int) -> Iterator[bytes]:
    """Lines of which one in 10,000 has a severity of err, and the middle one the needle."""
    for number in range(count):
        line = LINE % (number % 1_000_000, number % 40, 1_000 + number % 50, 3 if number % 10_000 == 0 else 6, number * 7_919 % 1_000_003,
                       number % 9_000, number % 255, number % 97)  # fmt: skip
        yield line.replace(b"took", NEEDLE) if number == count // 2 else line


def write_partition(directory: Path, count: int, codec: Codec) -> LocalRow:
    """Write one segment."""
    directory.mkdir()
    (directory / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    for suffix in ("index", "timeindex"):
        (directory / f"{0:020d}.{suffix}").write_bytes(b"")
    base = offset = size_bytes = 0
    builder, filled = BatchBuilder(codec), 0
    with open(directory / f"{0:020d}.log", "wb") as file:
        for line in lines(count):
            builder.append(FIRST_MS + offset, None, line, ())
            filled += len(line)
            offset += 1
            if filled >= BATCH_BYTES or offset == count:
                batch = bytearray(builder.build(-1, -1))
                stamp_batch(batch, 0, Offset(base), LeaderEpoch(0))
                size_bytes += file.write(batch)
                builder, filled, base = BatchBuilder(codec), 0, offset
    end, place = Offset(count), Position(size_bytes)
    row = Row(TOPIC_ID, 0, 1, ROLE_LEADER, LeaderEpoch(0), Offset(0), end, end, end, 1, 1, 0, Offset(0), place, Offset(0), place, 1)
    table: Any = OneRow(row)
    return LocalRow(TOPIC_ID, str(directory), table, 0, row)


def scan(found: LocalRow, query: str) -> int:
    """Return the number of matches."""
    windows = PartitionScan(found, "searched", 0, Wanted.of(query, 0, 1 << 60)).windows()
    return sum(len(window.matches) for window in windows)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this process and its children, the least of three runs."""

    def spent() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    took = []
    for _ in range(3):
        before = spent()
        work()
        took.append(spent() - before)
    return min(took)


def main() -> int:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    count = megabytes * 1_000_000 // len(LINE % (0, 0, 1_000, 6, 500_000, 1_000, 100, 10))
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as scratch:
        place = Path(scratch)
        text = place / "lines"
        with open(text, "wb") as file:
            file.writelines(line + b"\n" for line in lines(count))
        size = text.stat().st_size
        print(f"{size / 1e6:.0f} MB of lines, {count} records; MB of lines a CPU second")
        for codec in (Codec.NONE, Codec.ZSTD):
            found = write_partition(place / codec.name, count, codec)
            for query in QUERIES:
                seconds = cpu_seconds(partial(scan, found, query))
                print(f"millrace {codec.name.lower():5} {query:32} {size / 1e6 / seconds:8.0f}   {scan(found, query)} records", flush=True)
        subprocess.run(["zstd", "-q", "-f", str(text)], check=False) if shutil.which("zstd") else None
        others = [["grep", "-c", "-F", NEEDLE.decode(), str(text)], ["grep", "-c", "-i", NEEDLE.decode(), str(text)], ["rg", "-c", NEEDLE.decode(), str(text)]]
        if os.path.exists(f"{text}.zst"):
            others.append(["sh", "-c", f"zstdcat {text}.zst | grep -c -F {NEEDLE.decode()}"])
        for command in others:
            if shutil.which(command[0]):
                rate = size / 1e6 / cpu_seconds(partial(subprocess.run, command, stdout=subprocess.DEVNULL, check=False))
                print(f"{' '.join(command).replace(str(place) + '/', ''):47} {rate:8.0f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
