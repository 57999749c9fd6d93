"""A follower's fetcher and its leader over random interleavings.

The leader's session equals the follower's state, no record is repeated or missing, and at rest the
follower has the log end and the high watermark of every partition.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.scratch_layout import scratch_layout
from services.acceptor.fetch.fetch_session import EPOCH_MAX
from tests.support.crossing_fetches import CrossingFetches

PARTITIONS, DISKS = 5, 2
PARTITION, DISK = st.integers(0, PARTITIONS - 1), st.integers(0, DISKS - 1)


def _step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
    return st.tuples(st.just(name), st.tuples(*arguments))


OFTEN = (
    _step("follow", PARTITION),
    _step("grow", PARTITION, st.sampled_from([1, 1, 2, 20])),
    _step("commit", PARTITION),
    _step("turn", st.integers(1, 3)),
    _step("request_arrives"),
    _step("answer_arrives"),
    _step("answer_begins"),
    _step("leader_turn", st.booleans()),
    _step("disk_goes_on", DISK, st.sampled_from([1, 1, 100])),
    _step("time", st.sampled_from([1, 5, 5, 20, 100, 300])),
    _step("all_goes_well", PARTITION),
    _step("cross", PARTITION, PARTITION, st.booleans(), st.booleans(), st.sampled_from(["", "begins", "quiet"])),
)
SELDOM = (
    _step("unfollow", PARTITION),
    _step("raise_epoch", PARTITION),
    _step("quiet"),
    _step("epochs_wrap"),
    _step("break_something", st.sampled_from(["connection", "session", *range(DISKS)])),
)
STEPS = st.lists(st.one_of(*OFTEN, *OFTEN, *OFTEN, *SELDOM), min_size=60, max_size=150)


class Interleaving:
    """Nothing goes on by itself: each step is one thing that happens."""

    def __init__(self, world: CrossingFetches) -> None:
        self.world = world

    # --- partitions

    def follow(self, partition: int) -> None:
        """Or otherwise: under the epoch that the leader has by now."""
        self.unfollow(partition)
        self.world.follow(partition)

    def unfollow(self, partition: int) -> None:
        if partition in self.world.followed:
            self.world.unfollow(partition)

    def raise_epoch(self, partition: int) -> None:
        self.world.raise_epoch(partition)

    def grow(self, partition: int, batches: int) -> None:
        self.world.grow(partition, batches)

    def commit(self, partition: int) -> None:
        self.world.commit(partition)

    # --- what is on its way

    def turn(self, count: int) -> None:
        self.world.connect()
        for _ in range(count):
            self.world.turn()

    def request_arrives(self) -> None:
        self.world.deliver_request()

    def answer_arrives(self) -> None:
        self.world.deliver_answer()

    def answer_begins(self) -> None:
        if self.world.stream is not None:
            self.world.stream.begin_frame()

    def leader_turn(self, serves: bool) -> None:
        self.world.leader_turn(serves)

    def disk_goes_on(self, disk: int, count: int) -> None:
        self.world.disks[disk].go_on(count)

    def time(self, milliseconds: int) -> None:
        self.world.clock.advance_ms(milliseconds)

    def all_goes_well(self, partition: int) -> None:
        """Else there would hardly ever be a session."""
        world = self.world
        world.grow(partition, 1)
        for _ in range(4):
            world.turn()
            world.connect()
            world.deliver_request()
            world.leader_turn()
            world.deliver_answer()
            world.turn()
            for disk in world.disks:
                disk.go_on(100)

    def cross(self, partition: int, newcomer: int, commits: bool, commits_later: bool, then: str) -> None:
        """A second fetch crosses an answer, as it can where all was well before."""
        world = self.world
        self.all_goes_well(partition)
        self.all_goes_well(partition)
        self.follow(newcomer)
        world.turn()
        world.disks[newcomer % DISKS].go_on(100)
        world.clock.advance_ms(5)
        world.grow(partition, 1)
        if commits:
            world.commit(partition)
        world.leader_turn()
        world.turn()
        if commits_later:
            world.commit(partition)
            world.deliver_request()
        if then == "begins":
            self.answer_begins()
            world.turn()
        elif then == "quiet":
            world.until_even()

    # --- what seldom happens

    def break_something(self, what: str | int) -> None:
        world = self.world
        if isinstance(what, int):
            world.disks[what].lose_all()
        elif what == "session":
            world.end_session()
        elif world.stream is not None:
            world.stream.end()

    def epochs_wrap(self) -> None:
        """Two thousand million fetches later."""
        session = self.world.lane.session
        kept = self.world.side.fetches.sessions.by_id.get(session.session_id)
        if self.world.is_quiet and kept is not None and not session.is_new:
            session.epoch = kept.expected_epoch = EPOCH_MAX

    def quiet(self) -> None:
        self.world.until_even()


@given(followed=st.sets(PARTITION), steps=STEPS)
@settings(max_examples=max(100, settings().max_examples), deadline=None)
def test_follower_and_leader_agree_whatever_crosses(followed: set[int], steps: list[tuple[str, tuple[Any, ...]]]) -> None:
    with scratch_layout() as layout, tempfile.TemporaryDirectory() as directory:
        world = CrossingFetches(layout, Path(directory) / "segment.log", PARTITIONS, disks=DISKS)
        try:
            for partition in followed:
                world.follow(partition)
            world.until_even()
            interleaving = Interleaving(world)
            for name, arguments in steps:
                getattr(interleaving, name)(*arguments)
                world.check_progress()
                world.check_session()
            world.until_even()
        finally:
            world.close()
