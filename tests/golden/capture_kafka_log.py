"""Makes `tests/golden/kafka-log` again: a log directory that a real Kafka 3.9.1 closed cleanly, and what its consumer read from it.

Run by hand: `python -m tests.golden.capture_kafka_log`. Topics and records: `lab/kafka_writings.py`. Needs what the system tests need
(`python -m lab.client_packages`). Kafka's own topics are left out, and so are files that wait for their deletion.
"""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import time
from pathlib import Path

from lab.foreign_clients import Read
from lab.kafka_writings import CONFIGS, open_reader, read_everything, write_everything
from lab.real_kafka import RealKafka
from lab.real_zookeeper import RealZooKeeper

GOLDEN = Path(__file__).parent / "kafka-log"


def as_json(record: Read) -> list[object]:
    def text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    headers = [[name, text(value)] for name, value in record.headers]
    return [record.offset, text(record.value), text(record.key), headers, record.timestamp, record.timestamp_type]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        zookeeper = RealZooKeeper(directory / "zookeeper")
        kafka = RealKafka(directory / "kafka", directory / "disk", zookeeper.connect)
        try:
            kafka.start()
            client = open_reader(kafka.bootstrap)
            write_everything(client, kafka.bootstrap, kafka.log_directory)
            records = read_everything(client)
            client.close()
        finally:
            kafka.stop()
            zookeeper.stop()
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(directory / "disk", GOLDEN / "disk", ignore=shutil.ignore_patterns("__*", "*.deleted", ".lock"))
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "cleaner-offset-checkpoint", "log-start-offset-checkpoint"):
        assert (GOLDEN / "disk" / name).exists()
    captured = {topic: [as_json(record) for record in records[topic]] for topic in CONFIGS}
    (GOLDEN / "records.json").write_text(json.dumps({"captured_ms": int(time.time() * 1000), "records": captured}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
