"""The benchmarks by name, in the order in which they are run and reported. A new one is a file here and a line below."""

from __future__ import annotations

from loadtest.benchmark import Benchmark
from loadtest.benchmarks.fairness import Fairness
from loadtest.benchmarks.footprint import Footprint
from loadtest.benchmarks.hostile import Hostile
from loadtest.benchmarks.produce_librdkafka import ProduceLibrdkafka
from loadtest.benchmarks.replay_small import ReplaySmall
from loadtest.benchmarks.syslog_tcp import SyslogTcp

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (ProduceLibrdkafka(), ReplaySmall(), SyslogTcp(), Fairness(), Hostile(), Footprint())
}
