"""A sender that keeps to the rules of RELP, over any number of sessions and crashes of the receiver: nothing is lost, no certain replay stored twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.ingest.records.ack_group import digest_of
from services.ingest.replay.frame_streams import FrameStreams
from services.ingest.replay.journal_records import Begun, Forgotten, Frames, JournalFindings, JournalledBatch, JournalRecord, decode_all, encode
from services.ingest.replay.replay_memory import ReplayMemory
from services.ingest.replay.stream_replay import HOLD_MS, StreamReplay

KEY = ("relp", b"192.0.2.1")
TOPIC = "syslog"
BOOT = bytes(16)


class Receiver:
    """Takes frames, stores those that the memory does not have, journals each burst before it is stored; can be killed."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.journal = bytearray()
        self.in_log: set[int] = set()
        """First sequences of bursts that are in the log."""
        self.lives = 0
        self.sequence = 0
        self.now_ms = 0
        self._start()

    def _start(self) -> None:
        self.lives += 1
        self.memory = ReplayMemory(100_000, 600_000)
        self.streams = FrameStreams(self.memory, 600_000, b"incarnation %d" % self.lives)
        self.session: StreamReplay | None = None
        findings = JournalFindings(self.memory, BOOT)
        findings.add(Begun(BOOT))
        for record in decode_all(bytes(self.journal)):
            findings.add(record)
        for stream in findings.broken_streams():
            self.streams.add_broken(stream)
        for batch in findings.open_batches():
            self.memory.add_unresolved(batch.parts)
            self.memory.resolve(TOPIC, batch.parts, batch.base_sequence in self.in_log, self.now_ms)
        self.memory.remember_found(self.now_ms)

    def kill(self) -> None:
        self._start()

    def write(self, *records: JournalRecord) -> None:
        for record in records:
            self.journal += encode(record)

    def connect(self) -> None:
        self.completed: list[int] = []
        self.session = StreamReplay(self.streams, KEY, self._on_aligned, lambda _token: None)

    def disconnect(self, is_clean: bool) -> None:
        assert self.session is not None
        self.session.end(is_clean)
        self.streams.expire(self.now_ms)
        self.write(*(Forgotten(identity) for identity in self.streams.ended))
        self.streams.ended.clear()

    def receive(self, lines: Sequence[bytes], keeps: bool) -> None:
        """`keeps`: the burst gets into the log. Without, it is in the journal and nowhere else."""
        assert self.session is not None
        serial = self.session.take([digest_of(line) for line in lines], (lines, keeps))
        if serial is None:
            self.streams.turn(self.now_ms)
        else:
            self._on_aligned((lines, keeps), serial)

    def wait(self) -> None:
        self.now_ms += HOLD_MS
        self.streams.turn(self.now_ms)

    def _on_aligned(self, token: tuple[Sequence[bytes], bool], serial: int) -> None:
        lines, keeps = token
        session = self.session
        assert session is not None
        new = [place for place in range(len(lines)) if not self.memory.has(session.identity, TOPIC, serial + place)]
        parts = [(session.identity, serial + place, 1) for place in new]
        assert session.stream is not None
        first_serial, digests = session.stream.take_unjournalled()
        self.write(Frames(session.identity, first_serial, *KEY, digests))
        self.write(JournalledBatch(TOPIC, b"t" * 16, 0, 1, 0, self.sequence, len(new) or 1, parts))
        if keeps:
            self.in_log.add(self.sequence)
            self.log += [lines[place] for place in new]
            self.memory.add_stored(TOPIC, parts)
        self.sequence += len(new) or 1
        session.completed(serial, len(lines))
        if keeps:
            self.completed.append(len(lines))


class Sender:
    """Sends everything that was not answered, in order, first; then new lines. It reads only some of the answers that were sent."""

    def __init__(self, lines: Sequence[bytes], receiver: Receiver) -> None:
        self.lines = lines
        self.receiver = receiver
        self.answered = 0

    def session(self, bursts: Sequence[int], unread: int, end: str) -> None:
        """`bursts`: how many lines each; the last burst is lost with the receiver if it is killed. `unread`: answers that are lost on the way."""
        receiver = self.receiver
        receiver.connect()
        sent = self.answered
        for number, size in enumerate(bursts):
            burst = self.lines[sent : sent + size]
            sent += len(burst)
            if burst:
                receiver.receive(burst, keeps=not (end == "killed" and number == len(bursts) - 1))
        if end == "waits":
            receiver.wait()
        answers = receiver.completed[: len(receiver.completed) - unread] if end != "closed" else receiver.completed
        self.answered += sum(answers)
        if end == "killed":
            receiver.kill()
        elif end == "closed" and self.answered == sent:
            receiver.disconnect(is_clean=True)
        else:
            receiver.disconnect(is_clean=False)

    def finish(self) -> None:
        self.receiver.connect()
        self.receiver.receive(self.lines[self.answered :], keeps=True)
        self.receiver.receive([b"the end"], keeps=True)
        self.receiver.wait()


sessions = st.lists(
    st.tuples(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 6), st.sampled_from(["broken", "killed", "closed", "waits"])), max_size=6
)


@given(st.integers(0, 60), sessions)
def test_lines_that_differ_are_stored_exactly_once(count: int, breaks: list[tuple[list[int], int, str]]) -> None:
    lines = [b"line %d" % number for number in range(count)]
    receiver = Receiver()
    sender = Sender(lines, receiver)
    for bursts, unread, end in breaks:
        sender.session(bursts, unread, end)
    sender.finish()
    assert Counter(receiver.log) == Counter([*lines, b"the end"])
    assert [line for line in receiver.log if line.startswith(b"line")] == sorted(lines, key=lambda line: int(line[5:]))


@given(st.lists(st.sampled_from([b"x", b"y", b""]), max_size=60), sessions)
def test_lines_that_repeat_themselves_are_never_lost(kinds: list[bytes], breaks: list[tuple[list[int], int, str]]) -> None:
    repeated = [b"x", b"y", b"x", b"y"]
    lines = [*repeated, *(kind or b"line %d" % number for number, kind in enumerate(kinds))]
    receiver = Receiver()
    sender = Sender(lines, receiver)
    sender.session([len(repeated)], 0, "broken")
    for bursts, unread, end in breaks:
        sender.session(bursts, unread, end)
    sender.finish()
    stored, sent = Counter(receiver.log), Counter([*lines, b"the end"])
    assert not sent - stored
    assert set((stored - sent).keys()) <= {b"x", b"y"}, "a line that is there once is stored once"
