"""Two pinned processes against each other: torn rows, order of rings, lost wake-ups; and controls that must go wrong.

Run as `python -m tests.system.shared_memory_stress EXPERIMENT SECONDS [broken]`; prints one line of JSON. `broken` leaves out what the
experiment is about: the look at a row's sequences, the order of payload and tail, the fences. An experiment stops early when it has
seen ENOUGH of what it looks for. Weak spot: "none seen" is evidence, not proof; the controls say how much it is worth on this machine.

Wake-ups. A race of 50 ns is not met by chance: both sides copy payload into cold memory just before, so that their stores wait for cache lines
while their loads go on; delays are random; and the fences are not replaced by something that does nothing but taken out of the text
of `doorbell.py`, because even the call of a function that does nothing hides the race (one lost of 9 million, against 1 of 1,000). So does
one fence of the two: that both are there is held by tests/unit/shm/test_doorbell.py. There is no backstop: a lost wake-up is counted.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections.abc import Callable
from struct import Struct
from typing import Any

from appliance.shm import doorbell
from appliance.shm.mapping import SharedObject
from appliance.shm.partition_table import (
    LOG_START_OFFSET,
    ROW_BYTES,
    ROWS_POSITION,
    PartitionTableReader,
    PartitionTableWriter,
    Row,
    TornRow,
)
from appliance.shm.ring import RingPair

ENOUGH = 5
CHECK_EVERY = 512
Result = dict[str, int]

# One page of control words, each on its own cache line.
STOP, TAIL, HEAD, SLEEPING, RUNG = range(8, 8 + 5 * 8, 8)
CONTROL_BYTES = 4_096


def run_two(child: Callable[[], None], parent: Callable[[], Result], words: memoryview) -> Result:
    """Run both, each on its own processor; the child ends when the parent has."""
    processors = sorted(os.sched_getaffinity(0))
    pid = os.fork()
    os.sched_setaffinity(0, {processors[0 if pid else 1]})
    if pid == 0:
        child()
        os._exit(0)
    try:
        return parent()
    finally:
        words[STOP] = 1
        os.waitpid(pid, 0)


def new_name() -> str:
    return f"/millrace-stress-{os.getpid()}"


def control_words() -> memoryview:
    """A page that both processes share; the object's name is gone at once."""
    shared = SharedObject.create(new_name() + "-control", b"MLRtests", CONTROL_BYTES, 1)
    shared.unlink()
    return shared.words


# -- rows


def rows(seconds: float, broken: bool) -> Result:
    """One process rewrites a row in which every field is the same number, another reads it. Torn: a row of several numbers."""
    writer = PartitionTableWriter.create(new_name(), 1)
    reader = PartitionTableReader.attach(writer.shared.name)
    writer.shared.unlink()
    words = control_words()
    index, _ = writer.add_row(uniform_row(0))
    take = reader.unpack_row if broken else None
    position = reader_position(index)

    def write() -> None:
        number = 0
        while not words[STOP]:
            for _ in range(CHECK_EVERY):
                number += 1
                writer.store(index, uniform_row(number))

    def read() -> Result:
        reads = torn = given_up = 0
        last = -1
        end = time.monotonic() + seconds
        while time.monotonic() < end and (not broken or torn < 1_000):
            for _ in range(CHECK_EVERY):
                try:
                    row = take(reader._memory, position) if take is not None else reader.read_words(index)
                except TornRow:
                    given_up += 1
                    continue
                reads += 1
                numbers = {row[word] for word in (5, 6, 7, 8, 10, 11, 12, 13, 14)}
                if len(numbers) > 1 or row[LOG_START_OFFSET] < last:
                    torn += 1
                last = row[LOG_START_OFFSET]
        return {"reads": reads, "torn": torn, "given_up": given_up, "rows_seen": last}

    return run_two(write, read, words)


def uniform_row(number: int) -> Row:
    return Row(bytes(16), 0, 1, 1, 0, number, number, number, number, 1, 1, 1, number, number, number, number, number)


def reader_position(index: int) -> int:
    return ROWS_POSITION + index * ROW_BYTES


# -- rings


ENTRY = Struct("@8Q")
CAPACITY = 64
PAYLOAD_BYTES = 256


def ring(seconds: float, broken: bool) -> Result:
    """Entries and payloads of one process read by another: every one once, in order, whole. Broken: the tail goes before the entry."""
    pair = RingPair.create(new_name(), CAPACITY, 1)
    other = RingPair.attach(pair.shared.descriptor)
    pair.shared.unlink()
    arena = SharedObject.create(new_name() + "-arena", b"MLRtests", CAPACITY * 4 * PAYLOAD_BYTES + CONTROL_BYTES, 1)
    arena.unlink()
    words = control_words()
    memory = arena.memory

    def place(number: int) -> int:
        return CONTROL_BYTES + number % (CAPACITY * 4) * PAYLOAD_BYTES

    def fill(number: int) -> tuple[int, ...]:
        position = place(number)
        memory[position : position + PAYLOAD_BYTES] = ENTRY.pack(*(number,) * 8) * (PAYLOAD_BYTES // ENTRY.size)
        return (number, *(number * factor & (1 << 64) - 1 for factor in range(3, 10)))

    def offer() -> None:
        producer = pair.descriptor_producer(ENTRY)
        chance = random.Random(1)
        number = 0
        while not words[STOP]:
            count = chance.randrange(1, 12)
            if broken:
                if producer.free_entries():
                    offer_tail_first(producer, number + 1, fill)
                    number += 1
            elif count < 4:
                number += bool(producer.offer(*fill(number + 1)))
            elif producer.free_entries() >= count:
                producer.offer_all([fill(number + step) for step in range(1, count + 1)])
                number += count

    def poll() -> Result:
        consumer = other.descriptor_consumer(ENTRY)
        chance = random.Random(2)
        seen = bad = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end and bad < 100:
            for _ in range(CHECK_EVERY):
                for entry in consumer.poll(chance.randrange(1, CAPACITY)):
                    seen += 1
                    position = place(seen)
                    payload = set(ENTRY.unpack_from(memory, position)) | set(ENTRY.unpack_from(memory, position + PAYLOAD_BYTES - ENTRY.size))
                    if entry != (seen, *(seen * factor & (1 << 64) - 1 for factor in range(3, 10))) or payload != {seen}:
                        bad += 1
        return {"seen": seen, "bad": bad}

    return run_two(offer, poll, words)


def offer_tail_first(producer: Any, number: int, fill: Callable[[int], tuple[int, ...]]) -> None:
    """What `RingProducer.offer` would do if it published first and wrote then."""
    tail = producer.tail
    producer._words[producer._tail_index] = producer.tail = tail + 1
    producer._pack_into(producer._memory, producer._base + (tail & producer._mask) * ENTRY.size, *fill(number))


# -- wake-ups


COLD_BYTES = 1 << 26
IN_VAIN_MS = 5
DELAYS = 4_096


def wake_ups(seconds: float, broken: bool) -> Result:
    """One item at a time: publish and ring; look, go to sleep, look again, wait. Lost: it was published and not rung, and its consumer sleeps."""
    shared = SharedObject.create(new_name(), b"MLRtests", CONTROL_BYTES + 2 * (COLD_BYTES + (1 << 16)), 1)
    shared.unlink()
    words, memory = shared.words, shared.memory
    bell = doorbell.Doorbell(words, SLEEPING)
    button = doorbell.DoorbellButton(bell.fileno(), words, SLEEPING)

    def chances(seed: int) -> tuple[list[range], list[bytes]]:
        chance = random.Random(seed)
        return [range(chance.randrange(chance.choice((4, 10, 30)))) for _ in range(DELAYS)], [bytes(chance.choice((512, 2_048, 4_096))) for _ in range(DELAYS)]

    def produce() -> None:
        delays, payloads = chances(3)
        ring_if_sleeping = button.ring_if_sleeping
        tail = 0
        position = CONTROL_BYTES
        while not words[STOP]:
            while words[HEAD] != tail and not words[STOP]:
                pass
            for _ in delays[tail % DELAYS]:
                pass
            payload = payloads[tail % DELAYS]
            position = CONTROL_BYTES + (position + 4_096) % COLD_BYTES
            end = position + len(payload)
            tail += 1
            memory[position:end] = payload
            if broken:
                # What a processor may make of store and load without a fence, done by hand: some never do it, others once in a million.
                is_asleep = words[SLEEPING]
                words[TAIL] = tail
                if is_asleep:
                    os.eventfd_write(bell.fileno(), 1)
            else:
                words[TAIL] = tail
                ring_if_sleeping()
            words[RUNG] = tail

    def consume() -> Result:
        delays, payloads = chances(4)
        prepare_to_sleep = bell.prepare_to_sleep
        poll = select.poll()
        poll.register(bell.fileno(), select.POLLIN)
        head = slept = lost = 0
        base = CONTROL_BYTES + COLD_BYTES + (1 << 16)
        position = base
        end = time.monotonic() + seconds
        while True:
            if words[TAIL] == head:
                for _ in delays[head % DELAYS]:
                    pass
                payload = payloads[head % DELAYS]
                position = base + (position + 4_096) % COLD_BYTES
                limit = position + len(payload)
                memory[position:limit] = payload
                prepare_to_sleep()
                if words[TAIL] == head:
                    slept += 1
                    lost += wait_in_vain(poll)
                    bell.drain()
                bell.wake()
            if words[TAIL] != head:
                head += 1
                words[HEAD] = head
                if (head % CHECK_EVERY == 0 and time.monotonic() >= end) or lost >= ENOUGH:
                    return {"items": head, "slept": slept, "lost": lost}

    def wait_in_vain(poll: Any) -> bool:
        """Wait until the bell rings. True if it did not although the item is there and its producer is through with ringing."""
        while not poll.poll(IN_VAIN_MS):
            if words[RUNG] == words[TAIL] != words[HEAD]:
                return not poll.poll(0)
        return False

    return run_two(produce, consume, words)


def main(arguments: list[str]) -> None:
    experiments: dict[str, Callable[[float, bool], Result]] = {"rows": rows, "ring": ring, "wake_ups": wake_ups}
    print(json.dumps(experiments[arguments[0]](float(arguments[1]), arguments[2:] == ["broken"])))


if __name__ == "__main__":
    main(sys.argv[1:])
