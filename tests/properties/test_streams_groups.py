"""A streams group whose log refuses, whose coordinator dies, and whose answers are lost: no task is active on two threads, and no process has a task twice.

At the end the members that are left have every task, with its standbys. Each rule that this needs is left out once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from services.coordinator.groups.ports import StreamsOptions
from services.coordinator.streams import streams_heartbeats, streams_membership, streams_records
from services.coordinator.streams.streams_group import StreamsGroup
from services.coordinator.streams.streams_member import NOTHING, StreamsMember, TaskSet
from services.coordinator.streams.streams_membership import StreamsMembership
from tests.support.group_world import GROUP, codes
from tests.support.streams_world import BY_HOST, COUNT, StreamsWorld, Thread

NAMES = {"a": "p", "b": "p", "c": "q", "d": "r"}
"""Threads and their processes."""
SESSION_MS = 45_000
REFUSALS = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
STEPS = 80


class Broken(AssertionError):
    """A promise was not kept."""


class Run:
    """One run of chance. A thread that was silent for a session, or that does not know its epoch any more, has no tasks."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.settles = seed % 2
        self.world = StreamsWorld().with_topics()
        self.world.topics.options = StreamsOptions(self.chance.choice((0, 1)), self.chance.choice((0, 3_000)))
        self.threads: dict[str, Thread] = {}
        self.said_ms: dict[str, int] = {}
        self.partitions = 4
        self.dead: set[str] = set()
        """Those that left without a word, and may still be members."""

    def go(self) -> None:
        often = [self.ask, self.ask, self.ask, self.answer, self.answer, self.lose]
        steps: list[Callable[[], None]] = [*often, *often, self.come, self.come, self.leave, self.die, self.wait, self.commit, self.restart]
        steps += [self.change_options, self.grow, self.grow, self.speak_late, self.refuse] + [self.all_settle] * self.settles
        for _ in range(STEPS):
            self.chance.choice(steps)()
            self.look()
        self.world.settle()
        self.look()
        self.world.pass_ms(3_000)
        self.end()

    # ---- steps

    def some(self) -> Thread | None:
        return self.threads[self.chance.choice(sorted(self.threads))] if self.threads else None

    def come(self) -> None:
        name = self.chance.choice(sorted(NAMES))
        if name not in self.threads:
            self.threads[name] = Thread(self.world, name, NAMES[name])
            self.dead.discard(name)

    def ask(self) -> None:
        thread = self.some()
        if thread is not None and thread.waiting is None:
            self.said_ms[thread.member_id] = self.world.now_ms
            thread.ask()

    def answer(self) -> None:
        if self.world.log.waiting:
            error = self.chance.choice(REFUSALS)
            self.world.log.answer_one(error, is_kept=error is ErrorCode.NONE or self.chance.random() < 0.5)
            self.world.turn()

    def lose(self) -> None:
        """An answer does not arrive, or will not."""
        thread = self.some()
        if thread is not None:
            self.world.settle()
            thread.waiting = None

    def refuse(self) -> None:
        """The log takes nothing of what the members ask for."""
        self.world.settle()
        self.look()
        for thread in self.threads.values():
            self.said_ms[thread.member_id] = self.world.now_ms
            thread.ask()
        self.world.settle(ErrorCode.NOT_ENOUGH_REPLICAS)

    def speak_late(self) -> None:
        """A process that was suspended goes on in an epoch that is over."""
        self.world.settle()
        self.look()
        thread = self.some()
        if thread is not None and thread.epoch > 1:
            told = self.world.told(thread.member_id, thread.epoch - 1)
            if not told.error_code:
                raise Broken(f"epoch {thread.epoch - 1} of {thread.member_id} is over, and was answered")

    def leave(self) -> None:
        thread = self.some()
        if thread is not None and thread.waiting is None and thread.epoch > 0:
            thread.holds = NOTHING
            self.world.told(thread.member_id, -1)
            del self.threads[thread.member_id]

    def die(self) -> None:
        if self.threads and self.chance.random() < 0.5:
            name = self.chance.choice(sorted(self.threads))
            del self.threads[name]
            self.dead.add(name)

    def wait(self) -> None:
        self.world.pass_ms(self.chance.choice((1, 1_000, 3_000, 10_000, SESSION_MS)))
        for name, thread in self.threads.items():
            if self.world.now_ms - self.said_ms.get(name, self.world.now_ms) >= SESSION_MS:
                thread.holds, thread.waiting = NOTHING, None  # an answer that is so late is not taken

    def restart(self) -> None:
        self.world.settle()
        self.look()
        before = self.world.describe_streams()
        hosted = self.world.coordinator.directory.find(GROUP)
        is_certain = hosted is not None and isinstance(hosted.membership, StreamsMembership) and not hosted.membership.turns.is_in_doubt
        self.world.restart()
        after = self.world.describe_streams()
        if is_certain and before.members and after._replace(topology=None, group_state="") != before._replace(topology=None, group_state=""):
            raise Broken(f"{before} became {after}")
        for thread in self.threads.values():
            thread.waiting = None

    def change_options(self) -> None:
        self.world.topics.options = StreamsOptions(self.chance.choice((0, 1, 2)), 0)

    def grow(self) -> None:
        if self.partitions < 12:
            self.partitions += 1
            for topic in ("syslog", COUNT.name, BY_HOST.name):
                self.world.topics.set_count(topic, self.partitions)

    def commit(self) -> None:
        """What counts is of a thread that has the task, whatever epoch it is in."""
        self.world.settle()
        self.look()
        thread = self.some()
        partition, epoch = self.chance.randrange(4), self.chance.randint(1, thread.epoch) if thread is not None and thread.epoch else 0
        if thread is None or not epoch:
            return
        told = self.world.commit({("syslog", partition): 1}, member_id=thread.member_id, generation_id=epoch, version=9)
        self.world.settle()
        owner = next((each.member_id for each in self.threads.values() if ("0", partition) in each.holds.active), thread.member_id)
        is_older = epoch < thread.epoch
        if is_older and next(iter(codes(told.only).values())) is ErrorCode.NONE and owner != thread.member_id:
            raise Broken(f"{thread.member_id} has committed partition {partition} in epoch {epoch}, which {owner} has")

    # ---- promises

    def look(self) -> None:
        for thread in self.threads.values():
            thread.look()
        active: dict[tuple[str, int], str] = {}
        of_process: dict[tuple[str, tuple[str, int]], str] = {}
        for thread in self.threads.values():
            for task in thread.holds.active:
                if task in active:
                    raise Broken(f"{task} is active on {active[task]} and {thread.member_id}")
                active[task] = thread.member_id
            for task in thread.holds.active | thread.holds.standby:
                if (thread.process, task) in of_process:
                    raise Broken(f"process {thread.process} has {task} twice")
                of_process[thread.process, task] = thread.member_id

    def end(self) -> None:
        self.wait_out_the_dead()
        self.dead.clear()
        self.all_settle()

    def all_settle(self) -> None:
        """Without members that died, every task is active before long, and has its standbys."""
        if not self.threads or self.dead:
            return
        self.world.settle()
        self.look()
        try:
            self.world.run(*self.threads.values())
            self.world.pass_ms(3_000)  # a new group waits for members
            self.said_ms.update(dict.fromkeys(self.threads, self.world.now_ms))
            self.world.run(*self.threads.values())
        except AssertionError as problem:
            raise Broken(str(problem)) from None
        self.look()
        have = frozenset().union(*(thread.holds.active for thread in self.threads.values()))
        if len(have) != 2 * self.partitions:
            raise Broken(f"{2 * self.partitions} tasks, and only {sorted(have)} are active")
        processes = len({thread.process for thread in self.threads.values()})
        wanted = min(self.world.topics.options.standby_count, processes - 1) * self.partitions
        found = sum(len(thread.holds.standby) for thread in self.threads.values())
        if found != wanted:
            raise Broken(f"{found} standbys of {wanted}")

    def wait_out_the_dead(self) -> None:
        """Those that died without a word lose their tasks; those that live go on."""
        for _ in range(5):
            for thread in self.threads.values():
                thread.waiting = None
                thread.ask()
                self.world.settle()
            self.look()
            self.world.pass_ms(SESSION_MS // 3)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 80, 20))
def test_no_task_is_active_twice_and_all_are_in_the_end(first: int) -> None:
    for seed in range(first, first + 20):
        Run(seed).go()


# ---- rules left out


def _everything_is_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamsGroup, "is_free", lambda *_: True)
    patch.setattr(StreamsGroup, "_own", lambda *_: None)


def _processes_are_not_asked(patch: pytest.MonkeyPatch) -> None:
    free = StreamsGroup.is_free

    def is_free(self: StreamsGroup, member: StreamsMember, role: Any, task: Any) -> bool:
        return free(self, member._replace(wish=member.wish._replace(process_id="another")), role, task)

    patch.setattr(StreamsGroup, "is_free", is_free)


def _revocation_is_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    stepped = streams_heartbeats.reconciled
    patch.setattr(streams_heartbeats, "reconciled", lambda member, epoch, target, is_free, _owned: stepped(member, epoch, target, is_free, NOTHING))


def _older_epochs_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamsMembership, "_had_since", lambda *_: True)


def _lost_answers_are_not_repeated(patch: pytest.MonkeyPatch) -> None:
    before = streams_heartbeats.StreamsHeartbeat.answer

    def answer(self: Any, error: ErrorCode, now_ms: int) -> None:
        self._owned = None
        before(self, error, now_ms)

    patch.setattr(streams_heartbeats.StreamsHeartbeat, "answer", answer)


def _targets_are_not_written(patch: pytest.MonkeyPatch) -> None:
    written = streams_records.changed_records
    begins = streams_records.MEMBER_TARGET.encode_key(streams_records.StreamsMemberKey("", ""))[:2]
    patch.setattr(
        streams_membership, "changed_records", lambda *states: [each for each in written(*states) if not each.key.startswith(begins) or each.value is None]
    )


def _no_epoch_when_a_member_leaves(patch: pytest.MonkeyPatch) -> None:
    def change(self: Any, group: StreamsGroup, _now_ms: int) -> None:
        if self._request.member_id in group.members:
            group.remove(self._request.member_id)

    patch.setattr(streams_heartbeats.StreamsLeave, "change", change)


def _standbys_do_not_follow_the_setting(patch: pytest.MonkeyPatch) -> None:
    assigned = streams_membership.sticky_tasks
    patch.setattr(streams_membership, "sticky_tasks", lambda candidates, tasks, stateful, _count: assigned(candidates, tasks, stateful, 0))


def _a_member_that_joins_again_keeps_what_it_gave_up(patch: pytest.MonkeyPatch) -> None:
    """Its process has forgotten its tasks; the coordinator waits for a revocation that is never confirmed."""
    stepped = streams_heartbeats.reconciled

    def reconciled(member: StreamsMember, epoch: int, target: TaskSet, is_free: Any, owned: TaskSet | None) -> StreamsMember:
        return stepped(member, epoch, target, is_free, owned if owned else None)

    patch.setattr(streams_heartbeats, "reconciled", reconciled)


def _a_look_holds_before_the_log_has_it(patch: pytest.MonkeyPatch) -> None:
    looked = StreamsMembership._look  # noqa: SLF001

    def look(self: StreamsMembership, group: StreamsGroup, topology: Any) -> bool:
        is_changed = looked(self, group, topology)
        self.group.checked_generation, self.group.configured = group.checked_generation, group.configured
        return is_changed

    patch.setattr(StreamsMembership, "_look", look)


def _epochs_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(streams_heartbeats.StreamsHeartbeat, "_check_epoch", lambda *_: None)


LEFT_OUT = (
    _epochs_are_not_checked,
    _a_look_holds_before_the_log_has_it,
    _everything_is_free,
    _processes_are_not_asked,
    _revocation_is_not_confirmed,
    _older_epochs_commit,
    _lost_answers_are_not_repeated,
    _targets_are_not_written,
    _no_epoch_when_a_member_leaves,
    _standbys_do_not_follow_the_setting,
    _a_member_that_joins_again_keeps_what_it_gave_up,
)


@pytest.mark.slow
@pytest.mark.parametrize("leave_out", LEFT_OUT)
def test_a_rule_that_is_left_out_is_found(leave_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch)
    with pytest.raises(Broken):
        for seed in range(200):
            Run(seed).go()
