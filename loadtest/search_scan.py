"""How fast a search reads: `python -m loadtest.search_scan [MEGABYTES] [DIRECTORY] [CODEC…]`.

No box is started: a partition's segments are written as ingest writes them (batches of 64 KiB; uncompressed, then zstd), and the search's own
code scans them on one thread, beside `grep` over the same lines and `zstdcat | grep`, and ripgrep if it is installed. CPU seconds count (user and
system), because the machine may be busy; the files are in the page cache. Then the summaries of the segments (of log.segment.bytes, 1 GiB) are
made as a log-writer's helper makes them, and a word that one segment has is searched with them. Nothing is asserted; figures are in
README.md. Weak spot: one kind of line.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from appliance.base.model import LeaderEpoch, Offset, Position, TopicId
from appliance.pipeline.local_rows import LocalRow
from appliance.records.batch import stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec
from appliance.runtime.spawning import PARENT_VARIABLE
from appliance.shm.partition_table import ROLE_LEADER, Row
from appliance.storage.directory_identity import encode_partition_metadata
from services.search.partition_scan import PartitionScan, Wanted

TOPIC_ID = TopicId(b"0123456789abcdef")
BATCH_BYTES = 64 << 10
SEGMENT_BYTES = 1 << 30
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
    """Write segments, the last of which is the active one."""
    directory.mkdir()
    (directory / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    base = offset = active = 0
    builder, filled = BatchBuilder(codec), 0
    file = _new_segment(directory, 0)
    for line in lines(count):
        builder.append(FIRST_MS + offset, None, line, ())
        filled += len(line)
        offset += 1
        if filled >= BATCH_BYTES or offset == count:
            batch = bytearray(builder.build(-1, -1))
            stamp_batch(batch, 0, Offset(base), LeaderEpoch(0))
            if file.tell() + len(batch) > SEGMENT_BYTES:
                file.close()
                file, active = _new_segment(directory, base), base
            file.write(batch)
            builder, filled, base = BatchBuilder(codec), 0, offset
    end, place, last = Offset(count), Position(file.tell()), Offset(active)
    file.close()
    row = Row(TOPIC_ID, 0, 1, ROLE_LEADER, LeaderEpoch(0), Offset(0), end, end, end, 1, 1, 0, last, place, last, place, 1)
    table: Any = OneRow(row)
    return LocalRow(TOPIC_ID, str(directory), table, 0, row)


def _new_segment(directory: Path, base: int) -> BinaryIO:
    for suffix in ("index", "timeindex"):
        (directory / f"{base:020d}.{suffix}").write_bytes(b"")
    return open(directory / f"{base:020d}.log", "wb")


def scan(found: LocalRow, query: str, uses_summaries: bool = False) -> tuple[int, int]:
    """Return the number of matches, and the bytes that were skipped."""
    scan = PartitionScan(found, "searched", 0, Wanted.of(query, 0, 1 << 60, uses_summaries))
    return sum(len(window.matches) for window in scan.windows()), scan.skipped_bytes


def summarize(found: LocalRow) -> None:
    """Make the summaries in a process, print what they cost, and search with them."""
    logs = sorted(Path(found.directory).glob("*.log"))[:-1]
    partition = {"directory": found.directory, "topic_id": TOPIC_ID.hex(), "bases": [int(path.stem) for path in logs], "checks_pages": False}
    job = Path(found.directory) / "job.json"
    job.write_text(json.dumps({"share_percent": 2, "bytes_per_second": 0, "partitions": [partition]}))
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    with open(job, "rb") as file:
        subprocess.run([sys.executable, "-P", "-m", "services.search.summarizer"], stdin=file, stdout=subprocess.DEVNULL, env=environment, check=True)
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    gigabytes = sum(path.stat().st_size for path in logs) / 1e9 or 1.0
    made = sum(path.stat().st_size for path in Path(found.directory).glob("*.summary")) / 1e9
    print(f"summaries of {len(logs)} segments: {made / gigabytes:.2%} of {gigabytes:.1f} GB, {cpu / gigabytes:.1f} cpu-s/GB, {took / gigabytes:.1f} s/GB")
    for query in (NEEDLE.decode(), "absent-0815", "host=db*", "id=4711", "severity<=crit"):
        started = time.monotonic()
        matches, skipped = scan(found, query, True)
        print(f"with summaries {query:32} {time.monotonic() - started:8.3f} s   {matches} records, {skipped / 1e9:.1f} GB skipped", flush=True)
    (anonymous,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    print(f"private memory after all searches: {int(anonymous) >> 10} MB")


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this process and its children, the least of three runs, or of as many as take 15 s."""

    def spent() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    took = []
    for _ in range(3):
        before = spent()
        work()
        took.append(spent() - before)
        if sum(took) > 15:
            break
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
        for codec in [Codec[name.upper()] for name in sys.argv[3:]] or (Codec.NONE, Codec.ZSTD):
            found = write_partition(place / codec.name, count, codec)
            summarize(found)
            for query in QUERIES:
                matches: list[int] = []
                seconds = cpu_seconds(lambda query=query, found=found, matches=matches: matches.append(scan(found, query)[0]))  # type: ignore[misc]
                print(f"millrace {codec.name.lower():5} {query:32} {size / 1e6 / seconds:8.0f}   {matches[-1]} records", flush=True)
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
