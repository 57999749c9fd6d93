"""librdkafka's own test suite: fetched, built, and run against a box, one number of it in one process.

Its tests that need no broker are left out (`-L`). Two things about the copy that is built are ours: topics are made with one replica where the suite
asks for three (one line of its `test.c`), and RapidJSON's headers come from Debian's package, unpacked beside it. Weak spot: building takes four
minutes of a core, so `./install.sh test --deep` alone does it; what is built stays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.judges.kafka_home import make_kafka_home
from tests.judges.kafka_home import missing as no_java
from tests.judges.suites import LIBRDKAFKA, TARGET, SuiteMissing, run, unpack

HOME = TARGET / "librdkafka"
RUNNER = HOME / "tests" / "test-runner"
BUILD_SECONDS = 1800
KAFKA_VERSION: Final = "3.9.0"
"""The environment that describes the broker to the suite."""
BOX_SETTINGS: Final = {"num.partitions": 4, "log.flush.offset.checkpoint.interval.ms": 1000, "log.cleaner.backoff.ms": 2000}
"""The suite's own clusters make topics of four partitions. A compacted record must be on the disk here first, so the rounds that bring it there are
made as frequent as the suite expects compaction to be."""
NEEDED: Final = {"gcc": "gcc", "g++": "g++", "make": "make", "npm": "npm"}
"""Commands, and Debian's packages that have them. Headers beside those: zlib1g-dev, libssl-dev."""

_ONE_REPLICA = ("rd_kafka_NewTopic_new(topicname, partition_cnt, replication_factor,", "rd_kafka_NewTopic_new(topicname, partition_cnt, 1,")
_RESULT = re.compile(r"^\| (\d{4}_\w+) +\| +(PASSED|FAILED|SKIPPED) \| +[\d.]+s \| ?(.*?) *$", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOCAL = "Filtered due to negative test flags"


def missing() -> str | None:
    """Why the suite cannot be run here; None if it can."""
    if RUNNER.exists():
        return None
    return "librdkafka's test suite is not built (python -m tests.judges install librdkafka)"


def install() -> None:
    """Fetch and build it, if it is not there. SuiteMissing says what is lacking."""
    if RUNNER.exists():
        return
    lacking = [package for command, package in NEEDED.items() if shutil.which(command) is None]
    if lacking:
        raise SuiteMissing(f"librdkafka's test suite is built with {', '.join(NEEDED)}: sudo apt-get install {' '.join(lacking)}")
    building = TARGET / "librdkafka.building"
    unpack(LIBRDKAFKA, building, "package/deps/librdkafka/")
    source = building / "tests" / "test.c"
    text = source.read_text()
    if text.count(_ONE_REPLICA[0]) != 1:
        raise SuiteMissing("librdkafka's test.c makes topics in another way than the pinned version does")
    source.write_text(text.replace(*_ONE_REPLICA))
    headers = _rapid_json(building)
    environment = {**os.environ, "CPPFLAGS": f"-I{headers}", "CI": ""}
    run(["bash", "./configure", "--disable-gssapi", "--disable-curl"], building, BUILD_SECONDS, environment)
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    run(["make", jobs, "libs"], building, BUILD_SECONDS, environment)
    run(["make", jobs, "-C", "tests", "test-runner"], building, BUILD_SECONDS, environment)
    if no_java() is None:
        kafka_home = make_kafka_home(building / "kafka")
        run(["make", "-s", "java"], building / "tests", BUILD_SECONDS, _with_kafka_home(environment, kafka_home))
    shutil.rmtree(HOME, ignore_errors=True)
    building.rename(HOME)


def _with_kafka_home(environment: Mapping[str, str], kafka_home: Path) -> dict[str, str]:
    return {**environment, "PATH": f"{kafka_home / 'bin'}:{os.environ['PATH']}", "KAFKA_PATH": str(kafka_home)}


def _rapid_json(directory: Path) -> Path:
    """Headers that a few tests read statistics with; nothing is installed."""
    system = Path("/usr/include")
    if (system / "rapidjson" / "schema.h").exists():
        return system
    run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "rapidjson-dev"], directory)
    run(["dpkg", "-x", str(next(directory.glob("rapidjson-dev_*.deb"))), str(directory / "rapidjson")], directory)
    return directory / "rapidjson" / "usr" / "include"


def run_number(bootstrap: str, number: str, directory: Path, seconds: float, scenario: str = "default", subtests: str = "") -> dict[str, str]:
    """Every test of one number that wants a broker → "passes", "fails", or "skips: why". Its log is left in `directory`."""
    config = directory / f"{number}.conf"
    config.write_text(f"bootstrap.servers={bootstrap}\ntest.timeout.multiplier=2\n")
    kafka_home = make_kafka_home(directory / "kafka")
    environment = {
        **_with_kafka_home(os.environ, kafka_home),
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "BROKERS": bootstrap,
        "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TESTS": number,
        "CI": "",
    }
    if subtests:
        environment["SUBTESTS"] = subtests
    log = directory / f"{number}{subtests.rstrip(':')}.log"
    with log.open("wb") as file:
        try:
            command = ["./test-runner", "-p1", "-L", "-s", scenario]
            subprocess.run(command, cwd=RUNNER.parent, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            file.write(b"\nended by the harness: too late\n")
    return results_in(_COLOURS.sub("", log.read_text(errors="replace")))


def results_in(log: str) -> dict[str, str]:
    """Of a log without colours. A failed test ends the process before it prints its table; the line
    of the running test identifies it.
    """
    results = {}
    for name, outcome, reason in _RESULT.findall(log):
        if reason != _LOCAL:
            results[name] = {"PASSED": "passes", "FAILED": "fails"}.get(outcome) or f"skips: {reason}".rstrip(": ")
    for name in re.findall(r"=+ Running test (\d{4}_\w+) =+", log):
        results.setdefault(name, "passes" if f"Test {name} PASSED" in log else "fails")
    return results
