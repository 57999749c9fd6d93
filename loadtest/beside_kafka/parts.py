"""The parts by name, in the order of the table. A new one is a module here and a line below."""

from __future__ import annotations

from loadtest.beside_kafka.lives import PartitionsPart, RestartPart, StartPart
from loadtest.beside_kafka.replicated import ReplicatedPart
from loadtest.beside_kafka.replicated_partitions import ReplicatedPartitionsPart
from loadtest.beside_kafka.requests import LatencyPart, RequestsPart
from loadtest.beside_kafka.rows import Part, Row
from loadtest.beside_kafka.throttled import QuotasPart
from loadtest.beside_kafka.throughput import ConsumePart, ProducePart, TlsPart

_ALL: tuple[Part, ...] = (
    ProducePart(), ConsumePart(), TlsPart(), QuotasPart(), RequestsPart(), LatencyPart(), StartPart(), RestartPart(), PartitionsPart(), ReplicatedPart(),
    ReplicatedPartitionsPart(),
)  # fmt: skip
PARTS = {part.name: part for part in _ALL}


def rows_of(part: Part) -> list[Row]:
    return [row for cell in part.cells for row in cell.rows]
