"""The splitter over any stream in any pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from services.ingest.protocols.syslog.syslog_framing import CutMessage, SyslogSplitter

LIMIT = 40

message_text = st.binary(max_size=50).map(lambda text: b"<13>" + text)
fragments = st.one_of(
    message_text.map(lambda message: b"%d %b" % (len(message), message)),
    message_text.map(lambda message: message + b"\n"),
    message_text.map(lambda message: message + b"\0"),
    message_text.map(lambda message: message + b"\r\n"),
    st.tuples(st.integers(0, 10**9), message_text).map(lambda lie: b"%d %b" % lie),
    st.sampled_from([b"\n", b"\0", b"\r", b" ", b"<", b"1", b"12", b"12 ", b"9 <1>", b"123456789 <13>x"]),
    st.binary(max_size=60),
)
streams = st.one_of(st.lists(fragments, max_size=12).map(b"".join), st.binary(max_size=200))


def outcome(stream: bytes, cuts: list[int]) -> tuple[list[bytes], list[bool], int, int, int]:
    splitter = SyslogSplitter(LIMIT)
    messages = []
    positions = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in pairwise(positions):
        messages += splitter.feed(stream[start:end])
        assert splitter.buffered_bytes <= LIMIT + 1 + len(b"12345678 <191>")
    messages += splitter.finish()
    marks = [type(message) is CutMessage for message in messages]
    return messages, marks, splitter.cut_messages, splitter.discarded_bytes, splitter.resynchronisations


@given(streams, st.lists(st.integers(0, 1000), max_size=12))
@example(b"6 <13>onX112 <13>" + b"y" * 130, [])
@example(b"4 <13>" + b"x" * 39 + b"4 <13>", [])
@example(b"3 <1>" + b"z" * 60 + b"8 <13>text", [])
def test_the_pieces_in_which_a_stream_arrives_make_no_difference(stream: bytes, cuts: list[int]) -> None:
    whole = outcome(stream, [])
    assert outcome(stream, cuts) == whole
    assert outcome(stream, list(range(len(stream)))) == whole


@given(streams)
def test_every_message_is_a_piece_of_the_stream_in_order_and_none_is_empty_or_too_long(stream: bytes) -> None:
    messages, *_ = outcome(stream, [])
    position = 0
    for message in messages:
        assert 0 < len(message) <= LIMIT
        found = stream.find(message, position)
        assert found >= position
        position = found + len(message)


@given(streams)
def test_what_does_not_come_out_is_framing_or_was_counted_as_discarded(stream: bytes) -> None:
    messages, _, _, discarded_bytes, _ = outcome(stream, [])
    missing = len(stream) - sum(map(len, messages)) - discarded_bytes
    framing = sum(stream.count(byte) for byte in (b"\n", b"\r", b"\0", b" ", *(b"%d" % digit for digit in range(10))))
    assert 0 <= missing <= framing


lines = st.lists(st.binary(min_size=1, max_size=LIMIT - 4).filter(lambda text: not {0, 10, 13} & set(text)).map(lambda text: b"<13>" + text), min_size=1)


@given(lines)
def test_clean_lines_come_out_as_they_went_in(messages: list[bytes]) -> None:
    for trailer in (b"\n", b"\r\n", b"\0"):
        assert outcome(b"".join(message + trailer for message in messages), [7])[0] == messages


@given(st.lists(st.binary(max_size=LIMIT - 4).map(lambda text: b"<13>" + text), min_size=1), st.sampled_from([b"", b"\n"]))
def test_counted_frames_come_out_as_they_went_in(messages: list[bytes], between: bytes) -> None:
    assert outcome(b"".join(b"%d %b%b" % (len(message), message, between) for message in messages), [7])[0] == messages
