"""Runs fetcher.c: large Fetch requests, one in flight on each connection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from loadtest.generators.compiler import compile_generator
from loadtest.generators.fetch_frame import FetchLayout
from loadtest.load_generator import LoadGenerator

SPARE_BYTES = 2 << 20
"""A reply may be larger than was asked for by its head, and by a first batch that has to be whole."""
PATIENCE_SECONDS = 60.0


class Fetched(NamedTuple):
    """Every reply was there, with error 0, and its batches without a gap."""

    replies: int
    record_bytes: int
    records: int
    receives: int
    p50_us: int
    p99_us: int
    seconds: float
    cpu_seconds: float


class LargeFetcher:
    """Compiled and ready to be started."""

    def __init__(self, directory: Path) -> None:
        self._program = compile_generator("fetcher", directory)
        self._directory = directory

    def run(self, address: tuple[str, int], frames: Sequence[bytes], layout: FetchLayout, connections: int, fetch_bytes: int, seconds: float) -> Fetched:
        """Connection i reads as frame i modulo their number says, from the offset in it to the end again and again; 0 seconds: once, with every checksum
        computed. Raises BenchmarkFailed with the fetcher's words if a reply was wrong."""
        files = []
        for index, frame in enumerate(frames):
            files.append(self._directory / f"fetch-{index}")
            files[-1].write_bytes(frame)
        numbers = [connections, seconds, fetch_bytes + SPARE_BYTES, *layout]
        with LoadGenerator("fetcher", [str(self._program), address[0], str(address[1]), *map(str, numbers), *map(str, files)]) as generator:
            generator.await_ready()
            generator.go()
            finished = generator.finish(seconds + PATIENCE_SECONDS)
        return Fetched(**json.loads(finished.output.splitlines()[-1]), cpu_seconds=finished.cpu_seconds)
