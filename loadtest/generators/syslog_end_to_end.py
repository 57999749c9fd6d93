"""Sends syslog lines over TCP at a steady rate and consumes them at the tail, in one process, and says how long each took from socket to poll.

    syslog_end_to_end.py BOOTSTRAP TOPIC SYSLOG_HOST SYSLOG_PORT RATE SECONDS

Prints "ready" when its consumer stands at the tail, starts at the next line on stdin, and prints one line of JSON. A line carries the moment when it was
due; what is due is sent every millisecond. Weak spot: reading ten thousand records a second in Python costs this process a third of a processor.
"""

from __future__ import annotations

import json
import socket
import sys
import time

from confluent_kafka import Consumer, TopicPartition

from appliance.runtime.scheduling import take_short_slices

WARM_UP_LINES = 1000
MARK = b'"message":"due '
SEND_NS = 1_000_000


def main(words: list[str]) -> int:
    take_short_slices(inherits=True)
    bootstrap, topic, host, port, rate, seconds = *words[:3], int(words[3]), float(words[4]), float(words[5])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tail", "enable.auto.commit": False, "fetch.wait.max.ms": 500})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    ends = [(partition, consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]) for partition in partitions]
    consumer.assign([TopicPartition(topic, partition, end) for partition, end in ends])
    with socket.create_connection((host, port), 30) as sender:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        run(sender, consumer, WARM_UP_LINES, rate)
        print("ready", flush=True)
        sys.stdin.readline()
        count = int(rate * seconds)
        latencies = sorted(run(sender, consumer, count, rate))
    figures = {"lines": count, "p50_us": latencies[count // 2], "p99_us": latencies[int(count * 0.99)], "max_us": latencies[-1]}
    print(json.dumps(figures), flush=True)
    consumer.close()
    return 0


def run(sender: socket.socket, consumer: Consumer, count: int, rate: float) -> list[int]:
    """Microseconds from the moment when a line was due until its record was polled, for each of `count`."""
    interval_ns = 1e9 / rate
    first_ns = time.monotonic_ns()
    sent = 0
    latencies: list[int] = []
    while len(latencies) < count:
        due = min(count, int((time.monotonic_ns() - first_ns) / interval_ns))
        if due > sent:
            # Ten hosts: as many keys, so that all partitions have some.
            lines = b"".join(
                b"<13>1 - host%d app - - - due %d %s\n" % (number % 10, first_ns + int(number * interval_ns), b"x" * 200) for number in range(sent, due)
            )
            sender.sendall(lines)
            sent = due
        for message in consumer.consume(1000, SEND_NS / 1e9):
            if message.error() is not None:
                raise SystemExit(f"the tail consumer: {message.error()}")
            value = message.value() or b""
            start = value.find(MARK)
            if start >= 0:
                start += len(MARK)
                latencies.append((time.monotonic_ns() - int(value[start : value.index(b" ", start)])) // 1000)
    return latencies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
