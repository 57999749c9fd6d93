"""A box with a disk that is hurt and one that is well, a topic with a partition on each, and clients that measure."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from appliance.records.builder import BatchBuilder
from lab.loop_disks import LoopDisk
from lab.raw_client import RawClient
from lab.running_box import RunningBox, environment, eventually

KAFKA_STORAGE_ERROR = 56
NOT_LEADER_OR_FOLLOWER = 6
TOPIC = "faults"


def batch(text: str) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, text.encode())
    return builder.build()


class SteadyProducer:
    """Produces to one partition, one request after the other, and keeps how long each took."""

    def __init__(self, box: RunningBox, partition: int) -> None:
        self._client = RawClient(box.kafka)
        self._partition = partition
        self._is_over = threading.Event()
        self._seconds: list[float] = []
        self._codes: set[int] = set()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        while not self._is_over.is_set():
            started = time.monotonic()
            self._codes.add(self._client.produce(TOPIC, self._partition, batch("steady")).error_code)
            self._seconds.append(time.monotonic() - started)

    def take(self) -> list[float]:
        """Seconds of the produces since the last call, sorted."""
        taken, self._seconds = self._seconds, []
        return sorted(taken)

    def stop(self) -> None:
        """Every single one must have been acknowledged."""
        self._is_over.set()
        self._thread.join(60)
        self._client.close()
        assert self._codes == {0}


def p99(seconds: list[float]) -> float:
    return seconds[len(seconds) * 99 // 100]


class HurtBox:
    """`hurt` and `well` are partitions of TOPIC; `disk` is under the first."""

    def __init__(self, box: RunningBox, disk: LoopDisk) -> None:
        self.box = box
        self.disk = disk
        self.client = RawClient(box.kafka)
        self.client.create_topic(TOPIC, 2)
        self.hurt, self.well = sorted((0, 1), key=lambda partition: not self._lies_on_hurt(partition))
        assert self._lies_on_hurt(self.hurt) and not self._lies_on_hurt(self.well)
        self.acknowledged: dict[int, str] = {}
        """offset → text, of the hurt partition."""

    @property
    def directory(self) -> Path:
        return self.box.disks[0] / f"{TOPIC}-{self.hurt}"

    def _lies_on_hurt(self, partition: int) -> bool:
        return (self.box.disks[0] / f"{TOPIC}-{partition}").is_dir()

    def produce(self, text: str) -> int:
        """To the hurt partition; the error code. What is acknowledged is remembered."""
        answer = self.client.produce(TOPIC, self.hurt, batch(text))
        if not answer.error_code:
            self.acknowledged[answer.base_offset] = text
        return answer.error_code

    def await_flushed(self) -> None:
        """Until everything acknowledged so far survives a power cut: the log-writer's own checkpoint says so."""
        checkpoint = self.box.disks[0] / "recovery-point-offset-checkpoint"
        end = max(self.acknowledged) + 1

        def is_flushed() -> bool:
            lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
            return any(line.startswith(f"{TOPIC} {self.hurt} ") and int(line.split()[2]) >= end for line in lines)

        eventually(is_flushed, "what was acknowledged is flushed")

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`millrace disk …` about this box."""
        arguments = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()", "disk", *words, "--data", str(self.box.disks[1])]
        return subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=60, check=False)

    def seconds_until_refused(self, fault_at: float, seconds: float = 10.0) -> float:
        """Produce until the client receives the error; return how long after the fault that was."""
        eventually(lambda: self.produce("may be refused") == KAFKA_STORAGE_ERROR, "a client receives the error", seconds)
        return time.monotonic() - fault_at

    def await_return(self, seconds: float = 15.0) -> float:
        """Until a produce is taken again; how long that took. On the way, nothing but errors that clients try again."""
        started = time.monotonic()
        codes: set[int] = set()

        def is_back() -> bool:
            codes.add(code := self.produce("back"))
            return code == 0

        eventually(is_back, f"the disk is served again\n{self.box.messages}", seconds)
        assert codes <= {0, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER}
        return time.monotonic() - started

    def check_nothing_lost(self) -> None:
        """Everything acknowledged on the hurt disk is there, at its offset, whole."""
        for offset, text in self.acknowledged.items():
            eventually(partial(self._is_there, offset, text), f"offset {offset} has {text!r}")

    def _is_there(self, offset: int, text: str) -> bool:
        """On a busy machine a disk with a short deadline may be refused for a moment."""
        fetched = self.client.fetch(TOPIC, self.hurt, offset, max_bytes=1, partition_max_bytes=1)
        assert fetched.error_code in {0, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER}, (offset, fetched.error_code)
        return text.encode() in fetched.records

    def check_others_untouched(self, pids: dict[str, int]) -> None:
        """No process but those of the hurt disk was started again."""
        now = self.box.pids()
        assert {name: pid for name, pid in now.items() if "@hurt" not in name} == {name: pid for name, pid in pids.items() if "@hurt" not in name}

    def heal(self) -> None:
        self.client.close()
        self.disk.thaw()
        self.disk.drive("ok")
