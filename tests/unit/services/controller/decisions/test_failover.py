"""Elections if a leader fails: the decisions, one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.cluster.znodes import PartitionState
from services.controller.decisions.leader_selection import after_death, after_unclean_boot, take_up, withdraw

REPLICAS = (1, 2, 3)
BROKERS = st.integers(1, 3)


def state(leader: int, *isr: int, epoch: int = 5) -> PartitionState:
    return PartitionState(leader, epoch, 1, isr)


def test_a_dead_leader_is_replaced_by_the_first_in_sync_that_may_lead() -> None:
    assert after_death(state(1, 1, 2, 3), REPLICAS, (2, 3), (2, 3), False, 7) == PartitionState(2, 6, 7, (2, 3))
    assert after_death(state(1, 1, 2, 3), REPLICAS, (2, 3), (3,), False, 7) == PartitionState(3, 6, 7, (3,)), "2 is about to stop"
    assert after_death(state(1, 1), REPLICAS, (2, 3), (2, 3), False, 7) == PartitionState(-1, 6, 7, (1,))
    assert after_death(state(1, 1), REPLICAS, (2, 3), (2, 3), True, 7) == PartitionState(2, 6, 7, (2,), 1)


def test_a_dead_follower_leaves_the_set_under_the_same_epoch() -> None:
    assert after_death(state(1, 1, 2, 3), REPLICAS, (1, 3), (1, 3), False, 7) == PartitionState(1, 5, 7, (1, 3))
    assert after_death(state(1, 1, 3), REPLICAS, (1, 3), (1, 3), False, 7) is None


def test_an_offline_partition_waits_for_the_replica_in_sync() -> None:
    assert after_death(state(-1, 1), REPLICAS, (1, 2), (1, 2), True, 7) is None, "its disk may be dead, and only its box knows"
    assert after_death(state(-1, 1), REPLICAS, (2, 3), (2, 3), False, 7) is None
    assert after_death(state(-1, 1), REPLICAS, (2, 3), (2, 3), True, 7) == PartitionState(2, 6, 7, (2,), 1)
    assert take_up(state(-1, 1), 1) == state(1, 1, epoch=6)
    assert take_up(state(-1, 1), 2) is None and take_up(state(3, 1, 3), 1) is None


def test_a_replica_that_cannot_serve_hands_over_and_leaves_the_set() -> None:
    assert withdraw(state(1, 1, 2, 3), REPLICAS, 1, (1, 2, 3)) == state(2, 2, 3, epoch=6)
    assert withdraw(state(1, 3, 1), (1, 2, 3), 1, (1, 2, 3)) == state(3, 3, epoch=6)
    assert withdraw(state(2, 1, 2), REPLICAS, 1, (1, 2, 3)) == state(2, 2)
    assert withdraw(state(2, 2, 3), REPLICAS, 1, (1, 2, 3)) is None


def test_the_last_in_sync_stays_in_the_set_and_leads_no_more() -> None:
    assert withdraw(state(1, 1), REPLICAS, 1, (1, 2, 3)) == state(-1, 1, epoch=6)
    assert withdraw(state(1, 1, 2), REPLICAS, 1, (1, 3)) == state(-1, 1, 2, epoch=6), "the other does not live"
    assert withdraw(state(-1, 1), REPLICAS, 1, (1, 2, 3)) is None
    assert withdraw(state(1, 1), (1,), 1, (1, 2)) is None, "no other box has it"


def test_after_a_power_cut_one_that_lost_nothing_leads_or_the_epoch_is_raised() -> None:
    assert after_unclean_boot(state(1, 1, 2), REPLICAS, 1, (1, 2)) == state(2, 2, epoch=6)
    assert after_unclean_boot(state(2, 1, 2), REPLICAS, 1, (1, 2)) == state(2, 2)
    assert after_unclean_boot(state(1, 1, 2), REPLICAS, 1, (1,)) == state(1, 1, 2, epoch=6)
    assert after_unclean_boot(state(1, 1), (1,), 1, (1,)) == state(1, 1, epoch=6)
    assert after_unclean_boot(state(-1, 1, 2), REPLICAS, 1, (1, 2)) == state(2, 2, epoch=6)


def test_after_a_power_cut_a_follower_leaves_the_set_to_a_member_that_is_away() -> None:
    assert after_unclean_boot(state(-1, 1, 2), REPLICAS, 1, (1, 3)) == state(-1, 2), "only 2 has everything, whichever boxes run"
    assert after_unclean_boot(state(2, 1, 2), REPLICAS, 1, (1,)) == state(2, 2)
    assert after_unclean_boot(state(-1, 1), REPLICAS, 1, (1, 2, 3)) is None, "the last one stays"
    assert after_unclean_boot(state(2, 2, 3), REPLICAS, 1, (1, 2)) is None


@given(
    st.sampled_from([-1, 1, 2, 3]),
    st.lists(BROKERS, min_size=1, unique=True),
    st.sets(BROKERS),
    st.sets(BROKERS),
    BROKERS,
    st.booleans(),
)
def test_no_decision_empties_a_set_or_gives_leadership_outside_it_or_changes_the_leader_under_an_epoch(
    leader: int, isr: list[int], live: set[int], eligible: set[int], broker_id: int, unclean: bool
) -> None:
    before = state(leader, *isr) if leader in (-1, *isr) else state(isr[0], *isr)
    for after in (
        after_death(before, REPLICAS, live, eligible & live, unclean, 7),
        withdraw(before, REPLICAS, broker_id, eligible),
        after_unclean_boot(before, REPLICAS, broker_id, eligible),
        take_up(before, broker_id),
    ):
        if after is None:
            continue
        assert after.isr and after.leader in (-1, *after.isr)
        assert after.leader_epoch == before.leader_epoch + 1 or (after.leader == before.leader and after.leader_epoch == before.leader_epoch)
        if not after.leader_recovery_state:
            assert set(after.isr) <= set(before.isr)
