"""A good client at a steady rate: latencies of small produces, for benchmarks that ask what others do to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from loadtest.benchmark import BenchmarkFailed
from loadtest.generators.produce_frame import build_produce_frame, reply_layout
from loadtest.load_generator import LoadGenerator
from loadtest.topics import Broker

PROGRAM = Path(__file__).parent.parent / "generators" / "paced_producer.py"
FRAME_BYTES = 300
PATIENCE_SECONDS = 60.0


class Paced(NamedTuple):
    """Every request was answered without an error."""

    requests: int
    p50_us: int
    p99_us: int
    p999_us: int
    max_us: int
    cpu_seconds: float


def produce_at_a_pace(box: Broker, topic: str, connections: int, rate: float, seconds: float, acks: int = 1, leader: tuple[str, int] | None = None) -> Paced:
    """To partition 0, at `leader` if that is another than clients begin with. Raises BenchmarkFailed if a request was answered with an error or not at all."""
    frame_file, layout = box.directory / "paced-frame", reply_layout(topic)
    frame_file.write_bytes(build_produce_frame(topic, 0, FRAME_BYTES, acks))
    numbers: Sequence[float] = [connections, rate, seconds, layout.size_bytes, layout.error_at]
    host, port = leader or box.kafka
    arguments = [sys.executable, str(PROGRAM), host, str(port), *map(str, numbers), str(frame_file)]
    with LoadGenerator("paced producer", arguments) as generator:
        generator.await_ready()
        generator.go()
        finished = generator.finish(seconds + PATIENCE_SECONDS)
    document = json.loads(finished.output.splitlines()[-1])
    if document["requests"] < rate * seconds * 0.99:
        raise BenchmarkFailed(f"{document['requests']} requests of {rate * seconds:g} were answered")
    return Paced(document["requests"], document["p50_us"], document["p99_us"], document["p999_us"], document["max_us"], finished.cpu_seconds)
