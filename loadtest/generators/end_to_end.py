"""Produces small records at a steady rate and consumes them at the tail, in one process, and says how long each took from produce to poll.

    end_to_end.py BOOTSTRAP TOPIC RATE SECONDS

Prints "ready" when its consumer stands at the tail, starts at the next line on stdin, and prints one line of JSON. The clients are librdkafka's, with
linger 0. Its threads ask for short time slices: what is measured is the broker's delay, not ours. Weak spot: the threads of both clients and Python's own
wake-ups are in each figure all the same.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.runtime.scheduling import take_short_slices

WARM_UP = 20


def main(words: list[str]) -> int:
    take_short_slices(inherits=True)
    bootstrap, topic, rate, seconds = words[0], words[1], float(words[2]), float(words[3])
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tail", "enable.auto.commit": False, "fetch.wait.max.ms": 500})
    start = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
    consumer.assign([TopicPartition(topic, 0, start)])
    latencies = run(producer, consumer, topic, WARM_UP, 100.0)
    print("ready", flush=True)
    sys.stdin.readline()
    count = int(rate * seconds)
    latencies = sorted(run(producer, consumer, topic, count, rate))
    figures = {
        "records": len(latencies),
        "p50_us": latencies[count // 2],
        "p99_us": latencies[int(count * 0.99)],
        "p999_us": latencies[int(count * 0.999)],
        "max_us": latencies[-1],
    }
    print(json.dumps(figures), flush=True)
    consumer.close()
    return 0


def run(producer: Producer, consumer: Consumer, topic: str, count: int, rate: float) -> list[int]:
    """Microseconds from the moment when a record was due until it was polled, for each of `count`."""
    interval_ns = int(1e9 / rate)
    first_ns = next_ns = time.monotonic_ns()
    sent = 0
    latencies: list[int] = []
    while len(latencies) < count:
        now_ns = time.monotonic_ns()
        if sent < count and now_ns >= next_ns:
            producer.produce(topic, next_ns.to_bytes(8, "big"), partition=0)
            producer.poll(0)
            sent += 1
            next_ns = first_ns + sent * interval_ns
        message = consumer.poll(max(0.0, min(next_ns - time.monotonic_ns(), 5_000_000)) / 1e9 if sent < count else 0.005)
        if message is not None:
            if message.error() is not None:
                raise SystemExit(f"the tail consumer: {message.error()}")
            value = message.value()
            if value is not None and len(value) == 8:
                latencies.append((time.monotonic_ns() - int.from_bytes(value, "big")) // 1000)
    return latencies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
