"""A librdkafka producer in a process of its own: sends records of one size as fast as it may, waits until all are acknowledged.

    librdkafka_producer.py BOOTSTRAP TOPIC PARTITIONS RECORDS VALUE_BYTES ACKS BATCH_BYTES LINGER_MS

Prints "ready" once it knows the topic, starts at the next line on stdin, and prints one line of JSON: what was sent, and when it began and ended
on the monotonic clock that all processes of the machine share. Weak spot: records carry no key and go round the partitions in runs, so
batches fill as well as they can.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import KafkaError, Message, Producer

RUN_LENGTH = 500
"""Records handed over at once, to one partition."""
QUEUE_MESSAGES = 200_000
FLUSH_SECONDS = 60.0


def main(words: list[str]) -> int:
    bootstrap, topic, *numbers = words
    partitions, records, value_bytes, acks, batch_bytes, linger_ms = map(int, numbers)
    errors: list[str] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(str(error))

    producer = Producer({
        "bootstrap.servers": bootstrap, "acks": acks, "linger.ms": linger_ms, "batch.size": batch_bytes, "compression.type": "none",
        "batch.num.messages": 1_000_000, "queue.buffering.max.messages": QUEUE_MESSAGES, "queue.buffering.max.kbytes": 1 << 20,
        "delivery.report.only.error": True, "on_delivery": on_delivery,
    })  # fmt: skip
    producer.list_topics(topic, timeout=30)
    print("ready", flush=True)
    sys.stdin.readline()
    started_ns = time.monotonic_ns()
    produce(producer, topic, partitions, records, bytes(value_bytes))
    unacknowledged = producer.flush(FLUSH_SECONDS)
    ended_ns = time.monotonic_ns()
    print(json.dumps({"records": records, "unacknowledged": unacknowledged, "errors": errors[:5], "started_ns": started_ns, "ended_ns": ended_ns}))
    return 1 if unacknowledged or errors else 0


def produce(producer: Producer, topic: str, partitions: int, records: int, value: bytes) -> None:
    """All records, waiting where librdkafka's queue is full."""
    send, poll = producer.produce, producer.poll
    sent = partition = 0
    while sent < records:
        for _ in range(min(RUN_LENGTH, records - sent)):
            try:
                send(topic, value, None, partition)
            except BufferError:
                while len(producer) > QUEUE_MESSAGES // 2:
                    poll(0.01)
                send(topic, value, None, partition)
            sent += 1
        partition = (partition + 1) % partitions
        poll(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
