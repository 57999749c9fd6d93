"""The benchmarks by name, in the order in which they are run and reported. A new one is a file here and a line below."""

from __future__ import annotations

from loadtest.benchmark import Benchmark
from loadtest.benchmarks.agent_push import FluentForward, Lumberjack
from loadtest.benchmarks.cold_backfill import ColdBackfill
from loadtest.benchmarks.connections import Connections
from loadtest.benchmarks.consume import Consume
from loadtest.benchmarks.coordination import Coordination
from loadtest.benchmarks.disk_faults import DiskFaults
from loadtest.benchmarks.fail_over import FailOver
from loadtest.benchmarks.fairness import Fairness
from loadtest.benchmarks.fetch_large import FetchLarge
from loadtest.benchmarks.flush_ack import FlushAck
from loadtest.benchmarks.footprint import Footprint
from loadtest.benchmarks.footprint_six_disks import FootprintSixDisks
from loadtest.benchmarks.growth_partitions import GrowthPartitions
from loadtest.benchmarks.growth_stored import GrowthStored
from loadtest.benchmarks.hostile import Hostile
from loadtest.benchmarks.http_push import ElasticsearchBulk, LokiPush, SplunkHec
from loadtest.benchmarks.image_follow import ImageFollow
from loadtest.benchmarks.latency import Latency
from loadtest.benchmarks.otlp_push import OtlpGrpc, OtlpHttp
from loadtest.benchmarks.produce_librdkafka import ProduceLibrdkafka
from loadtest.benchmarks.produce_small_records import ProduceSmallRecords
from loadtest.benchmarks.recovery import RecoveryTime
from loadtest.benchmarks.relp import Relp
from loadtest.benchmarks.replay_small import ReplaySmall
from loadtest.benchmarks.sender_fairness import SenderFairness
from loadtest.benchmarks.spark_load import SparkLoad
from loadtest.benchmarks.spark_micro_batches import SparkMicroBatches
from loadtest.benchmarks.spark_query import SparkQuery
from loadtest.benchmarks.spark_read import SparkReadFetch, SparkReadSegments
from loadtest.benchmarks.spark_write import SparkWrite
from loadtest.benchmarks.syslog_beside_rsyslog import SyslogBesideRsyslog
from loadtest.benchmarks.syslog_latency import SyslogLatency
from loadtest.benchmarks.syslog_tcp import SyslogTcp
from loadtest.benchmarks.syslog_tls import SyslogTls
from loadtest.benchmarks.syslog_udp import SyslogUdp
from loadtest.benchmarks.tail_stays import TailStays
from loadtest.benchmarks.two_ingests import TwoIngests
from loadtest.benchmarks.unit_restarts import UnitRestarts

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        ProduceLibrdkafka(), ProduceSmallRecords(), ReplaySmall(), Connections(), Latency(), Consume(), FetchLarge(), ColdBackfill(), TailStays(),
        SyslogTcp(), SyslogBesideRsyslog(), SyslogLatency(), SyslogTls(), Relp(), SyslogUdp(), ElasticsearchBulk(), LokiPush(), SplunkHec(),
        OtlpHttp(), OtlpGrpc(), FluentForward(), TwoIngests(), Lumberjack(), Fairness(), SenderFairness(), Hostile(), Footprint(), FootprintSixDisks(),
        FlushAck(), RecoveryTime(), DiskFaults(),
        GrowthStored(), GrowthPartitions(), Coordination(), UnitRestarts(), FailOver(), ImageFollow(), SparkReadSegments(), SparkReadFetch(), SparkLoad(),
        SparkWrite(), SparkQuery(), SparkMicroBatches(),
    )
}  # fmt: skip
