"""The log-reader: opens segments for acceptors, and answers look-ups by offset and by time.

It owns nothing lasting: no client socket, no lock, no ring. A hung disk blocks this process and no
other, because each question has a deadline. Questions are answered in the order of their arrival. Weak
spot: one thread, so one slow look-up delays the next; only look-ups read here what is not in the page
cache, records are sent by the acceptors.
"""

from __future__ import annotations

import array
import os
import select
import socket
from collections import OrderedDict, deque

from appliance.base.errors import ErrorCode, StorageFailed
from appliance.base.model import TopicPartition
from appliance.ipc.disk_reports import report_file
from appliance.ipc.frames import accept_trusted, listen_unix
from appliance.ipc.log_reader_messages import (
    ABORTED,
    CHECK,
    EPOCH_AT,
    EPOCH_END,
    LOOKUP,
    MAX_MESSAGE_BYTES,
    MAX_TIMESTAMP,
    OFFSETS_MAX,
    OPEN,
    READ,
    RELEASE,
    SEGMENTS,
    TIME,
    Answer,
    Question,
    aborted_answer,
    pack_answer,
    unpack_question,
)
from appliance.records.compression import CorruptBatch
from appliance.runtime.agent import QUIET_PARK_MS, ServiceContext
from appliance.storage import file_io
from appliance.storage.reading import LogReading, OffsetOutOfRange, SegmentMoved
from appliance.storage.segment_files import LOG_SUFFIX, PARTITION_METADATA, segment_path
from services.log_reader.cold_reading import ColdReading
from services.log_reader.cold_reading import PieceRequester as ColdAsker
from services.log_reader.scrubber import Scrubber

READINGS_MAX = 512
QUESTIONS_A_TURN = 64
SWEEP_NS = 1_000_000_000


_INTEREST = select.EPOLLIN | select.EPOLLRDHUP


class _Asker:
    """One acceptor's connection and its unsent answers.

    No request is read from it while there are any.
    """

    __slots__ = ("is_gone", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_gone = False
        self.unsent: deque[tuple[bytes, int]] = deque()

    def flush(self) -> bool:
        """Send what the socket takes; return True when all answers have left.

        A descriptor is ours until then. Raises OSError if the acceptor has closed the connection.
        """
        while self.unsent:
            message, descriptor = self.unsent[0]
            try:
                if descriptor < 0:
                    self.sock.send(message)
                else:
                    self.sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
            except (BlockingIOError, InterruptedError):
                return False
            self.unsent.popleft()
            if descriptor >= 0:
                os.close(descriptor)
        return True

    def close(self) -> None:
        for _, descriptor in self.unsent:
            if descriptor >= 0:
                os.close(descriptor)
        self.unsent.clear()
        self.sock.close()


class LogReaderAgent:
    """The duty cycle of one log-reader.

    Requests arrive through the poller, so a turn without an event does only housekeeping.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._poller = context.poller
        self._disk = context.box.disk(context.instance)
        self._readings: OrderedDict[tuple[str, int], tuple[LogReading, tuple[int, ...]]] = OrderedDict()
        self._askers: dict[int, _Asker] = {}
        self._work = 0
        counters = context.counters
        self._answers = {kind: counters.counter(f'log_reader.answers{{kind="{name}"}}') for kind, name in _KIND_NAMES.items()}
        self._errors = counters.counter("log_reader.errors")
        self._gaps_skipped = counters.counter("log_reader.gaps_skipped")
        self._clock = context.clock
        self._latencies = {kind: counters.histogram(f'log_reader.answer_us{{kind="{name}"}}') for kind, name in _KIND_NAMES.items()}
        self._listening = listen_unix(context.layout.log_reader_socket(self._disk.name), socket.SOCK_SEQPACKET)
        self._poller.register(self._listening.fileno(), select.EPOLLIN, self._on_connection)
        self._scrubber = Scrubber(
            self._disk,
            report_file(context.layout, self._disk.name),
            context.clock,
            counters,
            context.log,
            context.box.integer("log.scrub.bytes.per.second"),
            context.box.integer("log.scrub.interval.ms"),
        )
        self._scrubber.maybe_start()
        self.cold = ColdReading(context, self._disk.name, self._answer_later)
        self._next_sweep_ns = 0
        context.notifier.ready()

    # -- duty cycle: everything comes through the poller

    def do_work(self) -> int:
        """Sweep unused memory and start the scrubber, once a second; return the number of requests
        since the last turn.
        """
        work, self._work = self._work, 0
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_sweep_ns:
            self._next_sweep_ns = now_ns + SWEEP_NS
            self.cold.sweep(now_ns)
            self._scrubber.maybe_start()
        return work

    def may_park(self) -> bool:
        """Return True: every event wakes the poller."""
        return True

    def unpark(self) -> None:
        """Do nothing: there is no state of being parked."""
        pass

    def park_ms(self) -> int:
        """Return the longest wait in ms; no deadline is nearer."""
        return QUIET_PARK_MS

    def begin_stop(self) -> None:
        """Do nothing: a log-reader keeps nothing that outlasts it."""
        pass

    def stopped(self) -> bool:
        """Return True: a stop waits for nothing."""
        return True

    def close(self) -> None:
        """Stop the threads and close all sockets; unsent descriptors are closed too."""
        self._scrubber.close()
        self.cold.close()
        self._listening.close()
        for asker in self._askers.values():
            asker.close()

    def status_line(self) -> str:
        """Return the text for `systemctl status`."""
        return f"{len(self._askers)} askers, {len(self._readings)} logs known"

    # -- questions

    def _on_connection(self, _events: int) -> None:
        sock = accept_trusted(self._listening)
        if sock is None:
            return
        sock.setblocking(False)
        asker = _Asker(sock)
        self._askers[sock.fileno()] = asker
        self._poller.register(sock.fileno(), _INTEREST, lambda _events: self._on_event(asker))

    def _on_event(self, asker: _Asker) -> None:
        """Send pending answers, then read requests."""
        try:
            if asker.unsent:
                if not asker.flush():
                    return
                self._poller.modify(asker.sock.fileno(), _INTEREST)
            self._take_questions(asker)
        except OSError:
            self._forget(asker)

    def _take_questions(self, asker: _Asker) -> None:
        for _ in range(QUESTIONS_A_TURN):
            try:
                message = asker.sock.recv(MAX_MESSAGE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message = b""
            if not message:
                self._forget(asker)
                return
            self._work += 1
            started_ns = self._clock.monotonic_ns()
            question = unpack_question(message)
            if question.kind == CHECK:
                self._scrubber.look_at(TopicPartition(question.topic, question.partition), question.value_a)
                continue
            if question.kind in (READ, RELEASE):
                self._take_cold(asker, question)
                if asker.unsent:
                    return
                continue
            answer, descriptor = self._answer(question)
            if question.kind in self._latencies:
                self._latencies[question.kind].record(self._clock.monotonic_ns() - started_ns)
            asker.unsent.append((pack_answer(answer), descriptor))
            if not asker.flush():
                self._poller.modify(asker.sock.fileno(), select.EPOLLOUT | select.EPOLLRDHUP)
                return

    def _take_cold(self, asker: _Asker, question: Question) -> None:
        if question.kind == RELEASE:
            self.cold.on_release(asker, question)
            return
        directory = f"{self._disk.path}/{TopicPartition(question.topic, question.partition)}"
        self.cold.on_read(asker, question, segment_path(directory, question.value_a, LOG_SUFFIX))

    def _answer_later(self, asker: ColdAsker, answer: Answer) -> None:
        """Send the answer to a request of an earlier turn."""
        assert isinstance(asker, _Asker)
        was_sending = bool(asker.unsent)
        asker.unsent.append((pack_answer(answer), -1))
        try:
            if not was_sending and not asker.flush():
                self._poller.modify(asker.sock.fileno(), select.EPOLLOUT | select.EPOLLRDHUP)
        except OSError:
            self._forget(asker)

    def _forget(self, asker: _Asker) -> None:
        if asker.is_gone:
            return
        self.cold.on_gone(asker)
        self._poller.unregister(asker.sock.fileno())
        del self._askers[asker.sock.fileno()]
        asker.close()

    def _answer(self, question: Question) -> tuple[Answer, int]:
        """Return the answer, and a descriptor to send with it and close (-1: none)."""
        counter = self._answers.get(question.kind)
        if counter is None:
            return Answer(question.kind, question.token, ErrorCode.INVALID_REQUEST), -1
        counter.add()
        try:
            reading = self.reading(question)
            return self._look(question, reading)  # an opened segment is sent and closed by the caller
        except OffsetOutOfRange:
            return Answer(question.kind, question.token, ErrorCode.OFFSET_OUT_OF_RANGE), -1
        except SegmentMoved as moved:
            return Answer(question.kind, question.token, moved.code), -1
        except CorruptBatch as corrupt:
            self._errors.add()
            words = f"{question.topic}-{question.partition} on disk {self._disk.name} holds a batch that cannot be opened: {corrupt}"
            self._context.log.critical(words, topic=question.topic, partition=question.partition, disk=self._disk.name)
            return Answer(question.kind, question.token, ErrorCode.CORRUPT_MESSAGE), -1
        except StorageFailed as failure:
            self._errors.add()
            self._readings.pop((question.topic, question.partition), None)
            if isinstance(failure.__cause__, FileNotFoundError):
                # Retention or deletion came after the row was read: the acceptor reads the row again.
                return Answer(question.kind, question.token, ErrorCode.NOT_LEADER_OR_FOLLOWER), -1
            words = f"disk {self._disk.name}: {failure}"
            self._context.log.error(words, topic=question.topic, partition=question.partition, disk=self._disk.name)
            return Answer(question.kind, question.token, ErrorCode.KAFKA_STORAGE_ERROR), -1

    def _look(self, question: Question, reading: LogReading) -> tuple[Answer, int]:
        kind, token = question.kind, question.token
        if kind == OPEN:
            descriptor = reading.open_segment(question.value_a)
            status = os.fstat(descriptor)
            return Answer(kind, token, 0, status.st_size, status.st_ino), descriptor
        if kind == LOOKUP:
            located = reading.locate(question.value_a, question.value_b, question.ahead_bytes)
            if located.is_gap:
                self._gaps_skipped.add()
            figures = (located.segment_base_offset, located.position, located.batch_size_bytes, located.segment_file, located.base_offset)
            return Answer(kind, token, 0, *figures, tuple(number for read in located.ahead for number in read)), -1
        if kind == SEGMENTS:
            return Answer(kind, token, 0, offsets=tuple(reading.segments_modified_by(question.value_a, OFFSETS_MAX))), -1
        if kind == EPOCH_END:
            return Answer(kind, token, 0, *reading.epoch_end(question.value_a, question.value_b)), -1
        if kind == ABORTED and question.span is not None:
            end_offset, entries = reading.aborted_in(question.value_a, *question.span, question.value_b)
            return aborted_answer(token, end_offset, [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in entries])
        if kind == EPOCH_AT:
            return Answer(kind, token, 0, reading.epoch_at(question.value_a)), -1
        found = reading.offset_for_timestamp(question.value_a, question.value_b) if kind == TIME else reading.offset_of_max_timestamp(question.value_b)
        if found is None:
            return Answer(kind, token, 0, -1, -1, -1), -1
        return Answer(kind, token, 0, *found), -1

    def reading(self, question: Question) -> LogReading:
        """Return the look-ups of this very log: a topic that was created again under the same name
        has other segments, and counts its segment lists from the start.
        """
        key = (question.topic, question.partition)
        known = self._readings.get(key)
        directory = f"{self._disk.path}/{TopicPartition(*key)}"
        version = (question.segment_list_generation, *_identity(directory))
        if known is not None and known[1] == version:
            self._readings.move_to_end(key)
            return known[0]
        reading = LogReading(directory)
        self._readings[key] = (reading, version)
        self._readings.move_to_end(key)
        if len(self._readings) > READINGS_MAX:
            self._readings.popitem(last=False)
        return reading


def _identity(directory: str) -> tuple[int, int]:
    """Identify a partition's directory among others of the same name: `partition.metadata` is written once."""
    try:
        status = file_io.stat(f"{directory}/{PARTITION_METADATA}")
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


_KIND_NAMES = {
    OPEN: "open",
    LOOKUP: "lookup",
    TIME: "time",
    MAX_TIMESTAMP: "max_timestamp",
    SEGMENTS: "segments",
    EPOCH_END: "epoch_end",
    EPOCH_AT: "epoch_at",
    ABORTED: "aborted",
}
