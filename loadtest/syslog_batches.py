"""Syslog records as ingest stores them, millions of them quickly: batches that are built once and appended again and again.

Weak spot: the same lines come every BATCHES × RECORDS_A_BATCH records; times are those of the first round.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import orjson

from appliance.base.model import TopicPartition
from appliance.client.producer import BatchProducer, new_identity
from appliance.records.builder import BatchBuilder, encode_headers
from loadtest.topics import Broker, cluster_of

BATCHES = 200
RECORDS_A_BATCH = 1000
HOSTS = 40
_NAMES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_MESSAGES = ("Accepted publickey for deploy from 10.0.{}.{} port {} ssh2", "GET /api/orders/{} 200 {} ms {} bytes", "upstream {} timed out after {} ms, try {}")


def fill_with_syslog(box: Broker, topic: str, partitions: int, records: int, first_ms: int) -> None:
    """`records` must be a multiple of RECORDS_A_BATCH; returns when all are acknowledged."""
    batches = list(_batches(first_ms))
    with cluster_of(box) as cluster:
        sender = BatchProducer(cluster, new_identity(cluster))
        try:
            for number in range(records // RECORDS_A_BATCH):
                sender.append(TopicPartition(topic, number % partitions), batches[number % BATCHES])
            sender.flush()
        finally:
            sender.close()


def _batches(first_ms: int) -> Iterator[bytes]:
    chance = random.Random(7)
    builder = BatchBuilder()
    for number in range(BATCHES):
        for index in range(RECORDS_A_BATCH):
            at_ms = first_ms + (number * RECORDS_A_BATCH + index) * 20
            severity = chance.choice((6, 6, 6, 6, 5, 4, 3))
            host = f"host{chance.randrange(HOSTS):02d}"
            document: dict[str, object] = {
                "time": "2026-11-22T12:00:00.000000+00:00",
                "host": host,
                "app": chance.choice(("sshd", "nginx", "kernel", "cron")),
                "proc_id": str(chance.randrange(30_000)),
                "msg_id": None,
                "severity": severity,
                "severity_name": _NAMES[severity],
                "facility": 1,
                "facility_name": "user",
                "structured_data": {},
                "message": chance.choice(_MESSAGES).format(*(chance.randrange(250) for _ in range(3))),
            }
            headers = encode_headers([("source", b"10.1.2.3:51234"), ("transport", b"tcp"), ("arrival_ms", b"%d" % at_ms)])
            builder.append(at_ms, host.encode(), orjson.dumps(document), headers)
        yield builder.build()
