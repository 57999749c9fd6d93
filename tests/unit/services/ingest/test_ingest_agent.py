"""The whole ingest, from a sender's socket to the log, stepped by hand; and killed where it hurts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from appliance.records.keys import partition_of_key
from tests.unit.services.ingest.stepped_ingest import SteppedIngest

Start = Callable[..., SteppedIngest]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Start]:
    made: list[SteppedIngest] = []

    def maker(**settings: Any) -> SteppedIngest:
        made.append(SteppedIngest(tmp_path, **settings))
        return made[-1]

    yield maker
    for box in made:
        box.close()


@pytest.fixture
def box(make: Start) -> SteppedIngest:
    made = make()
    made.start()
    return made


def line(number: int, host: str = "web") -> bytes:
    return b"<13>1 2024-10-11T22:14:15Z %b app - - - line %d" % (host.encode(), number)


def expected(count: int) -> list[str]:
    return [f"line {number}" for number in range(count)]


def numbers(messages: list[str]) -> list[int]:
    return [int(message.split()[1]) for message in messages]


def test_lines_of_a_tcp_sender_are_stored_in_order(box: SteppedIngest) -> None:
    box.connect().sendall(b"".join(line(number) + b"\n" for number in range(1000)))
    box.run_until(lambda: box.ledger().stored == 1000)
    assert box.messages() == expected(1000)
    assert box.ledger().balances


def test_both_framings_and_both_transports_are_recognised(box: SteppedIngest) -> None:
    box.connect().sendall(line(0) + b"\n" + line(1) + b"\n")
    box.connect().sendall(b"".join(b"%d %b" % (len(line(number)), line(number)) for number in (2, 3)))
    box.send_datagrams(line(4), line(5) + b"\n")
    box.run_until(lambda: box.ledger().stored == 6)
    assert sorted(box.messages()) == expected(6)
    assert (box.counter('ingest.received{listener="syslog-tcp"}'), box.counter('ingest.received{listener="syslog-udp"}')) == (4, 2)


def test_a_record_carries_key_time_and_where_it_came_from(box: SteppedIngest) -> None:
    sender = box.connect()
    sender.sendall(line(0, "db-7") + b"\n")
    box.run_until(lambda: box.ledger().stored == 1)
    (record,) = box.records()
    assert (record.key, record.timestamp) == (b"db-7", 1_728_684_855_000)
    headers = dict(record.headers)
    assert headers["source"] == f"127.0.0.1:{sender.getsockname()[1]}".encode()
    assert headers["transport"] == b"tcp"
    assert abs(int(headers["arrival_ms"] or b"") - box.clock.wall_ms()) < 60_000
    document = orjson.loads(record.value or b"")
    assert (document["host"], document["app"], document["severity_name"], document["facility_name"]) == ("db-7", "app", "notice", "user")


def test_times_that_name_no_zone_are_in_that_of_the_setting(make: Start) -> None:
    box = make(ingest_syslog_time_zone="Asia/Tokyo")
    box.start()
    box.connect().sendall(b"<13>2024-10-11T22:14:15 web app: line 0\n")
    box.run_until(lambda: box.ledger().stored == 1)
    assert orjson.loads(box.records()[0].value or b"")["time"] == "2024-10-11T13:14:15.000Z"


def test_an_octet_count_before_a_datagram_is_not_part_of_it(box: SteppedIngest) -> None:
    box.send_datagrams(b"%d %b" % (len(line(0)), line(0)))
    box.run_until(lambda: box.ledger().stored == 1)
    assert (box.messages(), box.counter("ingest.unparsed")) == (["line 0"], 0)


def test_keys_are_where_any_kafka_producer_would_put_them(make: Start) -> None:
    box = make(partitions=4)
    box.start()
    hosts = [f"host-{number}" for number in range(20)]
    box.connect().sendall(b"".join(line(0, host) + b"\n" for host in hosts))
    box.run_until(lambda: box.ledger().stored == 20)
    in_partition_order = sorted(hosts, key=lambda host: partition_of_key(host.encode(), 4))
    assert [record.key for record in box.records()] == [host.encode() for host in in_partition_order]


def test_the_last_line_of_a_closed_connection_needs_no_trailer(box: SteppedIngest) -> None:
    sender = box.connect()
    sender.sendall(line(0) + b"\n" + line(1))
    sender.close()
    box.run_until(lambda: box.ledger().stored == 2)
    assert box.messages() == expected(2)


def test_a_line_that_is_too_long_is_cut_marked_and_counted(make: Start) -> None:
    box = make(ingest_syslog_max_message_bytes=480)
    box.start()
    box.connect().sendall(b"<13>" + b"x" * 1000 + b"\n<13>next\n")
    box.send_datagrams(b"<13>" + b"y" * 1000)
    box.run_until(lambda: box.ledger().stored == 3)
    marks = {dict(record.headers).get("truncated") for record in box.records() if len(record.value or b"") > 480}
    assert marks == {b"true"}
    assert (box.counter('ingest.truncated{listener="syslog-tcp"}'), box.counter('ingest.truncated{listener="syslog-udp"}')) == (1, 1)


def test_garbage_is_stored_and_marked_and_affects_no_other_sender(box: SteppedIngest) -> None:
    box.connect().sendall(bytes(range(1, 256)) * 20 + b"\n")
    box.connect().sendall(line(0) + b"\n")
    box.run_until(lambda: box.counter("ingest.unparsed") > 0 and box.ledger().balances and "line 0" in box.messages())
    documents = [orjson.loads(record.value or b"") for record in box.records()]
    garbage = [document for document in documents if document["message"] != "line 0"]
    assert all(document["parsed"] is False for document in garbage)
    assert any("raw_base64" in document for document in garbage)


def test_a_proxy_header_names_the_sender(make: Start) -> None:
    box = make(senders={"listener": [{"name": "syslog-tcp", "proxy": "v1"}]})
    box.start()
    box.connect().sendall(b"PROXY TCP4 192.0.2.7 198.51.100.1 40312 514\r\n" + line(0) + b"\n")
    box.run_until(lambda: box.ledger().stored == 1)
    (record,) = box.records()
    assert dict(record.headers)["proxied_source"] == b"192.0.2.7:40312"


def test_empty_datagrams_are_no_lines(box: SteppedIngest) -> None:
    box.send_datagrams(b"", line(0), b"")
    box.run_until(lambda: box.ledger().stored == 1)
    assert box.ledger().received == 1


def test_what_the_kernel_dropped_is_read_and_counted_once(make: Start) -> None:
    box = make()
    box.udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    box.send_datagrams(*[line(number) for number in range(100)])
    box.start()
    box.run_until(lambda: box.ledger().received and box.ledger().balances)
    drops = box.counter("ingest.kernel_drops")
    assert drops > 50
    assert box.ledger().received + drops == 100
    box.kill_ingest()
    box.start_ingest()
    box.run_until(lambda: box.is_ready)
    assert box.counter("ingest.kernel_drops") == drops, "the same socket's drops are not counted again by the next incarnation"


# -- log-writers come and go


def test_batches_in_flight_when_a_log_writer_dies_are_sent_again(box: SteppedIngest) -> None:
    sender = box.connect()
    sender.sendall(b"".join(line(number) + b"\n" for number in range(500)))
    assert box.ingest is not None
    for _ in range(20):
        box.ingest.turn()  # the log-writer takes nothing
    assert box.ledger().in_flight == 500
    offered = sum(batch.record_count for queue in box.agent._sender.queues.by_key.values() for batch in queue.in_flight)
    box.kill_log_writer()
    for _ in range(20):
        box.ingest.turn()
    assert box.ledger().in_flight == 500
    box.start_log_writer()
    box.run_until(lambda: box.ledger().stored == 500)
    assert box.messages() == expected(500)
    assert box.ledger().resent == offered > 0
    assert box.ledger().balances


def test_a_log_writer_that_dies_between_any_two_steps_loses_no_line(box: SteppedIngest) -> None:
    sender = box.connect()
    sent = 0
    for life in range(6):
        sender.sendall(b"".join(line(number) + b"\n" for number in range(sent, sent + 50)))
        sent += 50
        for _ in range(life):
            box.step()
        box.kill_log_writer()
        box.step()
        box.start_log_writer()
    box.run_until(lambda: box.ledger().stored == sent)
    assert set(numbers(box.messages())) == set(range(sent))
    assert len(box.messages()) <= sent + box.ledger().resent


def test_a_slow_disk_slows_tcp_and_loses_none_of_its_lines(make: Start) -> None:
    box = make(partitions=1)
    box.start()
    sender = box.connect()
    sender.setblocking(False)
    text = b"".join(line(number) + b" " + b"x" * 1000 + b"\n" for number in range(20_000))
    assert box.ingest is not None
    sent, idle_turns = 0, 0
    while idle_turns < 100:
        try:
            count = sender.send(text[sent : sent + 65536])
        except BlockingIOError:
            count = 0
        sent += count
        idle_turns = 0 if count else idle_turns + 1
        box.ingest.turn()
    assert sent < len(text), "the sender was stopped by its own socket"
    assert box.counter("ingest.connections_paused") > 0
    assert box.ledger().in_flight * 1000 < 4 << 20, "what waits in memory is bounded"
    while sent < len(text):
        try:
            sent += sender.send(text[sent : sent + 65536])
        except BlockingIOError:
            box.step()
    box.run_until(lambda: box.ledger().stored == 20_000)
    assert numbers(box.messages()) == list(range(20_000))


def test_datagrams_for_a_slow_disk_stay_in_the_kernel_when_no_partition_takes_any(make: Start) -> None:
    box = make(partitions=1)
    box.start()
    assert box.ingest is not None
    for _ in range(40):
        box.send_datagrams(*[line(number) + b" " + b"x" * 1000 for number in range(100)])
        box.ingest.turn()
    assert not box.agent._datagrams.reading
    box.run_until(lambda: box.ledger().received == 4000 - box.counter("ingest.kernel_drops") and box.ledger().balances)
    assert box.ledger().counted == 0


def test_datagrams_for_a_blocked_partition_are_counted_as_overflow_and_others_are_stored(box: SteppedIngest) -> None:
    blocked_host, other_host = (next(f"h{n}" for n in range(99) if partition_of_key(b"h%d" % n, 2) == partition) for partition in (0, 1))
    box.agent._topics.of("syslog").collector.set_blocked(frozenset({0}))  # type: ignore[union-attr]
    box.send_datagrams(line(0, blocked_host), line(1, other_host))
    box.run_until(lambda: box.ledger().received == 2 and box.ledger().balances)
    assert box.messages() == ["line 1"]
    assert box.counter('ingest.counted{reason="overflow"}') == 1


def test_what_a_log_writer_refuses_for_good_is_counted(box: SteppedIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert box.log_writer is not None
    monkeypatch.setattr(box.log_writer.agent._appends, "refusal", lambda _hosted, _entry: 87)
    box.connect().sendall(line(0) + b"\n")
    box.run_until(lambda: box.ledger().received == 1 and box.ledger().balances)
    assert box.counter('ingest.counted{reason="refused"}') == 1


def test_what_a_log_writer_refuses_for_now_is_sent_again(box: SteppedIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert box.log_writer is not None
    answers = [6, 56, 19, 0]
    monkeypatch.setattr(box.log_writer.agent._appends, "refusal", lambda _hosted, _entry: answers.pop(0) if len(answers) > 1 else 0)
    monkeypatch.setattr("services.ingest.producer.batch_answers.RETRY_NS", 1_000)
    box.connect().sendall(line(0) + b"\n")
    box.run_until(lambda: box.ledger().stored == 1)
    assert box.messages() == ["line 0"]
    assert box.ledger().resent == 3


def test_a_line_larger_than_the_topic_allows_is_counted(box: SteppedIngest) -> None:
    box.publish(2, {"max.message.bytes": "1000"})
    box.step()
    box.connect().sendall(b"<13>" + b"x" * 2000 + b"\n" + line(0) + b"\n")
    box.run_until(lambda: box.ledger().received == 2 and box.ledger().balances)
    assert box.counter('ingest.counted{reason="too_large"}') == 1
    assert box.messages() == ["line 0"]


# -- the topic comes and goes


def test_nothing_is_read_before_the_topic_is_there(make: Start) -> None:
    box = make()
    box.start_log_writer()
    box.start_ingest()
    box.send_datagrams(line(0))
    for _ in range(50):
        box.step()
    assert not box.is_ready
    assert box.ledger().received == 0
    box.create_topic()
    box.run_until(lambda: box.ledger().stored == 1)


def test_lines_wait_while_the_topic_is_gone(box: SteppedIngest) -> None:
    box.publish(0)
    box.step()
    box.connect().sendall(line(0) + b"\n")
    box.run_until(lambda: box.ledger().received == 1)
    for _ in range(20):
        box.step()
    assert box.ledger().in_flight == 1
    box.publish(2)
    box.run_until(lambda: box.ledger().stored == 1)


def test_a_topic_that_grows_takes_more(make: Start) -> None:
    box = make(partitions=2, ingest_syslog_key="none")
    box.start()
    box.publish(1)
    box.step()
    box.connect().sendall(line(0) + b"\n")
    box.run_until(lambda: box.ledger().stored == 1)
    box.publish(2)
    for number in range(1, 5):
        box.connect().sendall(line(number) + b"\n")
        box.run_until(lambda number=number: box.ledger().stored == number + 1)
    assert sorted(box.messages()) == expected(5)


# -- our own death


@pytest.mark.parametrize("turns", range(8))
def test_the_ledger_balances_after_a_kill_between_any_two_steps(box: SteppedIngest, turns: int) -> None:
    box.connect().sendall(b"".join(line(number) + b"\n" for number in range(300)))
    assert box.ingest is not None and box.log_writer is not None
    for step in range(turns):
        (box.ingest if step % 2 == 0 else box.log_writer).turn()
    before = box.ledger()
    box.kill_ingest()
    box.start_ingest()
    box.run_until(lambda: box.is_ready and box.agent._crash_accounting.is_accounted)
    after = box.ledger()
    assert after.balances
    assert after.received == before.received
    assert after.stored == len(box.records()), "what the dead incarnation had not read is known to be stored"
    assert box.counter('ingest.counted{reason="crash"}') == before.received - len(box.records())
    box.connect().sendall(line(0) + b"\n")
    box.run_until(lambda: box.ledger().received > after.received and box.ledger().balances)


@pytest.mark.parametrize("dies_too", [False, True])
def test_the_next_incarnation_counts_unread_completions_as_stored(dies_too: bool, box: SteppedIngest) -> None:
    box.connect().sendall(b"".join(line(number) + b"\n" for number in range(100)))
    assert box.ingest is not None and box.log_writer is not None
    while len(box.records()) < 100:
        box.log_writer.turn()
        box.ingest.context.poller.poll(0)
        box.agent._topics.close_batches(box.clock.monotonic_ns())
        box.agent._sender.send(box.clock.monotonic_ns())
        box.agent._proxies.flush()
    assert box.ledger().stored < 100
    box.kill_ingest()
    if dies_too:
        box.kill_log_writer()
    box.start_ingest()
    if dies_too:
        box.start_log_writer()
    box.run_until(lambda: box.agent._crash_accounting.is_accounted)
    assert (box.ledger().stored, box.ledger().counted) == (100, 0)


def test_a_kill_over_a_burst_of_completions_counts_one_batch_as_crash_at_most(make: Start) -> None:
    """The completions behind the one that was being handled are still in the ring."""
    box = make(partitions=8)
    box.start()
    box.step()
    box.connect().sendall(b"".join(line(number, f"host{number}") + b"\n" for number in range(8)))
    assert box.ingest is not None and box.log_writer is not None
    while len(box.records()) < 8:
        box.log_writer.turn()
        box.ingest.context.poller.poll(0)
        box.agent._topics.close_batches(box.clock.monotonic_ns())
        box.agent._sender.send(box.clock.monotonic_ns())
        box.agent._proxies.flush()
    (proxy,) = box.agent._proxies.by_disk.values()
    batches = len(proxy.outstanding)
    assert batches > 2

    def die(_batch: Any, _entry: Any) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        proxy.drain(die)
    box.kill_ingest()
    box.start_ingest()
    box.run_until(lambda: box.agent._crash_accounting.is_accounted)
    assert box.ledger().balances
    assert box.counter('ingest.counted{reason="crash"}') <= 8 - batches + 1, "records of one batch"


def test_the_death_of_both_is_booked_when_the_log_writer_is_back(box: SteppedIngest) -> None:
    box.connect().sendall(b"".join(line(number) + b"\n" for number in range(100)))
    assert box.ingest is not None
    for _ in range(5):
        box.ingest.turn()
    assert box.ledger().in_flight == 100
    box.kill_ingest()
    box.kill_log_writer()
    box.start_ingest()
    for _ in range(20):
        box.step()
    assert not box.agent._crash_accounting.is_accounted, (
        "whether the dead log-writer had completed anything is not known before its next incarnation reports it"
    )
    box.start_log_writer()
    box.run_until(lambda: box.agent._crash_accounting.is_accounted)
    assert box.ledger().balances
    assert box.counter('ingest.counted{reason="crash"}') == 100


def test_two_deaths_in_a_row_are_booked_once(box: SteppedIngest) -> None:
    box.connect().sendall(b"".join(line(number) + b"\n" for number in range(100)))
    assert box.ingest is not None
    for _ in range(5):
        box.ingest.turn()
    for _ in range(2):
        box.kill_ingest()
        box.start_ingest()
    box.run_until(lambda: box.agent._crash_accounting.is_accounted)
    assert box.ledger().balances
    assert (box.ledger().received, box.ledger().stored) == (100, len(box.records())), "the log-writer may have taken them before it noticed"


def test_nothing_of_a_dead_incarnation_stays_in_shared_memory(box: SteppedIngest) -> None:
    from appliance.shm.mapping import list_names

    for _ in range(3):
        box.kill_ingest()
        box.start_ingest()
        box.run_until(lambda: box.is_ready and box.agent._crash_accounting.is_accounted)
    names = [name for name in list_names(box.layout.shared_memory_prefix) if "ingest@0" in name]
    assert sorted(name.split(".")[2] for name in names) == ["counters"]


def test_a_clean_stop_takes_what_has_arrived_and_stores_it(box: SteppedIngest) -> None:
    box.connect().sendall(b"".join(line(number) + b"\n" for number in range(99)) + line(99))
    box.step()
    box.send_datagrams(line(100), line(101))
    box.agent.begin_stop()
    box.run_until(lambda: box.agent.stopped())
    assert sorted(numbers(box.messages())) == list(range(102))
    assert box.ledger().balances


def stop_without_log_writer(box: SteppedIngest) -> None:
    """One line was received, and no log-writer takes it within the time of a stop."""
    box.start()
    box.connect().sendall(line(0) + b"\n")
    box.kill_log_writer()
    box.run_until(lambda: box.ledger().received == 1)
    agent = box.agent
    agent.begin_stop()
    for _ in range(20):
        box.step()
    assert not agent.stopped()
    agent.close()
    box.ingest = None


def test_a_stop_without_a_log_writer_and_without_a_spool_counts_what_was_not_taken(make: Start) -> None:
    box = make(ingest_spool_bytes=0)
    stop_without_log_writer(box)
    assert box.counter('ingest.counted{reason="shutdown"}') == 1
    assert box.ledger().balances


def test_what_was_not_taken_before_a_stop_waits_in_the_spool_for_the_next_incarnation(make: Start) -> None:
    box = make()
    stop_without_log_writer(box)
    assert box.ledger().in_flight == 1
    box.start_log_writer()
    box.start_ingest()
    box.run_until(lambda: box.ledger().stored == 1)
    assert box.messages() == ["line 0"]
    assert (box.ledger().balances, box.ledger().counted) == (True, 0)
