"""The same lines of loggen into ingest, into rsyslog that writes a file, and into rsyslog that hands them to this box by omkafka, one after the other.

rsyslog runs with imptcp and a queue in memory, which stops reading when it is full: what it took is written in the end, and the time runs until
then. Its omkafka has the settings that sites use (acks=all, lz4). Weak spot: rsyslog has both processors and several threads, ingest is one
process; the CPU of each is beside it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from lab.running_box import RunningBox
from loadtest.benchmark import BenchmarkFailed, Figure, Run, Say
from loadtest.benchmarks.syslog_tcp import COUNT, FRAMINGS, PATIENCE_SECONDS, RATE, WARM_UP_SECONDS, SyslogTcp
from loadtest.load_generator import LoadGenerator
from loadtest.observation import Observer
from loadtest.topics import count_records, make_topic

RSYSLOG = """
global(workDirectory="{directory}" maxMessageSize="64k")
module(load="imptcp" threads="1")
{modules}
template(name="line" type="string" string="<%PRI%>1 %TIMESTAMP:::date-rfc3339% %HOSTNAME% %APP-NAME% %PROCID% %MSGID% %STRUCTURED-DATA% %msg%\\n")
main_queue(queue.type="FixedArray" queue.size="100000" queue.workerThreads="1")
input(type="imptcp" address="127.0.0.1" port="{port}")
{action}
"""
TO_FILE = 'action(type="omfile" file="{directory}/lines" template="line" asyncWriting="on" ioBufferSize="64k" flushOnTXEnd="off")'
TO_KAFKA = (
    'action(type="omkafka" broker=["{bootstrap}"] topic="{topic}" template="line" partitions.auto="on" resubmitOnFailure="on" keepFailedMessages="on"'
    ' confParam=["compression.codec=lz4","acks=all","queue.buffering.max.ms=20","queue.buffering.max.messages=500000"] action.resumeRetryCount="-1")'
)
TOPIC = "from-rsyslog"
LOOK_SECONDS = 0.05
STILL_SECONDS = 1.5
"""rsyslog writes what it has gathered at least once a second."""
START_SECONDS = 10.0


@dataclass(frozen=True)
class SyslogBesideRsyslog(SyslogTcp):
    name: ClassVar[str] = "syslog_beside_rsyslog"
    title: ClassVar[str] = (
        "The same RFC 5424 lines of 300 B over 4 TCP connections into ingest, into rsyslog writing a file, and into rsyslog producing to this box "
        "by omkafka (acks=all)."
    )
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("ingest, stored", "lines/s", at_least=100_000),
        Figure("rsyslog to a file", "lines/s"),
        Figure("rsyslog by omkafka, stored", "lines/s"),
        Figure("ingest and log-writer CPU", "µs a line"),
        Figure("rsyslog CPU, file", "µs a line"),
        Figure("rsyslog CPU, omkafka", "µs a line"),
        Figure("box CPU, omkafka", "µs a line"),
    )

    seconds: int = 8

    @property
    def written_bytes(self) -> int:
        return 3 * super().written_bytes

    def missing(self) -> str | None:
        if not shutil.which("rsyslogd"):
            return "there is no rsyslogd (Debian's rsyslog, rsyslog-kafka); `./install.sh test` unpacks it under .venv/peers"
        return super().missing()

    def run(self, box: RunningBox, say: Say) -> Run:
        self._send(box, WARM_UP_SECONDS)
        say(f"loggen sends for {self.seconds} s, three times")
        observer = Observer(box.pids())
        sent = self._send(box, self.seconds)
        observation = observer.finish({"loggen": sent.cpu_seconds})
        into_file = self._through_rsyslog(box, TO_FILE, lambda directory, sent: _lines_at_rest(directory / "lines", sent))
        make_topic(box, TOPIC, 4)
        observer = Observer(box.pids())
        by_kafka = self._through_rsyslog(box, TO_KAFKA, lambda _, sent: _records_at_rest(box, sent))
        beside = observer.finish({})
        figures = {
            "ingest, stored": sent.lines / sent.seconds,
            "rsyslog to a file": into_file.lines / into_file.seconds,
            "rsyslog by omkafka, stored": by_kafka.lines / by_kafka.seconds,
            "ingest and log-writer CPU": (observation.role("ingest") + observation.role("log-writer")) * 1e6 / sent.lines,
            "rsyslog CPU, file": into_file.cpu_seconds * 1e6 / into_file.lines,
            "rsyslog CPU, omkafka": by_kafka.cpu_seconds * 1e6 / by_kafka.lines,
            "box CPU, omkafka": (beside.role("acceptor") + beside.role("log-writer")) * 1e6 / by_kafka.lines,
        }
        return Run(figures, observation, [f"{sent.lines:,} lines by ingest, {into_file.lines:,} into a file, {by_kafka.lines:,} by omkafka; none missing"])

    def _through_rsyslog(self, box: RunningBox, action: str, await_all: Callable[[Path, int], float]) -> Passed:
        """Runs loggen against a rsyslog of its own until all of its lines are where they go."""
        with _rsyslog(box, action) as (process, port, directory):
            arguments = ["loggen", *self.plugin, f"--size={self.line_bytes}", f"--rate={RATE}", f"--interval={self.seconds}", "--quiet"]
            arguments += [f"--active-connections={self.connections}", *FRAMINGS[self.framing], "127.0.0.1", str(port)]
            before = _cpu_seconds(process)
            with LoadGenerator("loggen", arguments) as generator:
                started = time.monotonic()
                while not _receives(process, before):
                    if time.monotonic() > started + START_SECONDS:
                        raise BenchmarkFailed("loggen sends nothing to rsyslog")
                    time.sleep(LOOK_SECONDS / 5)
                started = time.monotonic()
                finished = generator.finish(self.seconds + PATIENCE_SECONDS)
            found = COUNT.search(finished.output + finished.messages)
            if found is None:
                raise BenchmarkFailed(f"loggen does not say how many lines it sent:\n{finished.output}{finished.messages}")
            ended = await_all(directory, int(found[1]))
            return Passed(int(found[1]), ended - started, _cpu_seconds(process) - before)


@dataclass(frozen=True)
class Passed:
    """One run of loggen through rsyslog, until its last line was where it goes."""

    lines: int
    seconds: float
    cpu_seconds: float


@contextmanager
def _rsyslog(box: RunningBox, action: str) -> Iterator[tuple[psutil.Process, int, Path]]:
    directory = box.directory / "rsyslog"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    modules = 'module(load="omkafka")' if "omkafka" in action else ""
    action = action.format(directory=directory, bootstrap=box.bootstrap, topic=TOPIC)
    configuration = directory / "rsyslog.conf"
    configuration.write_text(RSYSLOG.format(directory=directory, port=port, modules=modules, action=action))
    with (directory / "messages").open("wb") as messages:
        process = subprocess.Popen(["rsyslogd", "-n", "-f", str(configuration), "-i", str(directory / "pid")], stdout=messages, stderr=messages)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise BenchmarkFailed(f"rsyslogd does not listen:\n{(directory / 'messages').read_text()}") from None
                time.sleep(LOOK_SECONDS)
        yield psutil.Process(process.pid), port, directory
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _receives(process: psutil.Process, before: float) -> bool:
    """Whether it has work: two ticks of the kernel's clock."""
    return _cpu_seconds(process) - before >= 0.02


def _at_rest(count: Callable[[], int], wanted: int, what: str) -> float:
    """When `count` reached `wanted`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    seen, since = -1, time.monotonic()
    while True:
        counted, now = count(), time.monotonic()
        if counted >= wanted:
            return now
        if counted != seen:
            seen, since = counted, now
        if now > deadline and now - since > STILL_SECONDS:
            raise BenchmarkFailed(f"{what}: {counted:,} of {wanted:,} lines arrived")
        time.sleep(LOOK_SECONDS)


def _lines_at_rest(path: Path, wanted: int) -> float:
    """When the file held that many lines; only what is new is read."""
    lines = position = 0

    def count() -> int:
        nonlocal lines, position
        if not path.exists():
            return 0
        with path.open("rb") as file:
            file.seek(position)
            while piece := file.read(1 << 20):
                lines += piece.count(b"\n")
                position += len(piece)
        return lines

    # Counting millions of lines while they are written would take a processor from the writer: its size is looked at until it stands still.
    size, grew = -1, time.monotonic()
    while time.monotonic() - grew < STILL_SECONDS:
        now = os.path.getsize(path) if path.exists() else 0
        if now != size:
            size, grew = now, time.monotonic()
        time.sleep(LOOK_SECONDS)
    return grew if count() >= wanted else _at_rest(count, wanted, "rsyslog's file")


def _records_at_rest(box: RunningBox, wanted: int) -> float:
    return _at_rest(lambda: count_records(box, TOPIC), wanted, "rsyslog's topic")
