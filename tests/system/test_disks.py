"""Disks as boxes have them: one more is added, names collide, a segment holds what cannot be opened."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from appliance.records.batch import ATTRIBUTES_AT, CRC_AT
from appliance.records.builder import BatchBuilder
from appliance.records.crc32c import crc32c
from tests.support.raw_client import RawClient
from tests.support.running_box import RunningBox, start_box

pytestmark = [pytest.mark.system, pytest.mark.slow]


def _batch(text: str, timestamp: int = 1_700_000_000_000) -> bytes:
    builder = BatchBuilder()
    builder.append(timestamp, None, text.encode())
    return builder.build()


def _batch_that_claims_gzip() -> bytes:
    """Valid header and CRC; its body is no gzip stream. Only who opens it can know."""
    batch = bytearray(_batch("not gzip"))
    batch[ATTRIBUTES_AT + 1] |= 1
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return bytes(batch)


def test_a_disk_whose_name_collides_can_be_added_and_every_partition_stays_served(start: Callable[..., RunningBox]) -> None:
    first = start()
    client = RawClient(first.kafka)
    client.create_topic("kept", 4)
    for partition in range(4):
        assert client.produce("kept", partition, _batch(f"record {partition}")).error_code == 0
    client.close()
    first.stop()
    second = start_box(first.directory, data=[first.directory / "other" / "d0", first.directory / "d0", first.directory / "d1"])
    try:
        client = RawClient(second.kafka)
        for partition in range(4):
            fetched = client.fetch("kept", partition, 0)
            assert (fetched.error_code, f"record {partition}".encode() in fetched.records) == (0, True)
            assert client.produce("kept", partition, _batch("more")).base_offset == 1
        client.close()
    finally:
        second.stop()
    assert second.leftovers() == []


def test_a_batch_that_cannot_be_opened_is_an_error_for_who_asks_and_harms_nobody(shared_box: RunningBox) -> None:
    client = RawClient(shared_box.kafka)
    client.create_topic("odd", 1)
    client.create_topic("even", 4)
    assert client.produce("odd", 0, _batch_that_claims_gzip()).error_code == 0
    pids = shared_box.pids()
    with pytest.raises(AssertionError, match="2"):
        client.list_offset("odd", 0, 1_600_000_000_000)
    for partition in range(4):
        assert client.produce("even", partition, _batch("sound")).error_code == 0
        assert client.list_offset("even", partition, 1_600_000_000_000) == 0
    assert shared_box.pids() == pids
    client.close()
