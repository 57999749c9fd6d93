"""What real senders put on a TCP connection, and what comes out of it."""

from __future__ import annotations

import pytest

from services.ingest.protocols.syslog.syslog_framing import BELIEVED_COUNT_MAX, CutMessage, SyslogSplitter, cut_message, unframe_datagram


def split(*pieces: bytes, max_message_bytes: int = 64) -> list[bytes]:
    splitter = SyslogSplitter(max_message_bytes)
    return [message for piece in pieces for message in splitter.feed(piece)] + splitter.finish()


def counted(message: bytes) -> bytes:
    return b"%d %b" % (len(message), message)


def test_lines_end_at_line_feeds() -> None:
    assert split(b"<13>one\n<13>two\n") == [b"<13>one", b"<13>two"]


def test_octet_counted_frames_end_where_their_count_says() -> None:
    assert split(counted(b"<13>one") + counted(b"<13>1 with\nline feed")) == [b"<13>one", b"<13>1 with\nline feed"]


def test_a_line_feed_at_the_end_of_a_counted_frame_stays_in_it_as_rsyslog_sends_it() -> None:
    assert split(counted(b"<13>one\n") + counted(b"<13>two\n")) == [b"<13>one\n", b"<13>two\n"]


@pytest.mark.parametrize("between", [b"\n", b"\r\n", b"\0", b"\n\n"])
def test_line_ends_between_counted_frames_are_skipped(between: bytes) -> None:
    assert split(counted(b"<13>one") + between + counted(b"<13>two") + between) == [b"<13>one", b"<13>two"]


def test_nul_ends_lines_on_a_stream_whose_first_line_ended_with_nul() -> None:
    assert split(b"<13>one\0<13>two\nstill two\0<13>three\0") == [b"<13>one", b"<13>two\nstill two", b"<13>three"]


def test_nul_inside_a_line_is_data_on_a_stream_of_line_feeds() -> None:
    assert split(b"<13>one\n<13>t\0wo\n") == [b"<13>one", b"<13>t\0wo"]


@pytest.mark.parametrize("trailer", [b"\n\0", b"\0\n", b"\r\n"])
def test_trailers_of_two_bytes_do_not_make_empty_messages(trailer: bytes) -> None:
    assert split(b"<13>one" + trailer + b"<13>two" + trailer) == [b"<13>one", b"<13>two"]


def test_empty_lines_are_no_messages() -> None:
    assert split(b"\n\n<13>one\n\r\n\n<13>two\n\n") == [b"<13>one", b"<13>two"]


def test_the_last_line_needs_no_trailer() -> None:
    assert split(b"<13>one\n<13>two") == [b"<13>one", b"<13>two"]
    assert split(b"<13>one\n<13>two\r") == [b"<13>one", b"<13>two"]


def test_leading_spaces_of_a_line_are_kept() -> None:
    assert split(b"<13>one\n    at Foo.bar\n") == [b"<13>one", b"    at Foo.bar"]


def test_a_line_that_starts_with_digits_is_a_line_on_a_stream_of_lines() -> None:
    assert split(b"<13>one\n12 monkeys\n2024-01-01 x\n") == [b"<13>one", b"12 monkeys", b"2024-01-01 x"]


def test_a_first_line_that_starts_with_a_date_is_a_line() -> None:
    assert split(b"2024-10-11T22:14:15Z host app: text\n") == [b"2024-10-11T22:14:15Z host app: text"]


def test_counted_frames_without_priority_are_counted_when_the_stream_started_so() -> None:
    assert split(b"5 hello5 world") == [b"hello", b"world"]


def test_a_count_starts_with_one_to_nine() -> None:
    assert split(b"007 <13>one\n") == [b"007 <13>one"]


def test_both_framings_may_take_turns_on_one_connection() -> None:
    assert split(b"<13>one\n" + counted(b"<13>two") + b"<13>three\n" + counted(b"<13>four")) == [b"<13>one", b"<13>two", b"<13>three", b"<13>four"]


def test_a_line_that_is_too_long_is_cut_marked_and_counted() -> None:
    splitter = SyslogSplitter(max_message_bytes=10)
    messages = splitter.feed(b"<13>" + b"x" * 20 + b"\n<13>two\n")
    assert messages == [b"<13>xxxxxx", b"<13>two"]
    assert [type(message) for message in messages] == [CutMessage, bytes]
    assert (splitter.cut_messages, splitter.discarded_bytes) == (1, 14)


def test_a_line_of_exactly_the_maximum_is_whole_with_any_trailer() -> None:
    for trailer in (b"\n", b"\r\n", b"\0"):
        messages = split(b"0123456789" + trailer, b"next" + trailer, max_message_bytes=10)
        assert messages == [b"0123456789", b"next"]
        assert type(messages[0]) is bytes


@pytest.mark.parametrize("ended", [b"\n", b"\0", b""])
def test_a_line_that_is_one_byte_too_long_loses_a_byte_that_is_counted(ended: bytes) -> None:
    splitter = SyslogSplitter(10)
    messages = [*splitter.feed(b"x" * 11 + ended), *splitter.finish()]
    assert (messages, splitter.cut_messages, splitter.discarded_bytes) == ([b"x" * 10], 1, 1)


def test_a_counted_frame_that_is_too_long_is_cut_marked_and_counted() -> None:
    splitter = SyslogSplitter(max_message_bytes=10)
    stream = counted(b"<13>" + b"x" * 20) + counted(b"<13>two")
    messages = [message for byte in stream for message in splitter.feed(bytes([byte]))]
    assert messages == [b"<13>xxxxxx", b"<13>two"]
    assert type(messages[0]) is CutMessage
    assert (splitter.cut_messages, splitter.discarded_bytes) == (1, 14)


def test_a_cut_does_not_split_a_character() -> None:
    assert cut_message("ab€€".encode(), 6) == "ab€".encode()
    assert cut_message(b"abcd", 4) == b"abcd"
    assert cut_message(b"ab\x80\x80\x80\x80\x80", 6) == b"ab\x80\x80\x80\x80", "what is not UTF-8 anyway is cut where it must be"


def test_a_counted_frame_that_never_came_whole_is_kept_and_marked() -> None:
    messages = split(b"50 <13>1 half")
    assert messages == [b"<13>1 half"]
    assert type(messages[0]) is CutMessage


def test_a_count_alone_at_the_end_is_kept_as_a_line() -> None:
    assert split(b"<13>one\n12") == [b"<13>one", b"12"]
    assert split(b"12 ") == [b"12 "]


def test_a_count_that_is_too_small_costs_one_split_message_and_no_more() -> None:
    splitter = SyslogSplitter()
    messages = splitter.feed(b"6 <13>one and more" + counted(b"<13>two") + counted(b"<13>three"))
    assert messages == [b"<13>on", b"e and more", b"<13>two", b"<13>three"]
    assert splitter.resynchronisations == 1


def test_a_count_that_is_too_large_swallows_its_length_and_no_more() -> None:
    messages = split(b"20 <13>one" + counted(b"<13>two") + counted(b"<13>three") + counted(b"<13>four"))
    assert messages[0] == b"<13>one7 <13>two9 <1"
    assert messages[-1] == b"<13>four"
    assert b"".join(messages).replace(b" ", b"").endswith(b"3>three<13>four"), "the bytes are kept, and the stream is found again"


def test_an_absurd_count_is_not_obeyed() -> None:
    assert split(b"%d <13>one\n" % (BELIEVED_COUNT_MAX + 1), b"<13>two\n") == [b"%d <13>one" % (BELIEVED_COUNT_MAX + 1), b"<13>two"]
    assert split(b"99999999999999999999 <13>one\n<13>two\n") == [b"99999999999999999999 <13>one", b"<13>two"]


def test_memory_is_bounded_however_long_a_line_gets() -> None:
    splitter = SyslogSplitter(max_message_bytes=100)
    for _ in range(1000):
        splitter.feed(b"x" * 64)
        assert splitter.buffered_bytes <= 102
    assert splitter.cut_messages == 1
    assert splitter.discarded_bytes == 64_000 - 100


def test_a_datagram_with_a_fitting_octet_count_is_taken_without_it() -> None:
    assert unframe_datagram(b"7 <13>one") == b"<13>one"
    assert unframe_datagram(b"7 <13>one\n") == b"<13>one\n"
    for datagram in (b"8 <13>", b"9 <13>one", b"12 monkeys", b"<13>one", b"", b"7 apples!"):
        assert unframe_datagram(datagram) == datagram
