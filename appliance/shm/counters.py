"""Counters that outlive their process: one object per process name, adopted by its next
incarnation, readable by all.

Only the owner writes. Readers (console, commands, supervisor) map read-only. An increment is a load
and a store of one word (60 ns). Latency histograms (`shm/histogram.py`) follow the slots.

Weak: 1,000 slots and 16 histograms per process; further labels share the slot `counters.overflow`.
Labels are cut at 120 bytes: longer ones with the same beginning share a slot.

Reads the counters of one process repeatedly: the object stays mapped, and each label is decoded
once.

`read_counters` maps and decodes everything each time (0.5 ms for 300 labels); this costs 20 µs plus
new labels. Owned by one reader. Weak: an object that was created again under the same name is
detected by its inode, at the next read.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from appliance.base.layout import BoxLayout
from appliance.shm.histogram import BUCKETS, Histogram, HistogramReading
from appliance.shm.mapping import (
    HEADER_BYTES,
    INCARNATION_WORD,
    PID_WORD,
    WORD_BYTES,
    LayoutMismatch,
    SharedObject,
    SharedObjectAbsent,
    inode_of,
    is_held,
    list_names,
    lost_objects,
    unlink,
)

# Counters: byte, name, meaning.
#
# │     0 │                        │ magic MLRcount in the header
# │    64 │ STARTED_WORD           │ wall clock at the start of this incarnation, ms
# │    72 │ HEARTBEAT_WORD         │ monotonic clock at the last turn, ns
# │    80 │ USED_WORD              │ slots in use; stored after label and value of a new slot
# │    88 │ HISTOGRAMS_USED_WORD   │ histograms in use; stored after the label of a new one
# │   104 │ _STATE_POSITION        │ 24 bytes of text: starting, recovering, serving, stopping
# │   192 │ VALUES_POSITION        │ 1,000 words
# │  8192 │ LABELS_POSITION        │ 1,000 labels of 120 bytes, filled up with zeros
# │128192 │ _HISTOGRAMS_POSITION   │ 16 histograms of 104 words each
# │141504 │ HISTOGRAM_LABELS_POSITION    labels of the histograms, 120 bytes each

PURPOSE = b"MLRcount"
SLOTS = 1000
LABEL_BYTES = 120
HISTOGRAMS = 16

# Words after the header.
STARTED_WORD = HEADER_BYTES // WORD_BYTES
HEARTBEAT_WORD = STARTED_WORD + 1
USED_WORD = STARTED_WORD + 2
HISTOGRAMS_USED_WORD = STARTED_WORD + 3
STATE_BYTES = 24
_STATE_POSITION = HEADER_BYTES + 5 * WORD_BYTES
VALUES_POSITION = HEADER_BYTES + 128
LABELS_POSITION = VALUES_POSITION + SLOTS * WORD_BYTES
_HISTOGRAMS_POSITION = LABELS_POSITION + SLOTS * LABEL_BYTES
_HISTOGRAM_BYTES = BUCKETS * WORD_BYTES
HISTOGRAM_LABELS_POSITION = _HISTOGRAMS_POSITION + HISTOGRAMS * _HISTOGRAM_BYTES
SIZE_BYTES = HISTOGRAM_LABELS_POSITION + HISTOGRAMS * LABEL_BYTES
assert _HISTOGRAMS_POSITION % WORD_BYTES == 0
assert _STATE_POSITION + STATE_BYTES <= VALUES_POSITION and VALUES_POSITION % WORD_BYTES == 0

DEAD = "dead"
"""State of a process whose counters another one keeps."""
_OVERFLOW_LABEL = "counters.overflow"


class Counter:
    """One slot; not shared between threads."""

    __slots__ = ("_index", "_words")

    def __init__(self, words: memoryview, index: int) -> None:
        self._words = words
        self._index = index

    def add(self, amount: int = 1) -> None:
        self._words[self._index] += amount

    def set(self, value: int) -> None:
        self._words[self._index] = value

    @property
    def value(self) -> int:
        return int(self._words[self._index])


class Counters:
    """The owner's side."""

    def __init__(self, shared: SharedObject) -> None:
        self.shared = shared
        self._words = shared.words
        self._slots: dict[str, Counter] = {}
        self._gauges: dict[str, Counter] = {}
        for index in range(self._words[USED_WORD]):
            self._slots[read_label(shared.memory, LABELS_POSITION, index)] = Counter(self._words, VALUES_POSITION // WORD_BYTES + index)
        self._histograms: dict[str, Histogram] = {}
        for index in range(self._words[HISTOGRAMS_USED_WORD]):
            self._histograms[read_label(shared.memory, HISTOGRAM_LABELS_POSITION, index)] = Histogram(histogram_words(self._words, index))

    @classmethod
    def create_or_adopt(cls, layout: BoxLayout, process_name: str, incarnation: int, wall_ms: int = 0) -> Counters:
        """Return the counters of the process: those of its previous incarnation with their values,
        or new ones at zero."""
        name = layout.shared_memory_name("counters", process_name)
        try:
            shared = SharedObject.attach(name, PURPOSE, writable=True, adopts=True)
            if not shared.is_of_this_boot():
                raise SharedObjectAbsent(f"{name} is of another boot")
            shared.words[INCARNATION_WORD] = incarnation
            shared.words[PID_WORD] = os.getpid()
        except (SharedObjectAbsent, LayoutMismatch):
            shared = SharedObject.create(name, PURPOSE, SIZE_BYTES, incarnation)
        shared.words[STARTED_WORD] = wall_ms
        shared.words[HEARTBEAT_WORD] = 0
        made = cls(shared)
        made.set_state("starting")
        return made

    def counter(self, label: str) -> Counter:
        """Return the slot of `label`, such as `ingest.received{transport="udp"}`; created at its
        first use."""
        found = self._slots.get(label)
        if found is None:
            found = self._add_slot(label)
        return found

    def gauge(self, label: str) -> Counter:
        """Return the slot of `label`, set to zero at its first use in this incarnation: a gauge
        describes the present."""
        found = self._gauges.get(label)
        if found is None:
            found = self._gauges[label] = self.counter(label)
            found.set(0)
        return found

    def _add_slot(self, label: str) -> Counter:
        words = self._words
        used = words[USED_WORD]
        text = _label_bytes(label)
        kept = text.decode()
        if kept != label:
            # use the label that the next incarnation will read, otherwise it would allocate another
            # slot
            return self.counter(kept)
        if used >= SLOTS - 1 and label != _OVERFLOW_LABEL:
            return self.counter(_OVERFLOW_LABEL)
        position = LABELS_POSITION + used * LABEL_BYTES
        self.shared.memory[position : position + LABEL_BYTES] = text.ljust(LABEL_BYTES, b"\0")
        counter = Counter(words, VALUES_POSITION // WORD_BYTES + used)
        counter.set(0)
        words[USED_WORD] = used + 1
        self._slots[label] = counter
        return counter

    def histogram(self, label: str) -> Histogram:
        """Return the histogram of `label`, such as `produce.latency_us`; created at its first use.
        Those beyond the last slot share it."""
        label = _label_bytes(label).decode()
        found = self._histograms.get(label)
        return self._add_histogram(label) if found is None else found

    def _add_histogram(self, label: str) -> Histogram:
        used = self._words[HISTOGRAMS_USED_WORD]
        if used >= HISTOGRAMS - 1 and label != _OVERFLOW_LABEL:
            return self.histogram(_OVERFLOW_LABEL)
        position = HISTOGRAM_LABELS_POSITION + used * LABEL_BYTES
        self.shared.memory[position : position + LABEL_BYTES] = _label_bytes(label).ljust(LABEL_BYTES, b"\0")
        made = self._histograms[label] = Histogram(histogram_words(self._words, used))
        self._words[HISTOGRAMS_USED_WORD] = used + 1
        return made

    def labels(self) -> list[str]:
        return list(self._slots)

    def beat(self, now_ns: int) -> None:
        """Store the heartbeat of the duty cycle, which the watchdog reads.

        `now_ns` is monotonic.
        """
        self._words[HEARTBEAT_WORD] = now_ns

    def set_state(self, state: str) -> None:
        """Store the state: `starting`, `recovering`, `serving`, `stopping`; at most 24 ASCII bytes."""
        self.shared.memory[_STATE_POSITION : _STATE_POSITION + STATE_BYTES] = state.encode()[:STATE_BYTES].ljust(STATE_BYTES, b"\0")

    @property
    def is_deleted(self) -> bool:
        """Return whether another program deleted the object, so that no process can read it."""
        return self.shared.name in lost_objects(self.shared.name)

    @property
    def state(self) -> str:
        return bytes(self.shared.memory[_STATE_POSITION : _STATE_POSITION + STATE_BYTES]).rstrip(b"\0").decode()

    def close(self) -> None:
        self.shared.close()


class CounterSnapshot(NamedTuple):
    """The counters of a process at the time of reading. `is_alive`: their owner runs, and does not
    say that the process for which it keeps them (ZooKeeper's JVM) has ended."""

    process_name: str
    pid: int
    started_wall_ms: int
    heartbeat_ns: int
    state: str
    values: dict[str, int]
    histograms: dict[str, HistogramReading] = {}  # noqa: RUF012  never changed
    is_alive: bool = False


def read_counters(layout: BoxLayout, process_name: str) -> CounterSnapshot | None:
    """Return the counters of a process, running or dead; None if it never had any."""
    try:
        shared = SharedObject.attach(layout.shared_memory_name("counters", process_name), PURPOSE, writable=False, observes=True)
    except (SharedObjectAbsent, LayoutMismatch):
        return None  # counters of another release cannot be decoded
    words, memory = shared.words, shared.memory
    used = min(words[USED_WORD], SLOTS)
    first = VALUES_POSITION // WORD_BYTES
    values = {read_label(memory, LABELS_POSITION, index): int(words[first + index]) for index in range(used)}
    histograms = {}
    for index in range(min(words[HISTOGRAMS_USED_WORD], HISTOGRAMS)):
        with histogram_words(words, index) as buckets:
            histograms[read_label(memory, HISTOGRAM_LABELS_POSITION, index)] = HistogramReading(tuple(buckets))
    state = read_state(memory)
    snapshot = CounterSnapshot(
        process_name, words[PID_WORD], words[STARTED_WORD], words[HEARTBEAT_WORD], state, values, histograms, state != DEAD and is_held(shared.name)
    )
    shared.close()
    return snapshot


def pid_in_counters(layout: BoxLayout, process_name: str) -> tuple[int, bool]:
    """Return the pid of the process that writes, or last wrote, these counters, and whether their
    owner runs; 0 if there are none."""
    try:
        shared = SharedObject.attach(layout.shared_memory_name("counters", process_name), PURPOSE, writable=False, observes=True)
    except (SharedObjectAbsent, LayoutMismatch):
        return 0, False
    pid = shared.pid
    shared.close()
    return pid, is_held(shared.name)


def list_counters(layout: BoxLayout) -> list[str]:
    """Return the names of the processes of this box that have counters."""
    prefix = layout.shared_memory_name("counters", "")
    return [name[len(prefix) :] for name in list_names(prefix, observes=True)]


def unlink_all(layout: BoxLayout) -> None:
    """Remove all shared-memory objects of the box, at the end of its supervisor."""
    for name in list_names(layout.shared_memory_prefix):
        unlink(name)


def _label_bytes(label: str) -> bytes:
    """Return the bytes of a label that fit its slot, cut between characters."""
    return label.encode()[:LABEL_BYTES].decode(errors="ignore").encode()


def histogram_words(words: memoryview, index: int) -> memoryview:
    first = _HISTOGRAMS_POSITION // WORD_BYTES + index * BUCKETS
    return words[first : first + BUCKETS]


def read_state(memory: memoryview) -> str:
    """Return the state that the process stored."""
    return bytes(memory[_STATE_POSITION : _STATE_POSITION + STATE_BYTES]).rstrip(b"\0").decode("ascii", "replace")


def read_label(memory: memoryview, labels_position: int, index: int) -> str:
    position = labels_position + index * LABEL_BYTES
    return bytes(memory[position : position + LABEL_BYTES]).rstrip(b"\0").decode()


_FIRST_VALUE = VALUES_POSITION // WORD_BYTES


class CounterReader:
    """A cached reader; `read` returns what `read_counters` would."""

    def __init__(self, layout: BoxLayout, process_name: str) -> None:
        self.process_name = process_name
        self._name = layout.shared_memory_name("counters", process_name)
        self._shared: SharedObject | None = None
        self._inode = 0
        self._labels: list[str] = []
        self._histogram_labels: list[str] = []

    def read(self) -> CounterSnapshot | None:
        """Return the counters; None if the process never had any, or they are of another release."""
        shared = self._attached()
        if shared is None:
            return None
        words, memory = shared.words, shared.memory
        used = min(words[USED_WORD], SLOTS)
        self._labels += [read_label(memory, LABELS_POSITION, index) for index in range(len(self._labels), used)]
        values = dict(zip(self._labels, words[_FIRST_VALUE : _FIRST_VALUE + used].tolist()))
        known = min(words[HISTOGRAMS_USED_WORD], HISTOGRAMS)
        self._histogram_labels += [read_label(memory, HISTOGRAM_LABELS_POSITION, index) for index in range(len(self._histogram_labels), known)]
        histograms = {label: HistogramReading(tuple(histogram_words(words, index))) for index, label in enumerate(self._histogram_labels)}
        state = read_state(memory)
        is_alive = state != DEAD and is_held(self._name)
        return CounterSnapshot(self.process_name, words[PID_WORD], words[STARTED_WORD], words[HEARTBEAT_WORD], state, values, histograms, is_alive)

    def _attached(self) -> SharedObject | None:
        inode = inode_of(self._name)
        if self._shared is not None and inode == self._inode:
            return self._shared
        self.close()
        if inode:
            try:
                self._shared = SharedObject.attach(self._name, PURPOSE, writable=False, observes=True)
            except (SharedObjectAbsent, LayoutMismatch):
                return None
            self._inode = inode
        return self._shared

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
        self._shared = None
        self._labels.clear()
        self._histogram_labels.clear()
