"""A micro-batch is written once: whatever process is killed between any two steps, and whatever
rows a replay has.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicPartition
from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.client.groups import committed_offsets
from appliance.client.transaction import TransactionalProducer
from appliance.pipeline.outgoing_batches import TopicBatch
from appliance.pipeline.record_sink import NO_BATCH, MicroBatch, SinkCommit, last_batch, sink_name
from appliance.records.builder import BatchBuilder
from lab.committed_reads import read_committed
from lab.running_box import RunningBox

pytestmark = [pytest.mark.system, pytest.mark.slow]

PARTITIONS_OF_ATTEMPT = ((0, 1, 0), (1,), (0, 1))
"""Where the batches of a micro-batch's first, second, third attempt go: every replay has other rows, and another number of them."""
KILLED = -signal.SIGKILL


def _connect(box: RunningBox) -> ClusterClient:
    return ClusterClient([Address(*box.kafka)])


def _topic(box: RunningBox, name: str) -> str:
    with _connect(box) as cluster:
        create_topic(cluster, name, partitions=2)
    return name


def _value(batch_id: int, attempt: int, index: int) -> bytes:
    return b"batch %d attempt %d row %d" % (batch_id, attempt, index)


def _micro_batch(query_id: str, topic: str, batch_id: int, attempt: int) -> MicroBatch:
    batches = []
    for index, partition in enumerate(PARTITIONS_OF_ATTEMPT[attempt]):
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, _value(batch_id, attempt, index))
        batches.append(TopicBatch(topic, partition, 1, builder.build()))
    return MicroBatch(query_id, batch_id, batches, tuple(sorted({TopicPartition(topic, batch.partition) for batch in batches})), topic)


@contextmanager
def _attempt(box: RunningBox, micro_batch: MicroBatch) -> Iterator[Iterator[str]]:
    """Its steps, to be taken one by one. Left behind as a killed driver leaves it."""
    with _connect(box) as cluster:
        transaction = TransactionalProducer(cluster, sink_name(micro_batch.query_id), waiting_bytes_max=0)
        yield SinkCommit(cluster, micro_batch, transaction).steps()
        transaction.close()


def _steps(box: RunningBox, micro_batch: MicroBatch) -> list[str]:
    """Carry it out here, to the end."""
    with _attempt(box, micro_batch) as steps:
        return list(steps)


def _killed_behind(box: RunningBox, micro_batch: MicroBatch, step: int) -> int:
    """Carry it out in a process that kills itself behind the step of this number. How the process ended: 0 if it came to the end first."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with _attempt(box, micro_batch) as steps:
                for number, _ in enumerate(steps):
                    if number == step:
                        os.kill(os.getpid(), signal.SIGKILL)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _attempts_in(box: RunningBox, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Batch id → (attempt, row) of every record that a reader of committed records sees."""
    found: dict[int, list[tuple[int, int]]] = {}
    for records in read_committed(box.bootstrap, topic).values():
        for _, value in records:
            words = (value or b"").split()
            found.setdefault(int(words[1]), []).append((int(words[3]), int(words[5])))
    return {batch_id: sorted(rows) for batch_id, rows in found.items()}


def _rows(attempt: int) -> list[tuple[int, int]]:
    return [(attempt, index) for index in range(len(PARTITIONS_OF_ATTEMPT[attempt]))]


def test_a_batch_killed_between_any_two_steps_and_replayed_with_other_rows_is_in_once(shared_box: RunningBox) -> None:
    topic = _topic(shared_box, "once")
    names = _steps(shared_box, _micro_batch("q", topic, 0, 0))
    assert names == ["begin", "look", "join", "append", "append", "append", "flush", "add group", "commit offsets", "end"]
    expected = {0: _rows(0)}
    for step in range(len(names)):
        batch_id = step + 1
        assert _killed_behind(shared_box, _micro_batch("q", topic, batch_id, 0), step) == KILLED
        was_in = names[step] == "end"
        assert _steps(shared_box, _micro_batch("q", topic, batch_id, 1))[-1] == ("look" if was_in else "end")
        expected[batch_id] = _rows(0 if was_in else 1)
    assert _attempts_in(shared_box, topic) == expected


def test_a_replay_that_is_killed_too_leaves_the_batch_to_the_next(shared_box: RunningBox) -> None:
    topic = _topic(shared_box, "twice")
    expected = {}
    for batch_id in range(10):
        ends = [_killed_behind(shared_box, _micro_batch("q2", topic, batch_id, attempt), step) for attempt, step in enumerate((batch_id, (batch_id + 4) % 10))]
        _steps(shared_box, _micro_batch("q2", topic, batch_id, 2))
        # The first attempt has ten steps, the second eight; one whose last step was done has written, and so has one that was too short to be killed.
        winner = 0 if batch_id == 9 else 1 if ends[1] == 0 or (batch_id + 4) % 10 == 7 else 2
        expected[batch_id] = _rows(winner)
    assert _attempts_in(shared_box, topic) == expected


def test_an_earlier_run_that_comes_back_adds_nothing(shared_box: RunningBox) -> None:
    topic = _topic(shared_box, "fenced")
    for stopped_behind in ("begin", "look", "join", "append", "flush", "add group", "commit offsets"):
        query_id = f"fenced behind {stopped_behind}"
        with _attempt(shared_box, _micro_batch(query_id, topic, 0, 0)) as earlier:
            assert _until(earlier, stopped_behind)[-1] == stopped_behind
            _steps(shared_box, _micro_batch(query_id, topic, 0, 1))
            if stopped_behind == "begin":  # it looks only now, and sees that the batch is in
                assert list(earlier) == ["look"]
                continue
            with pytest.raises(RequestRefused) as refused:
                list(earlier)
            assert refused.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert _attempts_in(shared_box, topic) == {0: sorted(_rows(1) * 7)}


def _until(steps: Iterator[str], wanted: str) -> list[str]:
    done = []
    for step in steps:
        done.append(step)
        if step == wanted:
            break
    return done


def test_a_batch_without_rows_is_remembered_too(shared_box: RunningBox) -> None:
    topic = _topic(shared_box, "empty")
    assert _steps(shared_box, MicroBatch("e", 0, (), (), topic))[-1] == "end"
    assert _steps(shared_box, _micro_batch("e", topic, 0, 1)) == ["begin", "look"]
    _steps(shared_box, _micro_batch("e", topic, 1, 0))
    assert _steps(shared_box, MicroBatch("e", 2, (), (), None))[-1] == "end"
    assert _steps(shared_box, _micro_batch("e", topic, 2, 1)) == ["begin", "look"]
    assert _attempts_in(shared_box, topic) == {1: _rows(0)}
    with _connect(shared_box) as cluster:
        assert last_batch(committed_offsets(cluster, sink_name("e"))) == 2
        assert last_batch(committed_offsets(cluster, sink_name("nobody"))) == NO_BATCH


def test_queries_do_not_know_each_other(shared_box: RunningBox) -> None:
    topic = _topic(shared_box, "apart")
    for query_id in ("one", "other"):
        _steps(shared_box, _micro_batch(query_id, topic, 5, 1))
    assert _attempts_in(shared_box, topic) == {5: _rows(1) * 2}


def test_processes_of_the_box_that_die_in_between_delay_a_batch_and_nothing_else(shared_box: RunningBox) -> None:
    topic = _topic(shared_box, "restarts")
    disks = [name for name in shared_box.pids() if name.startswith("log-writer")]
    killed = (("coordinator", "append"), ("acceptor@0", "join"), ("coordinator", "commit offsets"), (disks[0], "flush"), (disks[1], "look"))
    for batch_id, (victim, step) in enumerate(killed):
        with _attempt(shared_box, _micro_batch("r", topic, batch_id, 1)) as steps:
            for done in steps:
                if done == step:
                    shared_box.await_restart(victim, shared_box.kill(victim))
    assert _attempts_in(shared_box, topic) == {batch_id: _rows(1) for batch_id in range(5)}
