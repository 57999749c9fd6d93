"""Spark's standalone master and two workers, which have neither Millrace nor a box: the job brings the code, and its tasks fetch."""

from __future__ import annotations

import faulthandler
import json
from pathlib import Path

import pytest

from appliance.client.address import Address
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.client.producer import BatchProducer, RecordProducer
from lab.committed_reads import read_committed
from lab.running_box import ROOT, RunningBox
from lab.spark_cluster import start_cluster
from lab.spark_session import why_no_spark
from tests.support.load_world import rows_of

pytestmark = [pytest.mark.own_zookeeper, pytest.mark.system, pytest.mark.slow]

RECORDS = 5_000


@pytest.mark.skipif(bool(why_no_spark()), reason=why_no_spark())
def test_a_job_reads_and_writes_on_workers_that_have_no_millrace_and_no_segments(shared_box: RunningBox, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # five JVMs start one after the other; the job has a limit of its own
    with ClusterClient([Address(*shared_box.kafka)]) as client:
        for topic in ("from-spark", "to-spark"):
            create_topic(client, topic, partitions=4)
        producer = RecordProducer(BatchProducer(client), "to-spark")
        for number in range(RECORDS):
            producer.send(b"value %d" % number, b"key %d" % (number % 97))
        producer.flush()
        producer.close()
    with start_cluster(tmp_path) as cluster:
        (tmp_path / "runtime").mkdir(exist_ok=True)
        job = ROOT / "lab/spark_cluster_job.py"
        said = cluster.submit(job, shared_box.bootstrap, "to-spark", "from-spark", f"file://{tmp_path}/checkpoint", str(tmp_path / "table"))
    facts = json.loads(said.strip().splitlines()[-1])
    assert facts["rows"] == RECORDS
    assert facts["executors"] == 2
    assert facts["no box here"] is True
    assert all("millrace.zip" in path for path in facts["sources"]), facts["sources"]
    original, copied = (read_committed(shared_box.bootstrap, topic) for topic in ("to-spark", "from-spark"))
    assert {partition: sorted(records) for partition, records in copied.items()} == {partition: sorted(records) for partition, records in original.items()}
    assert sum(map(len, copied.values())) == RECORDS
    loaded: dict[int, list[bytes | None]] = {partition: [] for partition in original}
    for _, partition, _, value, _ in rows_of(tmp_path / "table"):
        loaded[partition].append(value)
    assert loaded == {partition: [value for _, value in records] for partition, records in original.items()}
