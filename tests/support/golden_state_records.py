"""Keys and values of state topics as Kafka 3.9.1's own classes write them (`tests/golden/state-records/`), by name and version."""

from __future__ import annotations

from pathlib import Path

_LINES = (Path(__file__).parent.parent / "golden" / "state-records" / "records.txt").read_text().split("\n")

RECORDS: dict[tuple[str, int], bytes] = {(name, int(version)): bytes.fromhex(data) for name, version, data in (line.split() for line in _LINES if line)}


def later_version(value: bytes, version: int) -> bytes:
    """`value` under another version."""
    return version.to_bytes(2, "big", signed=True) + value[2:]
