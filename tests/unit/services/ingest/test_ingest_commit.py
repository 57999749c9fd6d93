"""What acks mean for an ingest: the high watermark under an unbroken leadership, the leader's log,
or nothing; and each record once, whichever box leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.ipc.descriptors import DescriptorKind
from appliance.senders.listener import Listener
from appliance.shm.lease import LeaseWriter
from services.ingest.records.ack_group import AckGroup, AckOutcome
from services.ingest.records.event import EventSource
from services.ingest.records.ingest_record import IngestRecord
from services.ingest.records.ingest_topics import BACKLOG_BYTES_MAX, TopicBacklog
from tests.unit.services.ingest.stepped_ingest import SteppedIngest

SOURCE = EventSource(b"192.0.2.7:4711", b"192.0.2.7", b"tcp")

USERS_ONLY = {
    "route": [{"app": "sshd", "topic": "syslog", "key": "field.user", "key-required": True}],
    "dead-letter": {"topic": "dead"},
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SteppedIngest]]:
    made: list[SteppedIngest] = []

    def maker(**settings: Any) -> SteppedIngest:
        made.append(SteppedIngest(tmp_path, partitions=1, **settings))
        made[-1].start()
        return made[-1]

    yield maker
    for box in made:
        box.close()


@pytest.fixture
def box(make: Callable[..., SteppedIngest]) -> SteppedIngest:
    return make()


class Sent:
    """A unit of some records, and whether it has settled."""

    def __init__(self, box: SteppedIngest, values: list[bytes], identities: list[bytes] | None = None, acks: int = -1) -> None:
        intake = box.agent._router
        self.completed: list[AckOutcome] = []
        self.unit = AckGroup(listener_of(box)._replace(acks=acks), SOURCE, identities, lambda unit: self.completed.append(unit.outcome))
        intake.take(self.unit, [IngestRecord(value, host="web") for value in values])
        intake.close_group(self.unit)
        assert not self.completed, "never from inside"


def listener_of(box: SteppedIngest) -> Listener:
    return box.agent._router._inputs["syslog-tcp"].listener


def values(box: SteppedIngest) -> list[bytes | None]:
    return [record.value for record in box.records()]


def test_a_unit_settles_when_its_records_are_committed(box: SteppedIngest) -> None:
    sent = Sent(box, [b"a", b"b"])
    box.run_until(lambda: sent.completed)
    assert (sent.completed, values(box)) == ([AckOutcome.STORED], [b"a", b"b"])
    assert box.counter("ingest.acknowledged") == 2


def test_an_empty_unit_settles_too(box: SteppedIngest) -> None:
    sent = Sent(box, [])
    box.run_until(lambda: sent.completed)
    assert sent.completed == [AckOutcome.STORED]


def follow_slowly(box: SteppedIngest) -> None:
    """Box 2 is in sync and fetches nothing, so the high watermark stays where it is."""
    box.lead(0, leader_epoch=1, isr=(1, 2), replicas=(1, 2))


def test_acks_all_waits_for_the_high_watermark_and_acks_1_does_not(box: SteppedIngest) -> None:
    follow_slowly(box)
    leader_only, everyone, nobody = Sent(box, [b"1"], acks=1), Sent(box, [b"all"]), Sent(box, [b"0"], acks=0)
    box.run_until(lambda: leader_only.completed and nobody.completed)
    for _ in range(50):
        box.step()
    assert not everyone.completed and len(values(box)) == 3
    assert box.ledger().in_flight == 1
    box.lead(0, leader_epoch=2)  # we went on leading, without box 2
    box.run_until(lambda: everyone.completed)
    assert (everyone.completed, sorted(filter(None, values(box)))) == ([AckOutcome.STORED], [b"0", b"1", b"all"])
    assert (box.ledger().balances, box.ledger().resent) == (True, 0)


def test_a_kill_over_records_that_wait_for_followers_does_not_count_them_as_crash(box: SteppedIngest) -> None:
    """The leader's log has them. What was never appended was lost with the process."""
    follow_slowly(box)
    Sent(box, [b"a", b"b", b"c"])
    box.run_until(lambda: box.counter("ingest.appended") == 3)
    box.kill_ingest()
    box.start_ingest()
    box.run_until(lambda: box.agent._crash_accounting.is_accounted)
    assert box.ledger().balances and box.counter("ingest.appended") == 0
    assert (box.ledger().stored, box.counter('ingest.counted{reason="crash"}')) == (3, 0)
    assert values(box) == [b"a", b"b", b"c"]


def test_records_that_are_offered_again_are_not_counted_as_appended(box: SteppedIngest) -> None:
    """Another leader may have truncated them."""
    follow_slowly(box)
    Sent(box, [b"a", b"b"])
    box.run_until(lambda: box.counter("ingest.appended") == 2)
    box.command(0, DescriptorKind.BECOME_FOLLOWER, {"leader_epoch": 2, "leader": 2, "isr": [1, 2], "replicas": [1, 2], "config": {}})
    box.run_until(lambda: box.counter("ingest.appended") == 0)
    box.kill_ingest()
    box.start_ingest()
    box.run_until(lambda: box.agent._crash_accounting.is_accounted)
    assert (box.ledger().stored, box.counter('ingest.counted{reason="crash"}')) == (0, 2)


def test_records_that_were_committed_are_not_counted_as_appended_any_more(box: SteppedIngest) -> None:
    follow_slowly(box)
    sent = Sent(box, [b"a", b"b"])
    box.run_until(lambda: box.counter("ingest.appended") == 2)
    box.lead(0, leader_epoch=2)
    box.run_until(lambda: sent.completed)
    assert (box.counter("ingest.appended"), box.ledger().stored) == (0, 2)


@pytest.fixture
def lease(box: SteppedIngest) -> Iterator[LeaseWriter]:
    writer = LeaseWriter(box.layout, 1)
    box.agent._lease.look_for()
    box.publish(1, replicas=(1, 2))
    box.step()
    yield writer
    writer.close()


def test_acks_1_waits_for_the_high_watermark_only_while_there_is_no_lease(box: SteppedIngest, lease: LeaseWriter) -> None:
    follow_slowly(box)
    leader_only, everyone = Sent(box, [b"1"], acks=1), Sent(box, [b"all"])
    box.run_until(lambda: len(values(box)) == 2)
    for _ in range(50):
        box.step()
    assert not leader_only.completed
    lease.extend(1 << 62)
    box.run_until(lambda: leader_only.completed)
    for _ in range(50):
        box.step()
    assert not everyone.completed and box.ledger().resent == 0


def test_a_batch_that_is_offered_again_under_a_lease_wants_what_its_senders_want(box: SteppedIngest, lease: LeaseWriter) -> None:
    follow_slowly(box)
    sent = Sent(box, [b"1"], acks=1)
    box.run_until(lambda: len(values(box)) == 1)
    box.command(0, DescriptorKind.BECOME_FOLLOWER, {"leader_epoch": 2, "leader": 2, "isr": [1, 2], "replicas": [1, 2], "config": {}})
    for _ in range(50):
        box.step()
    lease.extend(1 << 62)
    box.lead(0, leader_epoch=3, isr=(1, 2), replicas=(1, 2))
    box.run_until(lambda: sent.completed)
    assert (sent.completed, values(box), box.ledger().resent) == ([AckOutcome.STORED], [b"1"], 1)


def test_what_was_not_committed_when_another_box_led_goes_again_under_its_sequence_and_is_there_once(box: SteppedIngest) -> None:
    first = Sent(box, [b"first"])
    box.run_until(lambda: first.completed)
    follow_slowly(box)
    sent = Sent(box, [b"a", b"b"])
    box.run_until(lambda: len(values(box)) == 3)
    box.command(0, DescriptorKind.BECOME_FOLLOWER, {"leader_epoch": 2, "leader": 2, "isr": [1, 2], "replicas": [1, 2], "config": {}})
    for _ in range(50):
        box.step()
    assert not sent.completed
    box.lead(0, leader_epoch=3)
    box.run_until(lambda: sent.completed)
    assert (sent.completed, values(box)) == ([AckOutcome.STORED], [b"first", b"a", b"b"])
    assert (box.ledger().resent, box.ledger().balances) == (2, True)


def test_a_replay_is_answered_and_not_stored_again(box: SteppedIngest) -> None:
    first = Sent(box, [b"a", b"b"], [b"1" * 16])
    second = Sent(box, [b"a", b"b"], [b"1" * 16])  # while the first is under way
    box.run_until(lambda: first.completed and second.completed)
    third = Sent(box, [b"a", b"b"], [b"1" * 16])
    box.run_until(lambda: third.completed)
    assert (first.completed, second.completed, third.completed) == ([AckOutcome.STORED], [AckOutcome.DUPLICATE], [AckOutcome.DUPLICATE])
    assert values(box) == [b"a", b"b"]
    assert (box.ledger().received, box.ledger().stored, box.ledger().duplicate) == (6, 2, 4)


def test_of_records_with_an_identity_each_only_those_that_are_new_are_stored(box: SteppedIngest) -> None:
    first = Sent(box, [b"a", b"b"], [b"a" * 16, b"b" * 16])
    box.run_until(lambda: first.completed)
    second = Sent(box, [b"b", b"c", b"c"], [b"b" * 16, b"c" * 16, b"c" * 16])
    box.run_until(lambda: second.completed)
    assert second.completed == [AckOutcome.STORED]
    assert (values(box), box.ledger().duplicate, box.ledger().balances) == ([b"a", b"b", b"c"], 2, True)


def test_a_record_that_is_too_large_is_named_and_the_others_are_stored(box: SteppedIngest) -> None:
    box.publish(1, {"max.message.bytes": "2000"})
    box.step()
    sent = Sent(box, [b"a", b"x" * 3000, b"b"])
    box.run_until(lambda: sent.completed)
    assert (sent.completed, sent.unit.rejected) == ([AckOutcome.STORED], [(1, "too_large")])
    assert (values(box), box.counter('ingest.counted{reason="too_large"}')) == ([b"a", b"b"], 1)


@pytest.mark.parametrize("values_sent", [[b"x" * 3000], [b"a", b"x" * 3000, b"b"]])
def test_a_repeated_group_that_can_never_be_stored_is_refused_again(box: SteppedIngest, values_sent: list[bytes]) -> None:
    """The answer was lost. Nothing of it may be said to be stored, and nothing is stored twice."""
    box.publish(1, {"max.message.bytes": "2000"})
    box.step()
    each = [number.to_bytes(16, "big") for number in range(len(values_sent))]
    for identities in ([b"1" * 16], each):
        before, number = len(values(box)), values_sent.index(b"x" * 3000)
        for time in range(3):
            sent = Sent(box, values_sent, identities)
            box.run_until(lambda sent=sent: sent.completed)  # type: ignore[misc]
            assert sent.unit.rejected == [(number, "too_large")] and sent.unit.duplicate_count == (len(values_sent) - 1 if time else 0)
        assert len(values(box)) == before + len(values_sent) - 1
    assert box.ledger().balances


@pytest.mark.parametrize(("reason", "rejected"), [("too_large", [1]), ("no_key", [0, 1, 2])])
@pytest.mark.parametrize("is_each_identified", [False, True])
def test_a_repeated_record_is_one_dead_letter(make: Callable[..., SteppedIngest], reason: str, rejected: list[int], is_each_identified: bool) -> None:
    """The answer was lost: the record is refused again, and its letter is not stored again."""
    required = {"route": [{"host": "web", "topic": "syslog", "key": "field.user", "key-required": True}]} if reason == "no_key" else {}
    box = make(senders={**required, "dead-letter": {"topic": "dead"}})
    box.create_other("dead")
    box.publish(1, {"max.message.bytes": "2000"} if reason == "too_large" else {})
    box.step()
    values_sent = [b"b", b"a" * 3000, b"c"]
    identities = [number.to_bytes(16, "big") for number in range(3)] if is_each_identified else [b"1" * 16]
    for time in range(3):
        sent = Sent(box, values_sent, identities)
        box.run_until(lambda sent=sent: sent.completed)  # type: ignore[misc]
        assert sent.unit.rejected == [(number, reason) for number in rejected]
        letters = box.records_of(0, "dead")
        assert [letter.value for letter in letters] == [values_sent[number] for number in rejected], f"sent {time + 1} times"
    assert len(values(box)) == 3 - len(rejected) and box.ledger().balances
    Sent(box, values_sent, [b"2" * 16])
    box.run_until(lambda: len(box.records_of(0, "dead")) == 2 * len(rejected), "another request with the same records: other letters")


def test_an_ack_group_that_is_refused_for_good_can_be_sent_again(box: SteppedIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert box.log_writer is not None
    with monkeypatch.context() as refusing:
        refusing.setattr(box.log_writer.agent._appends, "refusal", lambda _hosted, _entry: 87)
        sent = Sent(box, [b"a"], [b"1" * 16])
        box.run_until(lambda: sent.completed)
    again = Sent(box, [b"a"], [b"1" * 16])
    box.run_until(lambda: again.completed)
    assert (sent.completed, again.completed, values(box)) == ([AckOutcome.REFUSED], [AckOutcome.STORED], [b"a"])
    assert (box.counter('ingest.counted{reason="refused"}'), box.ledger().balances) == (1, True)


def test_a_topic_that_is_not_there_is_asked_for_and_its_records_wait_for_it(box: SteppedIngest) -> None:
    intake, completed = box.agent._router, []
    unit = AckGroup(listener_of(box), SOURCE, None, completed.append, topic="other")
    intake.take(unit, [IngestRecord(b"a")])
    intake.close_group(unit)
    for _ in range(20):
        box.step()
    assert "other" in box.controller.wanted and not completed and box.ledger().in_flight == 1
    box.create_other("other")
    box.run_until(lambda: completed)
    assert [record.value for record in box.records_of(0, "other")] == [b"a"]


def test_a_topic_that_was_deleted_is_made_again_only_if_a_record_needs_it(box: SteppedIngest) -> None:
    intake, completed = box.agent._router, []
    box.create_other("other")
    for wanted in (set(), {"other"}):
        unit = AckGroup(listener_of(box), SOURCE, None, completed.append, topic="other")
        intake.take(unit, [IngestRecord(b"a")])
        intake.close_group(unit)
        if not wanted:
            box.run_until(lambda: completed)
            del box.others["other"]
            box.publish(box.partitions)
        for _ in range(20):
            box.step()
        assert box.controller.wanted == wanted
    assert len(completed) == 1


def test_a_record_goes_to_each_of_its_topics_and_counts_once(make: Callable[..., SteppedIngest]) -> None:
    box = make(senders={"route": [{"app": "sshd", "topic": ["security", "syslog"], "key": "app"}]})
    box.create_other("security")
    box.step()
    sender = box.connect()
    sender.sendall(b"<13>1 2026-01-01T00:00:00Z web sshd - - - both\n<13>1 2026-01-01T00:00:00Z web cron - - - one\n")
    box.run_until(lambda: box.ledger().received == 2 and box.ledger().balances and box.counter("ingest.copies") == 1)
    assert [record.key for record in box.records_of(0, "security")] == [b"sshd"]
    assert [record.key for record in box.records()] == [b"sshd", b"web"]
    assert box.ledger().stored == 2


def test_a_record_that_cannot_be_stored_where_it_belongs_is_a_dead_letter_that_says_why(make: Callable[..., SteppedIngest]) -> None:
    box = make(senders=USERS_ONLY)
    box.create_other("dead")
    box.step()
    sender = box.connect()
    sender.sendall(b"<13>1 2026-01-01T00:00:00Z web sshd - - - unstored\n<13>1 2026-01-01T00:00:00Z web cron - - - stored\n")
    box.run_until(lambda: box.ledger().received == 2 and box.ledger().balances and box.counter("ingest.copies") == 1)
    (letter,) = box.records_of(0, "dead")
    headers = dict(letter.headers)
    assert (headers["dead_letter_reason"], headers["dead_letter_topic"], headers["listener"]) == (b"no_key", b"syslog", b"syslog-tcp")
    assert box.messages() == ["stored"]
    assert (box.ledger().stored, box.counter('ingest.counted{reason="no_key"}')) == (1, 1)


NO_KEY = b"<13>1 2026-01-01T00:00:00Z web sshd - - - unkeyed %b\n" % (b"x" * 60_000)


def test_dead_letters_whose_topic_cannot_be_made_are_counted_and_take_no_memory(make: Callable[..., SteppedIngest]) -> None:
    box = make(senders=USERS_ONLY)
    sender = box.connect()
    for number in range(100):
        sender.sendall(NO_KEY)
        box.run_until(lambda wanted=number + 1: box.ledger().received == wanted)
    backlog = box.agent._topics.of("dead").collector
    assert isinstance(backlog, TopicBacklog) and (len(backlog) - 1) * 60_000 < BACKLOG_BYTES_MAX
    assert box.counter('ingest.counted{reason="no_key"}') == 100 and not box.counter("ingest.connections_paused")


def test_a_sender_of_dead_letters_is_slowed_down_like_others(make: Callable[..., SteppedIngest]) -> None:
    box = make(senders=USERS_ONLY)
    box.create_other("dead")
    box.step()
    box.agent._topics.of("dead").collector.set_blocked(frozenset({0}))  # type: ignore[union-attr]
    sender = box.connect()
    sender.sendall(NO_KEY)
    box.run_until(lambda: box.ledger().received == 1)
    assert box.counter("ingest.connections_paused") == 1


def test_a_sender_that_names_a_topic_is_blocked_by_that_one(box: SteppedIngest) -> None:
    intake, listener = box.agent._router, listener_of(box)
    box.create_other("other")
    box.step()
    box.agent._topics.of("other").collector.set_blocked(frozenset({0}))  # type: ignore[union-attr]
    assert intake.blocked_by(listener, "other") and not intake.blocked_by(listener) and not intake.blocked_by(listener, "nobody's")


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "gone while it was blocked"])
def test_senders_are_blocked_only_while_the_queue_of_a_deleted_topic_is_full(box: SteppedIngest, is_full: bool) -> None:
    intake, listener = box.agent._router, listener_of(box)
    box.agent._topics.of("syslog").collector.set_blocked(frozenset({0}))  # type: ignore[union-attr]
    assert intake.blocked_by(listener)
    box.publish(0)
    box.step()
    if is_full:
        intake.take(AckGroup(listener, SOURCE), [IngestRecord(bytes(1 << 20))] * 5)
    assert intake.blocked_by(listener) == is_full
    box.publish(box.partitions)
    box.run_until(lambda: not intake.blocked_by(listener))


def test_nothing_waits_for_producer_ids_that_it_does_not_need(make: Callable[..., SteppedIngest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.ingest.producer.partition_queues.PATIENCE_NS", 0)
    box = make()
    box.kill_ingest()
    box.controller.is_away = True
    box.start_ingest()
    box.run_until(lambda: box.is_ready)
    plain = Sent(box, [b"plain"])
    box.run_until(lambda: plain.completed)
    known = Sent(box, [b"known"], [b"1" * 16])
    for _ in range(20):
        box.step()
    assert not known.completed
    box.controller.is_away = False
    box.agent._producer_ids._is_asking = False
    box.run_until(lambda: known.completed)
    assert values(box) == [b"plain", b"known"]


def test_an_abandoned_group_is_not_acknowledged_and_its_repeat_stores_the_rest(box: SteppedIngest) -> None:
    router = box.agent._router
    outcomes: list[AckOutcome] = []
    records = [IngestRecord(b"%d" % number, host="web") for number in range(10)]
    first = AckGroup(listener_of(box), SOURCE, [b"a request's digest"[:16]], lambda unit: outcomes.append(unit.outcome))
    router.take(first, records[:4])
    router.abandon(first)
    box.run_until(lambda: outcomes == [AckOutcome.REFUSED])
    again = AckGroup(listener_of(box), SOURCE, first.identities, lambda unit: outcomes.append(unit.outcome))
    router.take(again, records[:7])
    router.take(again, records[7:])
    router.close_group(again)
    box.run_until(lambda: len(outcomes) == 2)
    assert outcomes[1] is AckOutcome.STORED
    assert sorted(record.value or b"" for record in box.records()) == [b"%d" % number for number in range(10)], "each once"
    assert box.ledger().in_flight == 0
