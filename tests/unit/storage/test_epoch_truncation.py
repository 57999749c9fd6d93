"""Where diverged logs are truncated. A log here is the list of its records, (leader epoch, writer),
with the real epoch cache beside it.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.storage.leader_epoch_cache import truncation_offset
from tests.support.diverging_answers import diverging_answer
from tests.support.memory_epochs import MemoryEpochs

OUT_OF_RANGE = (-1, -1)


class EpochLog:
    """`reigns`: (leader epoch, number of records written under it); an epoch may have none."""

    def __init__(self, reigns: list[tuple[int, int]]) -> None:
        self.epochs: list[int] = []
        self.cache = MemoryEpochs()
        for epoch, count in reigns:
            self.cache.assign(epoch, len(self.epochs))
            self.epochs += [epoch] * count

    @property
    def end(self) -> int:
        return len(self.epochs)

    def cut(self, offset: int) -> None:
        del self.epochs[offset:]
        self.cache.truncate_from_end(self.end)

    def answer_to(self, follower: EpochLog) -> tuple[int, int] | None:
        return diverging_answer(follower.cache.latest, follower.end, self.cache.end_offset_for, self.end)


def agree(leader: EpochLog, follower: EpochLog) -> int:
    """Let the follower cut until the leader has nothing against it; how often it did."""
    for rounds in range(30):
        answer = leader.answer_to(follower)
        if answer is None:
            return rounds
        assert answer != OUT_OF_RANGE, "a leader knows its own epoch, which is the largest"
        follower.cut(truncation_offset(*answer, follower.cache.end_offset_for, follower.end))
    raise AssertionError(f"they never agree: {leader.cache.entries} and {follower.cache.entries}")


def test_logs_that_agree_are_not_cut() -> None:
    leader, follower = EpochLog([(1, 5), (2, 5)]), EpochLog([(1, 5), (2, 3)])
    assert agree(leader, follower) == 0 and follower.end == 8


def test_a_tail_of_the_same_epoch_that_the_leader_never_got_is_cut() -> None:
    leader, follower = EpochLog([(1, 5), (2, 0)]), EpochLog([(1, 9)])
    assert agree(leader, follower) == 1 and follower.end == 5


def test_an_epoch_that_the_leader_does_not_have_is_cut() -> None:
    leader, follower = EpochLog([(1, 5), (3, 9)]), EpochLog([(1, 5), (2, 4)])
    agree(leader, follower)
    assert follower.epochs == [1] * 5 and follower.cache.entries == ((1, 0),)


def test_an_epoch_without_a_record_does_not_make_the_same_question_come_back_for_ever() -> None:
    leader, follower = EpochLog([(1, 5), (3, 2)]), EpochLog([(1, 5), (2, 0)])
    assert agree(leader, follower) == 1
    assert follower.end == 5 and follower.cache.latest == 1


def test_several_epochs_that_only_the_follower_has_take_several_rounds() -> None:
    leader, follower = EpochLog([(1, 2), (4, 1), (9, 3)]), EpochLog([(1, 2), (3, 2), (5, 2), (7, 2)])
    assert agree(leader, follower) > 1 and follower.epochs == [1, 1]


def test_a_leader_that_knows_nothing_of_an_epoch_says_out_of_range() -> None:
    assert EpochLog([(1, 5)]).answer_to(EpochLog([(1, 2), (2, 1)])) == OUT_OF_RANGE


def test_a_log_without_epochs_is_not_asked() -> None:
    assert EpochLog([(1, 5)]).answer_to(EpochLog([])) is None


def test_an_undefined_answer_cuts_nothing() -> None:
    follower = EpochLog([(1, 5)])
    assert truncation_offset(-1, -1, follower.cache.end_offset_for, follower.end) == 5


def test_a_follower_that_forgot_its_epochs_is_cut_at_the_leaders_end() -> None:
    assert truncation_offset(1, 3, MemoryEpochs().end_offset_for, 8) == 3
    assert truncation_offset(1, 9, MemoryEpochs().end_offset_for, 8) == 8


_COUNTS = st.integers(0, 4)


@given(st.lists(_COUNTS, max_size=4), st.lists(st.tuples(st.integers(0, 2), _COUNTS), max_size=6), _COUNTS)
def test_whatever_their_past_they_agree_and_nothing_that_both_had_is_cut(shared: list[int], later: list[tuple[int, int]], last_reign: int) -> None:
    """`shared`: reigns that both saw; then each epoch was one replica's alone (0: the leader's, 1: the follower's), or the follower saw a part of it (2)."""
    leader, follower = [(epoch, count) for epoch, count in enumerate(shared)], [(epoch, count) for epoch, count in enumerate(shared)]
    has_forked = False
    for epoch, (whose, count) in enumerate(later, len(shared)):
        if whose == 2 and not has_forked:
            leader.append((epoch, count))
            follower.append((epoch, count // 2))
            has_forked = True
        elif whose == 1:
            follower.append((epoch, count))
            has_forked = True
        else:
            leader.append((epoch, count))
            has_forked = True
    leader.append((99, last_reign))
    leaders, followers = EpochLog(leader), EpochLog([reign for reign in follower if reign[1]] or follower[:0])
    common = 0
    while common < min(leaders.end, followers.end) and leaders.epochs[common] == followers.epochs[common]:
        common += 1
    agree(leaders, followers)
    assert followers.epochs == leaders.epochs[: followers.end]
    assert followers.end == common
