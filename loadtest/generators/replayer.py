"""Runs the frame replayer: the C program where a compiler is, else the slow one in Python, and says which."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from loadtest.generators.compiler import compile_generator, find_compiler
from loadtest.generators.produce_frame import ReplyLayout
from loadtest.load_generator import LoadGenerator

HERE = Path(__file__).parent
PATIENCE_SECONDS = 60.0


class Replayed(NamedTuple):
    """Every reply was there, in order, with error 0."""

    requests: int
    seconds: float
    p50_us: int
    p99_us: int
    requests_per_send: float
    cpu_seconds: float


class Replayer:
    """Ready to run; `language` is what it is written in."""

    def __init__(self, directory: Path, want_c: bool = True) -> None:
        is_c = want_c and find_compiler() is not None
        self._program = [str(compile_generator("replay", directory))] if is_c else [sys.executable, str(HERE / "replay_slowly.py")]
        self.language = "C" if is_c else "Python"
        self._directory = directory

    def run(
        self, address: tuple[str, int], frames: Sequence[bytes], reply: ReplyLayout, connections: int, in_flight: int, seconds: float, stride: int = 0
    ) -> Replayed:
        """Connection i sends frame i modulo their number, then frame i + `stride`, and so on. Raises BenchmarkFailed with the replayer's words if any
        reply was missing or wrong."""
        files = []
        for index, frame in enumerate(frames):
            files.append(self._directory / f"frame-{index}")
            files[-1].write_bytes(frame)
        numbers = [connections, in_flight, seconds, reply.size_bytes, reply.error_at, stride]
        arguments = [*self._program, address[0], str(address[1]), *map(str, numbers), *map(str, files)]
        with LoadGenerator(f"replayer ({self.language})", arguments) as generator:
            finished = generator.finish(seconds + PATIENCE_SECONDS)
        document = json.loads(finished.output)
        return Replayed(
            document["requests"],
            document["seconds"],
            document["p50_us"],
            document["p99_us"],
            document["requests"] / max(1, document["sends"]),
            finished.cpu_seconds,
        )
