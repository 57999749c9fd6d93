"""A partition with three replicas in real log-writers, whatever happens to them: what was committed stays, and high watermarks are between two batches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.shm.partition_table import ROLE_LEADER
from appliance.storage import file_io
from tests.support.replicas import SteppedReplica, batch, check_watermark, fetch, replicas

BROKERS = st.sampled_from([1, 2, 3])
APPEND = st.tuples(st.just("append"), st.tuples(st.integers(1, 5), st.integers(1, 3)))
FETCH = st.tuples(st.just("fetch"), st.tuples(BROKERS, st.sampled_from([1, 300, 1 << 20])))
TELL = st.tuples(st.just("tell"), BROKERS)
WISH = st.tuples(st.just("proposal"), st.booleans())
TIME = st.tuples(st.just("time"), st.sampled_from([1, 3]))
KILL = st.tuples(st.just("kill"), st.tuples(BROKERS, st.booleans()))
ELECT = st.tuples(st.just("elect"), BROKERS)
TRIM = st.tuples(st.just("trim"), st.just(0))
STEPS = st.lists(APPEND | APPEND | FETCH | FETCH | FETCH | TELL | WISH | TIME | KILL | ELECT | TRIM, min_size=10, max_size=60)
LONG_MS = 1000


class Cluster:
    """What a controller knows, and what was committed."""

    def __init__(self, brokers: list[SteppedReplica]) -> None:
        self.by_id = {each.broker_id: each for each in brokers}
        self.replicas = sorted(self.by_id)
        self.leader_id, self.leader_epoch = 1, 0
        self.isr, self.partition_epoch = list(self.replicas), 0
        self.committed: dict[int, bytes] = {}
        self.watermark = -1
        self.elect(1)

    @property
    def leader(self) -> SteppedReplica:
        return self.by_id[self.leader_id]

    def append(self, what: tuple[int, int]) -> None:
        for number in range(what[0]):
            self.leader.produce(batch(what[1], b"%d %d" % (self.leader_epoch, number) + b"x" * 30))
        self.leader.turn(1)

    def fetch(self, what: tuple[int, int]) -> None:
        follower, max_bytes = self.by_id[what[0]], what[1]
        if follower is not self.leader:
            fetch(follower, self.leader, max_bytes)

    def tell(self, broker_id: int) -> None:
        if broker_id != self.leader_id:
            fetch(self.by_id[broker_id], self.leader, appends=False)

    def time(self, seconds: int) -> None:
        for _ in range(seconds):
            for each in self.by_id.values():
                each.writer.clock.advance_ms(LONG_MS)
                each.turn(1)

    def proposal(self, is_granted: bool) -> None:
        """The controller writes what is asked for, or does not; what is older than the state is answered with the state."""
        leader = self.leader
        wishes = [each for each in leader.wishes if each["leader_epoch"] == self.leader_epoch]
        leader.wishes.clear()
        for proposal in wishes:
            if is_granted and proposal["partition_epoch"] == self.partition_epoch:
                self.isr = proposal["isr"]
                self.partition_epoch += 1
            assert leader.isr(self.leader_epoch, self.isr, self.partition_epoch, proposal["change"]) == 0

    def kill(self, what: tuple[int, bool]) -> None:
        killed = self.by_id[what[0]]
        if what[1]:
            killed.die()
        else:
            killed.stop()
        killed.start()
        killed.wishes.clear()
        if killed is self.leader and not what[1]:
            self.elect(self.leader_id)
        else:
            self._give_role(killed)

    def elect(self, broker_id: int) -> None:
        if broker_id not in self.isr:
            return
        self.leader.wishes.clear()
        self.leader_id, self.leader_epoch, self.partition_epoch, self.watermark = broker_id, self.leader_epoch + 1, self.partition_epoch + 1, -1
        for each in self.by_id.values():
            self._give_role(each)

    def _give_role(self, broker: SteppedReplica) -> None:
        if broker is self.leader:
            assert broker.lead(self.leader_epoch, self.isr, self.replicas, self.partition_epoch) == 0
        else:
            assert broker.follow(self.leader_id, self.leader_epoch, self.isr, self.replicas) == 0

    def trim(self, _nothing: int) -> None:
        assert self.leader.writer.agent.retention.delete_records(self.leader.hosted, self.leader.row.high_watermark, None) == 0
        self.leader.writer.agent.retention.forget(lambda context: context is None)

    def check(self) -> None:
        row = self.leader.row
        assert row.role == ROLE_LEADER and row.isr_size == len(self.isr)
        assert row.high_watermark >= self.watermark, "of one leader epoch it never goes back"
        self.watermark = row.high_watermark
        for base_offset, last_offset, content, _, _ in self.leader.batches(row.log_start_offset):
            if last_offset < row.high_watermark:
                assert self.committed.setdefault(base_offset, content) == content, "what was committed is another batch now"
        for broker_id, replica in self.by_id.items():
            check_watermark(replica)
            held = {base_offset: content for base_offset, _, content, _, _ in replica.batches()}
            if broker_id in self.isr:
                missing = [base for base in self.committed if base >= max(replica.row.log_start_offset, self.leader.row.log_start_offset) and base not in held]
                assert not missing, f"broker {broker_id} is in sync and lacks {missing}"
            assert all(held[base] == content for base, content in self.committed.items() if base in held and base < replica.row.high_watermark)
            assert replica.writer.counters.counter("log_writer.truncated_below_high_watermark").value == 0

    def settle(self) -> None:
        """All replicas catch up and join the ISR again."""
        for _ in range(6):
            for each in self.by_id.values():
                if each is not self.leader:
                    while fetch(each, self.leader) != "told":
                        pass
            self.time(1)
            self.proposal(True)
        assert {each.log_end for each in self.by_id.values()} == {self.leader.row.high_watermark}
        assert sorted(self.isr) == self.replicas
        start = max(each.row.log_start_offset for each in self.by_id.values())
        logs = [[content for _, _, content, _, _ in each.batches(start)] for each in self.by_id.values()]
        assert logs[0] == logs[1] == logs[2]


@pytest.mark.slow
@settings(max_examples=12)
@given(STEPS)
def test_what_was_committed_stays_and_high_watermarks_are_between_batches(steps: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as path:
        for sync in ("fsync", "fdatasync", "syncfs"):
            patch.setattr(file_io, sync, lambda _fd: None)
        with replicas(Path(path), 3, {"segment.bytes": "500"}) as brokers:
            cluster = Cluster(brokers)
            for name, argument in steps:
                getattr(cluster, name)(argument)
                cluster.check()
            cluster.settle()
            cluster.check()
