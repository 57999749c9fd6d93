"""The replication throttle: which replicas it applies to, and its mean rate for any piece sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.base.model import TopicId
from appliance.cluster.broker_configs import CLOSED, FOLLOWER_RATE, LEADER_RATE, closed_brokers, dynamic_config_problem
from appliance.cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from appliance.cluster.replication_throttle import PIECE_BYTES_MIN, ReplicationThrottle

TOPIC_ID = TopicId(bytes(range(16)))
SECOND = 1_000_000_000


def image(rates: dict[str, str], **config: str) -> MetadataImage:
    partitions = (PartitionImage(1, 0, (1, 2), (1,)), PartitionImage(1, 0, (1, 2), (1, 2)), PartitionImage(1, 0, (1, 2), (1,)))
    configs = {f"{side}.replication.throttled.replicas": replicas for side, replicas in config.items()}
    return MetadataImage(1, "c", 1, {}, {"t": TopicImage("t", TOPIC_ID, partitions, configs)}, rates)


def follower(rate: str, replicas: str, broker_id: int = 2) -> ReplicationThrottle:
    throttle = ReplicationThrottle(is_follower=True)
    throttle.set_image(image({FOLLOWER_RATE: rate}, follower=replicas), broker_id)
    return throttle


def test_a_follower_is_throttled_where_it_is_listed_and_not_in_sync() -> None:
    assert follower("1000", "0:2, 1:2,2:3,7:2").replicas == {(TOPIC_ID, 0)}
    assert follower("1000", "*").replicas == {(TOPIC_ID, 0), (TOPIC_ID, 2)}
    assert follower("1000", "").replicas == frozenset()


def test_a_leader_is_throttled_where_it_is_listed() -> None:
    throttle = ReplicationThrottle(is_follower=False)
    throttle.set_image(image({LEADER_RATE: "1000"}, leader="0:1,1:1", follower="2:1"), 1)
    assert throttle.replicas == {(TOPIC_ID, 0), (TOPIC_ID, 1)} and throttle.bytes_per_second == 1000


def test_without_a_rate_nothing_is_throttled() -> None:
    throttle = ReplicationThrottle(is_follower=True)
    throttle.set_image(image({}, follower="*"), 2)
    throttle.record(1 << 40, 5)
    assert throttle.replicas == frozenset() and throttle.is_open(5) and throttle.piece_bytes(1 << 20) == 1 << 20


def test_another_rate_holds_at_once() -> None:
    throttle = follower("1", "*")
    throttle.record(1 << 30, 0)
    assert not throttle.is_open(SECOND)
    throttle.set_image(image({FOLLOWER_RATE: "1000000"}, follower="*"), 2)
    assert throttle.is_open(SECOND)


def test_pieces_are_as_small_as_the_rate_but_never_tiny() -> None:
    assert follower("1", "*").piece_bytes(1 << 20) == PIECE_BYTES_MIN
    assert follower(str(1 << 20), "*").piece_bytes(1 << 20) == 1 << 19


@given(st.integers(1, 1 << 30), st.lists(st.tuples(st.integers(0, 1 << 24), st.integers(0, 3 * SECOND)), min_size=1, max_size=30))
def test_the_mean_is_kept(rate: int, pieces: list[tuple[int, int]]) -> None:
    throttle = follower(str(rate), "*")
    now_ns, copied = SECOND, 0
    for size_bytes, later_ns in pieces:
        now_ns = max(now_ns, throttle.opens_ns) + later_ns
        assert throttle.is_open(now_ns)
        throttle.record(size_bytes, now_ns)
        copied += size_bytes
    assert copied <= rate * (throttle.opens_ns - SECOND) / SECOND + len(pieces) * rate + len(pieces)


def test_closed_brokers_are_a_list_of_ids() -> None:
    assert closed_brokers({CLOSED: "3, 12,"}) == {3, 12} and closed_brokers({}) == frozenset()
    assert dynamic_config_problem({CLOSED: ""}) is None and dynamic_config_problem({CLOSED: "3,4"}) is None
    assert dynamic_config_problem({CLOSED: "3,b4"}) is not None


def test_rates_are_numbers_of_bytes_and_nothing_else_is_dynamic() -> None:
    assert dynamic_config_problem({FOLLOWER_RATE: "0", LEADER_RATE: str(2**63 - 1)}) is None
    for bad in ({FOLLOWER_RATE: "-1"}, {FOLLOWER_RATE: "fast"}, {FOLLOWER_RATE: str(2**63)}, {"num.partitions": "3"}):
        assert dynamic_config_problem(bad) is not None
