"""Quotas: which one limits a client, and throttle times as Kafka computes them (its `ClientQuotaManagerTest`)."""

from __future__ import annotations

import pytest

from appliance.cluster.quota_image import QuotaImage
from appliance.security.quotas import (
    CONNECTION_CREATION_RATE,
    PRODUCER_BYTE_RATE,
    QUOTA_KEYS,
    REQUEST_PERCENTAGE,
    SMALLEST,
    ClientQuotas,
    QuotaEntity,
    QuotaLimit,
    QuotaScope,
    SampledRate,
    TokenBucket,
    quota_problem,
    quota_text,
    quota_values,
)

ORDER = [
    (QuotaEntity("u", "c"), ("u", "c")),
    (QuotaEntity("u", ""), ("u", "c")),
    (QuotaEntity("u"), ("u", "")),
    (QuotaEntity("", "c"), ("u", "c")),
    (QuotaEntity("", ""), ("u", "c")),
    (QuotaEntity(""), ("u", "")),
    (QuotaEntity(None, "c"), ("", "c")),
    (QuotaEntity(None, ""), ("", "c")),
]
"""From the most specific to the least; what clients share."""


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_quota_counts_and_says_which_clients_share_it(first: int) -> None:
    quotas = ClientQuotas({entity: {PRODUCER_BYTE_RATE: 10.0 + index} for index, (entity, _) in enumerate(ORDER) if index >= first})
    assert quotas.limit(PRODUCER_BYTE_RATE, "u", "c") == QuotaLimit(QuotaScope(PRODUCER_BYTE_RATE, *ORDER[first][1]), 10.0 + first)
    assert quotas.limit(REQUEST_PERCENTAGE, "u", "c") is None


def test_a_client_without_an_id_has_only_its_users_quota() -> None:
    others = {entity: {PRODUCER_BYTE_RATE: 1.0} for entity, _ in ORDER if entity.client_id is not None}
    assert ClientQuotas(others).limit(PRODUCER_BYTE_RATE, "u", "") is None
    for user in ("", "u"):
        found = ClientQuotas({**others, QuotaEntity(user): {PRODUCER_BYTE_RATE: 7.0}}).limit(PRODUCER_BYTE_RATE, "u", "")
        assert found == QuotaLimit(QuotaScope(PRODUCER_BYTE_RATE, "u", ""), 7.0)
    assert not ClientQuotas({}).limit_requests and ClientQuotas(others).limit_requests


def test_an_address_has_its_own_quota_or_that_of_all_addresses_and_nothing_else() -> None:
    of_all, of_one = {QuotaEntity(address=""): {CONNECTION_CREATION_RATE: 5.0}}, {QuotaEntity(address="::1"): {CONNECTION_CREATION_RATE: 7.0}}
    quotas = ClientQuotas({**of_all, **of_one})
    assert quotas.connection_limit("::1") == QuotaLimit(QuotaScope(CONNECTION_CREATION_RATE, "::1", ""), 7.0)
    assert quotas.connection_limit("10.0.0.1") == QuotaLimit(QuotaScope(CONNECTION_CREATION_RATE, "10.0.0.1", ""), 5.0)
    assert ClientQuotas(of_one).connection_limit("10.0.0.1") is None
    assert quotas.limit_connections and not quotas.limit_requests and not ClientQuotas({}).limit_connections
    image = QuotaImage(1, {**of_all, **of_one, QuotaEntity(address="10.0.0.2"): {PRODUCER_BYTE_RATE: 1.0}})
    assert QuotaImage.decode(image.encode()) == QuotaImage(1, {**of_all, **of_one})


def test_a_spike_is_throttled_for_as_long_as_in_kafka_and_forgotten_when_its_window_has_passed() -> None:
    """400 bytes a second for ten seconds, then 2,300: 6,300 / 10.5 s = 600 bytes a second; (600 - 500) / 500 * 10.5 s = 2,100 ms."""
    rate, now_ms = SampledRate(), 1_000_000
    for _ in range(10):
        rate.record(400, now_ms)
        assert rate.throttle_ms(500.0, now_ms) == 0
        now_ms += 1_000
    now_ms += 500
    rate.record(2_300, now_ms)
    assert rate.throttle_ms(500.0, now_ms) == 2_100
    for _ in range(11):
        now_ms += 1_000
        rate.record(400, now_ms)
    assert rate.throttle_ms(500.0, now_ms) == 0
    assert not rate.is_idle(now_ms) and rate.is_idle(now_ms + 11_000)


def test_request_time_is_throttled_as_in_kafka() -> None:
    """4 ms a second for ten seconds, then 67.1 ms: 107.1 / 10.5 s = 1.02 %; (10.2 - 10) / 10 * 10.5 s = 210 ms."""
    rate, now_ms = SampledRate(), 1_000_000
    for _ in range(10):
        rate.record(0.4, now_ms)
        now_ms += 1_000
    now_ms += 500
    rate.record(6.71, now_ms)
    assert rate.throttle_ms(1.0, now_ms) == 210


def test_a_burst_is_measured_over_ten_seconds() -> None:
    rate = SampledRate()
    rate.record(100_000, 5)
    assert rate.throttle_ms(10_000.0, 5) == 0
    rate.record(50_000, 5)
    assert rate.throttle_ms(10_000.0, 5) == 5_000
    rate.record(-50_000, 5)
    assert rate.throttle_ms(10_000.0, 5) == 0
    rate.record(1e30, 5)
    assert rate.throttle_ms(1e-9, 5) == 2**31 - 1


def test_a_bucket_may_be_overdrawn_once_and_is_refilled() -> None:
    bucket = TokenBucket(2.0, 1_000)
    bucket.take(32, 1_000)
    assert bucket.throttle_ms(1_000) == 5_000
    assert bucket.throttle_ms(5_999) == 1 and bucket.throttle_ms(6_000) == 0
    assert bucket.fullness(16_999) < 1.0 == bucket.fullness(17_000)
    bucket.take(23, 1_000_000)
    assert bucket.throttle_ms(1_000_000) == 500, "no more tokens than at the beginning"


def test_values_that_no_quota_can_have_are_refused_and_skipped() -> None:
    assert quota_problem("producer_byte_rate", 1.0) is None and quota_problem("request_percentage", 0.5) is None
    for key, value in [("speed", 1.0), ("producer_byte_rate", 0.5), ("producer_byte_rate", 1e300), ("request_percentage", 0.0)]:
        assert quota_problem(key, value) is not None
    for value in (float("nan"), float("inf"), -1.0):
        assert quota_problem("request_percentage", value) is not None
    assert (quota_text("producer_byte_rate", 1e15), quota_text("request_percentage", 25)) == ("1000000000000000", "25.0")
    written = {"producer_byte_rate": "1024", "consumer_byte_rate": "much", "request_percentage": "nan", "controller_mutation_rate": "-1", "SCRAM-SHA-256": "x"}
    assert quota_values(written) == {"producer_byte_rate": 1024.0}


def test_the_smallest_and_the_largest_quota_give_throttle_times_within_bounds() -> None:
    for bound in (5e-324, SMALLEST, 1.7e308):
        rate, bucket = SampledRate(), TokenBucket(bound, 0)
        rate.record(2**62, 0)
        bucket.take(2**31, 0)
        for throttle_ms in (rate.throttle_ms(bound, 0), bucket.throttle_ms(0), bucket.throttle_ms(2**40)):
            assert 0 <= throttle_ms <= 2**31 - 1
    for key in QUOTA_KEYS:
        assert quota_problem(key, 5e-324) is not None
    assert quota_problem("request_percentage", SMALLEST) is None


def test_an_image_has_only_quotas_that_could_be_set() -> None:
    entity = QuotaEntity("u")
    encoded = QuotaImage(3, {entity: {"producer_byte_rate": 0.0, "consumer_byte_rate": 1.0, "request_percentage": 5e-324}}).encode()
    assert QuotaImage.decode(encoded) == QuotaImage(3, {entity: {"consumer_byte_rate": 1.0}})


def test_quotas_in_zookeeper_are_read_as_kafka_reads_them() -> None:
    """Kafka's `ZkAdminManager` and `UserConfigHandler`: 2^63 is written as the largest LONG, which Kafka uses for no limit."""
    largest = "9223372036854775807"
    assert quota_values({"producer_byte_rate": largest}) == {"producer_byte_rate": 2.0**63}
    assert quota_problem("producer_byte_rate", 2.0**63) is None and quota_text("producer_byte_rate", 2.0**63) == largest
    for text in ("1_0", "9223372036854775808", "1.0", "1e3", " 1", "1\n", "\u0661", "0", "-1", "1" * 5_000):
        assert quota_values({"producer_byte_rate": text}) == {}, text
    for text in ("1_0", "\u0661", "nan", "inf", "1e999", "1e-999", "0x1p3"):
        assert quota_values({"request_percentage": text}) == {}, text
    for text, value in (("10", 10.0), ("1e1", 10.0), (".5", 0.5), ("5.", 5.0), (" 2.5 ", 2.5), ("1.0E-4", 1e-4)):
        assert quota_values({"request_percentage": text}) == {"request_percentage": value}
    for value in (1e-6, 1e-7, 2.0**63 + 2048):
        assert quota_problem("producer_byte_rate", value) is not None, "it would be written as 0, or not as it is"
