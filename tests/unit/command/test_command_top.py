from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.command.box_activity import Activity, ProcessUsage, Sample, activity_between, cpu_percent, describe_traffic, mean_record_bytes, read_usage
from appliance.command.box_status import ProcessStatus, read_shared_memory
from appliance.command.output import micros_text
from appliance.command.top import plain_text, rich_screen
from appliance.senders.accounting import COUNTED_COUNTER, DUPLICATE_COUNTER, RECEIVED_COUNTER, RESENT_COUNTER, STORED_COUNTER, LossReason, read_ledger
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_ONLINE, ROLE_LEADER, PartitionTableWriter, Row
from lab.scratch_layout import scratch_layout

TOPIC_ID = TopicId(bytes(range(16)))
ROW = Row(TOPIC_ID, 0, 0, ROLE_LEADER, 3, 10, 50, 50, 50, 1, 1, 1, 0, 5_000, 0, 5_000, 1)
KEY = (bytes(TOPIC_ID), 0)
IMAGE = MetadataImage(
    5,
    "cluster",
    1,
    {1: BrokerImage(1, "localhost", 9092)},
    {
        "syslog": TopicImage("syslog", TOPIC_ID, (PartitionImage(1, 3, (1,), (1,), "d0"),), {}),
        "quiet": TopicImage("quiet", TopicId(bytes(16)), (), {}),
    },
)
BOX = {"broker_id": 1, "disks": [{"name": "d0", "path": "/srv/d0"}]}


class WatchedBox:
    """Counters and a table that a test moves."""

    def __init__(self, layout: BoxLayout) -> None:
        self.layout = layout
        self.clock = ManualClock()
        self.counters = {name: Counters.create_or_adopt(layout, name, 1) for name in ("acceptor@0", "acceptor@1", "log-writer@d0", "ingest@0")}
        self.table = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 1), 1)
        self.table.set_disk_state(DISK_ONLINE)
        self.row, _ = self.table.add_row(ROW)

    def sample(self, cpu_seconds: float = 0.0) -> Sample:
        return Sample(read_shared_memory(self.layout, ["d0"], self.clock), {os.getpid(): ProcessUsage(cpu_seconds, 4 << 20)})

    def close(self) -> None:
        for counters in self.counters.values():
            counters.close()
        self.table.shared.close()


@pytest.fixture
def box() -> Iterator[WatchedBox]:
    with scratch_layout() as layout:
        made = WatchedBox(layout)
        yield made
        made.close()


def watched(box: WatchedBox, work: Callable[[], None]) -> Activity:
    """What half a second in which `work` was done looks like."""
    before = box.sample(1.0)
    work()
    box.clock.advance_ms(500)
    return activity_between(BOX, IMAGE, [ProcessStatus("log-writer@d0", os.getpid(), "serving", 1, 0)], before, box.sample(1.25))


def test_an_idle_box_shows_nothing_moving(box: WatchedBox) -> None:
    box.counters["acceptor@0"].counter("produce.requests").add(7)
    box.counters["acceptor@0"].histogram("produce.latency_us").record(1_000_000)
    activity = watched(box, lambda: None)
    assert all(request.per_s == 0 and request.latency == (None, None, None, None) for request in activity.requests)
    assert not any(topic.moves for topic in activity.topics)
    assert activity.seconds == 0.5


def test_requests_are_rises_of_all_acceptors_with_the_latencies_of_the_time_between(box: WatchedBox) -> None:
    box.counters["acceptor@0"].histogram("produce.latency_us").record(60_000_000_000)

    def work() -> None:
        for name in ("acceptor@0", "acceptor@1"):
            box.counters[name].counter("produce.requests").add(100)
            for _ in range(99):
                box.counters[name].histogram("produce.latency_us").record(500_000)
            box.counters[name].histogram("produce.latency_us").record(20_000_000)
            box.counters[name].counter("acceptor.connections").set(4)
            box.counters[name].counter("acceptor.parked").set(2)

    activity = watched(box, work)
    produce = next(request for request in activity.requests if request.name == "produce")
    assert produce.per_s == 400
    p50, p99, p999, largest = produce.latency
    assert p50 == pytest.approx(500, rel=0.125) and p99 == pytest.approx(500, rel=0.125)
    assert p999 == largest == pytest.approx(20_000, rel=0.125)
    assert (activity.connections, activity.parked) == (8, 4)


def test_a_disk_shows_its_writers_rates_and_a_process_its_cost(box: WatchedBox) -> None:
    def work() -> None:
        counters = box.counters["log-writer@d0"]
        counters.counter("log_writer.bytes").add(1_000)
        counters.counter("log_writer.append_calls").add(3)
        counters.counter("disk.free_bytes").set(77)
        counters.histogram("log_writer.append_round_us").record(5_000)

    activity = watched(box, work)
    (disk,) = activity.disks
    assert (disk.name, disk.state, disk.free_bytes, disk.bytes_per_s, disk.appends_per_s) == ("d0", "online", 77, 2_000, 6)
    assert disk.append.p99_us == 5
    (process,) = activity.processes
    assert (process.cpu_percent, process.pss_bytes) == (50.0, 4 << 20)


def test_topics_come_in_by_the_table_and_go_out_by_the_acceptors_bytes(box: WatchedBox) -> None:
    def work() -> None:
        box.table.store_progress(box.row, 70, 70, 7_000)
        box.counters["acceptor@0"].counter('fetch.topic_bytes{topic="syslog"}').add(1_500)
        box.counters["acceptor@1"].counter('fetch.topic_bytes{topic="syslog"}').add(500)

    topics = watched(box, work).topics
    assert topics[0] == ("syslog", 1, 40, 4_000, 40, 4_000)
    assert topics[1] == ("quiet", 0, 0, 0, 0, 0)


def test_the_syslog_ledger_is_the_one_that_ingest_keeps(box: WatchedBox) -> None:
    def work() -> None:
        counters = box.counters["ingest@0"]
        counters.counter(RECEIVED_COUNTER.format(listener="syslog-udp")).add(60)
        counters.counter(RECEIVED_COUNTER.format(listener="relp")).add(40)
        counters.counter(STORED_COUNTER.format(listener="relp")).add(70)
        counters.counter(DUPLICATE_COUNTER.format(listener="relp")).add(10)
        counters.counter(RESENT_COUNTER).add(9)
        for reason in LossReason:
            counters.counter(COUNTED_COUNTER.format(listener="relp", reason=reason)).add(1)

    syslog = watched(box, work).syslog
    ledger = read_ledger(box.sample().reading.counters["ingest@0"].values)
    assert syslog[1:6] == (ledger.received, ledger.stored, ledger.counted, ledger.in_flight, ledger.resent)
    assert syslog.lines_per_s == 200 and syslog.in_flight == 20 - len(LossReason)


@given(st.integers(1, 1_000), st.integers(1, 5_000), st.integers(0, 1_000), st.integers(1, 100))
def test_a_rolled_segment_hides_no_records_and_its_bytes_are_near(before_records: int, added: int, in_new: int, record_bytes: int) -> None:
    """Records of equal size: the estimate is exact."""
    in_new = min(in_new, added)
    before = ROW._replace(log_end_offset=before_records, active_base_offset=0, active_position=before_records * record_bytes)
    end = before_records + added
    after = ROW._replace(log_end_offset=end, active_base_offset=end - in_new, active_position=in_new * record_bytes)
    topic = next(topic for topic in describe_traffic(IMAGE, {KEY: before}, {KEY: after}, {}, {}, 1.0) if topic.name == "syslog")
    assert topic.records_in_per_s == added
    assert topic.bytes_in_per_s == pytest.approx(added * record_bytes, abs=0.1)


def test_a_partition_that_was_not_there_before_did_not_take_all_its_records_just_now() -> None:
    topics = describe_traffic(IMAGE, {}, {KEY: ROW}, {}, {}, 1.0)
    assert not any(topic.moves for topic in topics)
    assert mean_record_bytes([]) == 0


def test_plain_text_is_what_programs_can_cut(box: WatchedBox) -> None:
    text = plain_text("box x", watched(box, lambda: None))
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0] == "box x  0 connections, 0 requests parked"
    assert [line.split()[0] for line in lines if line.isupper()] == ["PROCESS", "DISK", "WORK", "TOPIC"]
    assert lines[-1] == "syslog 0 lines/s: 0 received = 0 stored + 0 counted + 0 in flight"


def test_a_small_terminal_leaves_topics_out_and_says_so(box: WatchedBox) -> None:
    from rich.console import Console

    activity = watched(box, lambda: None)
    processes = [activity.processes[0]._replace(name=f"process-{number}", cpu_percent=float(number)) for number in range(20)]
    many = activity._replace(topics=[activity.topics[0]._replace(name=f"topic-{number}") for number in range(50)], processes=processes)
    console = Console(width=120, height=30, file=open(os.devnull, "w"), record=True)
    console.print(rich_screen("box x", many, 30))
    text = console.export_text()
    console.file.close()
    assert "topic-0" in text and "topic-49" not in text
    shown = sum(f"topic-{number} " in text for number in range(50))
    assert "process-19" in text and "process-0 " not in text, "the busiest stay"
    assert f"and {50 - shown} more" in text and len(text.splitlines()) <= 30


def test_a_process_costs_what_proc_says() -> None:
    usage = read_usage(os.getpid())
    assert usage is not None and usage.cpu_seconds > 0
    assert usage.pss_bytes is not None and usage.pss_bytes > 1 << 20
    assert read_usage(0x7FFFFFF0) is None


def test_a_restarted_process_is_never_below_zero() -> None:
    assert cpu_percent(ProcessUsage(9.0, None), ProcessUsage(0.5, None), 1.0) == 50
    assert cpu_percent(None, ProcessUsage(0.5, None), 1.0) is None


@pytest.mark.parametrize(("microseconds", "text"), [(None, "-"), (0, "0 us"), (850.4, "850 us"), (1_250, "1.2 ms"), (2_500_000, "2.5 s")])
def test_latencies_have_fitting_units(microseconds: float | None, text: str) -> None:
    assert micros_text(microseconds) == text


def test_a_document_is_json_with_numbers(box: WatchedBox) -> None:
    document = json.loads(json.dumps(watched(box, lambda: None).document()))
    assert document["requests"]["fetch"] == {"per_s": 0.0, "p50_us": None, "p99_us": None, "p999_us": None, "max_us": None}
    assert set(document) == {"seconds", "processes", "disks", "topics", "requests", "syslog", "connections", "parked"}


@pytest.mark.slow
@pytest.mark.system
def test_top_without_a_box_says_where_it_looked() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "appliance.command.main", "top", "--data", "/nowhere"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and "no running box has the data directory /nowhere" in done.stderr
