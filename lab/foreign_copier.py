"""A copier by kafka-python or aiokafka: `python -m lab.foreign_copier CONFIG`, with the CONFIG, the history and the exit code of `copier.py`.

CONFIG names the `client` and the `partitions` too. Modes are `exactly-once` and `at-least-once`. These clients leave more to their users than librdkafka does,
so whatever fails beyond an abort ends this run, and the next one begins where the group stands.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from typing import Any

from lab.copier import EXIT_FATAL, PAUSE_SECONDS, History
from lab.copy_clients import AioKafkaCopyClient, CopyClient, CopyConfig, KafkaPythonCopyClient, Polled

POLL_SECONDS = 0.1
CLIENTS: dict[str, type[CopyClient]] = {"kafka-python": KafkaPythonCopyClient, "aiokafka": AioKafkaCopyClient}


class ForeignCopier:
    """One run of the program."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._mode: str = config["mode"]
        self._batch: int = config["batch"]
        self._history = History(config["history"])
        self._tag = f"{config['name']}-{time.monotonic_ns()}"
        self._chance = random.Random(config["seed"])
        transactional_id = f"{config['name']}-transactions" if self._mode == "exactly-once" else ""
        addressed = CopyConfig(config["bootstrap"], config["source"], config["target"], config["group"], transactional_id, tuple(config["partitions"]))
        self._client = CLIENTS[config["client"]](addressed)  # type: ignore[call-arg]
        self.errors = self._client.errors
        self._positions: dict[int, int] = {}
        self._count = 0
        self.is_stopping = False

    def run(self) -> None:
        self._history.write("start", mode=self._mode)
        self._client.open()
        while not self.is_stopping:
            self._pause()
            polled = self._client.poll(POLL_SECONDS, self._batch)
            if (assigned := self._client.new_assignment(polled)) is not None:
                asked_at, self._positions = assigned
                self._history.write("assign", positions=self._positions, asked_at=asked_at)
            if polled:
                self._copy(polled)
        self._client.close()
        self._history.write("end")

    def _pause(self) -> None:
        time.sleep(self._chance.uniform(0.0, PAUSE_SECONDS))

    def _copy(self, polled: list[Polled]) -> None:
        offsets: dict[int, list[int]] = {}
        for record in polled:
            offsets.setdefault(record.partition, []).append(record.offset)
        self._history.write("poll", offsets=offsets)
        ends = {partition: each[-1] + 1 for partition, each in offsets.items()}
        self._count += 1
        transaction = f"{self._tag}-{self._count}"
        if self._mode == "exactly-once":
            self._copy_in_transaction(polled, ends, transaction)
        else:
            self._client.send(polled, transaction)
            self._commit(ends)

    def _copy_in_transaction(self, polled: list[Polled], ends: dict[int, int], transaction: str) -> None:
        self._history.write("begin", transaction=transaction, ends=ends)
        self._client.begin()
        try:
            self._client.send(polled, transaction)
            self._pause()
            self._history.write("offsets", ends=ends)
            self._client.send_offsets(ends)
            self._pause()
        except self.errors as problem:
            self._history.write("problem", transaction=transaction, text=repr(problem))
            self._client.end(is_commit=False)
            self._history.write("aborted", transaction=transaction)
            self._rewind()
            return
        self._history.write("commit", transaction=transaction, ends=ends)
        self._client.end(is_commit=True)
        self._history.write("committed", transaction=transaction, ends=ends)
        self._positions.update(ends)

    def _commit(self, ends: dict[int, int]) -> None:
        self._history.write("commit", transaction="", ends=ends)
        try:
            self._client.commit_offsets(ends)
        except self.errors as problem:
            self._history.write("problem", transaction="", text=repr(problem))
            self._positions = self._client.committed()
            self._rewind()
            return
        self._history.write("committed", transaction="", ends=ends)
        self._positions.update(ends)

    def _rewind(self) -> None:
        self._history.write("rewind", positions=self._positions)
        self._client.seek(self._positions)


def main() -> int:
    copier = ForeignCopier(json.loads(sys.argv[1]))

    def on_signal(_number: int, _frame: object) -> None:
        copier.is_stopping = True

    signal.signal(signal.SIGTERM, on_signal)
    try:
        copier.run()
    except copier.errors as problem:
        print(f"{sys.argv[1]}: {problem!r}", file=sys.stderr)
        return EXIT_FATAL
    return 0


if __name__ == "__main__":
    sys.exit(main())
