"""Token buckets of senders: rates, bursts, what all senders of a listener share, and the bound of the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.senders.listener import Listener, ListenerTransport, Protocol
from appliance.senders.sender_accounts import SENDERS_MAX
from appliance.shm.counters import Counters
from lab.scratch_layout import make_layout, remove_layout
from services.ingest.listeners import sender_quotas
from services.ingest.listeners.sender_quotas import BURST_SECONDS, CREDIT_BYTES, SenderBucket, SenderQuotas
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.event import EventSource
from services.ingest.records.ingest_ledger import IngestLedger, SenderLedgers

LISTENER = Listener("test", Protocol.SYSLOG, ListenerTransport.TCP, 0)


class Traffic:
    """Senders that always have more to send."""

    def __init__(self, **rates: int) -> None:
        self.clock = ManualClock()
        self.quotas = SenderQuotas(LISTENER._replace(**rates), self.clock)
        self.records: dict[str, int] = {}

    def wait_ms(self, bucket: SenderBucket, address: str) -> int:
        return bucket.wait_ms(self.records.get(address, 0), sum(self.records.values()))

    def taken(self, address: str, seconds: int, piece_bytes: int = 10_000, records: int = 0) -> int:
        """The pieces that were taken in so many seconds."""
        bucket, taken = self.quotas.bucket_of(address), 0
        for _ in range(seconds * 100):
            while bucket.bytes_left >= 0 or not self.wait_ms(bucket, address):
                bucket.bytes_left -= piece_bytes
                self.records[address] = self.records.get(address, 0) + records
                taken += 1
            self.clock.advance_ms(10)
        return taken


def test_a_sender_has_its_rate_after_a_burst() -> None:
    traffic = Traffic(sender_bytes_per_second=1_000_000)
    burst = traffic.taken("a", 10) * 10_000
    assert burst == pytest.approx((10 + BURST_SECONDS) * 1_000_000, rel=0.02)
    assert traffic.taken("a", 10) * 10_000 == pytest.approx(10_000_000, rel=0.02)


def test_records_count_whatever_their_size() -> None:
    traffic = Traffic(sender_records_per_second=1_000)
    traffic.taken("a", 5, CREDIT_BYTES, 100)
    assert traffic.taken("a", 10, CREDIT_BYTES, 100) * 100 == pytest.approx(10_000, rel=0.1)


def test_senders_of_a_listener_share_its_quota_and_no_sender_takes_another_s() -> None:
    traffic = Traffic(sender_bytes_per_second=1_000_000, bytes_per_second=2_000_000)
    traffic.taken("a", 4)
    before = traffic.clock.monotonic_ms()
    waits = [traffic.quotas.bucket_of(address) for address in ("b", "c", "d", "e")]
    for bucket in waits:
        bucket.bytes_left -= 1_500_000
    assert [bool(traffic.wait_ms(bucket, "")) for bucket in waits] == [False, False, True, True] and traffic.clock.monotonic_ms() == before


def test_without_a_quota_no_sender_waits() -> None:
    bucket = Traffic().quotas.bucket_of("a")
    bucket.bytes_left -= 1 << 40
    assert not bucket.wait_ms(1 << 40, 1 << 40) and bucket.bytes_left > 0


def test_what_exceeds_a_burst_is_repaid() -> None:
    traffic = Traffic(sender_bytes_per_second=1_000)
    bucket = traffic.quotas.bucket_of("a")
    bucket.bytes_left -= 102_000
    assert traffic.wait_ms(bucket, "a") == pytest.approx(100_000, abs=10)
    traffic.clock.advance_ms(99_000)
    assert traffic.wait_ms(bucket, "a")
    while wait_ms := traffic.wait_ms(bucket, "a"):
        traffic.clock.advance_ms(wait_ms)
    assert traffic.clock.monotonic_ms() < 200_000


def test_addresses_of_one_ipv6_network_share_a_bucket_and_mapped_ones_are_ipv4() -> None:
    quotas = Traffic().quotas
    assert quotas.bucket_of("2001:db8::1") is quotas.bucket_of("2001:db8::ffff:2") is not quotas.bucket_of("2001:db8:0:1::1")
    assert quotas.bucket_of("::ffff:192.0.2.1") is quotas.bucket_of("192.0.2.1")
    assert quotas.bucket_of("fe80::1%eth0") and quotas.bucket_of("")


def test_the_table_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_quotas, "ADDRESSES_MAX", 100)
    quotas = Traffic().quotas
    for number in range(1_000):
        quotas.bucket_of(f"10.0.{number >> 8}.{number & 255}")
    assert len(quotas) == 100


class CountedSenders:
    """Senders whose records an ingest's ledger counts, on connections that stay open."""

    def __init__(self, directory: Path, records_per_second: int) -> None:
        self.listener = LISTENER._replace(sender_records_per_second=records_per_second)
        self.clock = ManualClock()
        self.layout = make_layout()
        self.senders = SenderLedgers(BoxLayout(str(directory)), "ingest@0", self.clock)
        self.ledger = IngestLedger([self.listener], self.senders, Counters.create_or_adopt(self.layout, "ingest@0", 1))
        self.quotas = SenderQuotas(self.listener, self.clock)
        self.groups: dict[str, AckGroup] = {}

    def send(self, address: str, records: int) -> int:
        """Return how many milliseconds the sender has to wait after these records."""
        host = address.encode()
        group = self.groups.setdefault(address, AckGroup(self.listener, EventSource(host, host, b"tcp")))
        self.ledger.on_received(group, records, self.clock.wall_ms())
        bucket = self.quotas.bucket_of(address)
        bucket.bytes_left = -1
        return bucket.wait_ms(*self.ledger.records_of(self.listener, host))


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[CountedSenders]:
    counted = CountedSenders(tmp_path, 1_000)
    yield counted
    remove_layout(counted.layout)


def test_two_hosts_of_one_ipv6_network_are_charged_only_what_they_send(counted: CountedSenders) -> None:
    fast, slow = "2001:db8::1", "2001:db8::2"
    counted.send(fast, 0)
    counted.send(slow, 0)
    waits = []
    for _ in range(300):
        waits += [counted.send(fast, 100), counted.send(slow, 10)]
        counted.clock.advance_ms(1_000)
    assert not any([*waits, counted.send(fast, 0)])
    assert counted.send(slow, 10_000) == pytest.approx(8_000, abs=200), "the quota is that of both"
    assert counted.send(fast, 0) == pytest.approx(8_000, abs=200)


def test_the_quota_of_an_open_connection_goes_on_when_its_account_is_folded(counted: CountedSenders) -> None:
    sender = "192.0.2.1"
    counted.send(sender, 0)
    counted.clock.advance_ms(1)
    for number in range(SENDERS_MAX):
        counted.senders.of(b"10.0.%d.%d" % (number >> 8, number & 255))
    assert not counted.send(sender, 1_000)
    assert counted.send(sender, 11_000) == pytest.approx(10_000, abs=10)


def test_handshakes_beyond_the_rate_wait_once_each_and_in_their_order() -> None:
    traffic = Traffic(tls_handshakes_per_second=50)
    bucket = traffic.quotas.bucket_of("a")
    waits = [bucket.reserve_handshake() for _ in range(400)]
    assert waits[:100] == [0] * 100
    assert waits[100:] == [pytest.approx(20 * place, abs=1) for place in range(1, 301)]
    traffic.clock.advance_ms(6_000)
    bucket.return_handshake()
    assert bucket.reserve_handshake() == 0 < bucket.reserve_handshake()
