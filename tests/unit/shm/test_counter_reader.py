"""A reader that stays sees what one sees that comes anew."""

from __future__ import annotations

from appliance.base.layout import BoxLayout
from appliance.shm.counters import CounterReader, Counters, read_counters
from appliance.shm.mapping import unlink


def test_values_labels_and_histograms_that_come_later_are_seen(layout: BoxLayout) -> None:
    reader = CounterReader(layout, "acceptor@0")
    assert reader.read() is None
    counters = Counters.create_or_adopt(layout, "acceptor@0", 1, 77)
    counters.counter("a.b").add(3)
    assert reader.read() == read_counters(layout, "acceptor@0")
    counters.counter("a.c").add(2)
    counters.histogram("a.d_us").record(5_000)
    counters.set_state("serving")
    counters.beat(9)
    seen = reader.read()
    assert seen == read_counters(layout, "acceptor@0") and seen is not None
    assert (seen.values, seen.state, seen.heartbeat_ns, seen.histograms["a.d_us"].samples) == ({"a.b": 3, "a.c": 2}, "serving", 9, 1)
    reader.close()
    counters.close()


def test_a_reader_follows_the_next_incarnation_and_a_recreated_object(layout: BoxLayout) -> None:
    reader = CounterReader(layout, "ingest@0")
    first = Counters.create_or_adopt(layout, "ingest@0", 1)
    first.counter("a.b").add()
    reader.read()
    second = Counters.create_or_adopt(layout, "ingest@0", 2)
    second.counter("a.b").add()
    seen = reader.read()
    assert seen is not None and seen.values == {"a.b": 2}
    unlink(layout.shared_memory_name("counters", "ingest@0"))
    assert reader.read() is None
    anew = Counters.create_or_adopt(layout, "ingest@0", 3)
    anew.counter("z.y").add(7)
    seen = reader.read()
    assert seen is not None and seen.values == {"z.y": 7}
    reader.close()
    for counters in (first, second, anew):
        counters.close()
