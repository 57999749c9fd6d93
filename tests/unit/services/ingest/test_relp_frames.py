"""RELP's frames, as librelp and relppy write them, and malformed ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.protocols.syslog.relp_frames import RelpSplitter, is_cut, next_transaction

OPEN = b"1 open 86 relp_version=0\nrelp_software=librelp,1.11.0,http://librelp.adiscon.com\ncommands=syslog\n"


def frame(transaction: int, command: bytes, data: bytes) -> bytes:
    return b"%d %b %d%b\n" % (transaction, command, len(data), b" " + data if data else b"")


def test_frames_come_out_of_one_piece_and_of_single_bytes() -> None:
    stream = OPEN + frame(2, b"syslog", b"<13>one") + frame(3, b"syslog", b"<13>two\nthree") + b"4 close 0\n"
    whole = RelpSplitter(1 << 20, 1 << 16).feed(stream)
    assert [(transaction, command) for transaction, command, _ in whole] == [(1, b"open"), (2, b"syslog"), (3, b"syslog"), (4, b"close")]
    assert whole[2][2] == b"<13>two\nthree" and whole[3][2] == b""
    splitter = RelpSplitter(1 << 20, 1 << 16)
    assert [each for byte in stream for each in splitter.feed(bytes([byte]))] == whole
    assert splitter.buffered_bytes == 0 and not splitter.problem


@pytest.mark.parametrize(
    "stream",
    [
        b"x",
        b"1 syslog 3 abcd",
        b"1  syslog 3 abc\n",
        b"1234567890 syslog 3 abc\n",
        b"1 syslog1 3 abc\n",
        b"1 syslog 3\nabc\n",
        b"1 syslog x",
        b"\n1 open 0\n",
        b"1 " + b"a" * 33,
    ],
)
def test_what_is_no_frame_ends_the_stream(stream: bytes) -> None:
    splitter = RelpSplitter(1 << 20, 1 << 16)
    assert splitter.feed(frame(1, b"syslog", b"good") + stream) == [(1, b"syslog", b"good")]
    assert splitter.problem == "bad frame"


def test_a_frame_beyond_the_limit_is_refused_before_its_bytes_come() -> None:
    splitter = RelpSplitter(1000, 100)
    assert splitter.feed(b"1 syslog 1001 ") == []
    assert splitter.problem == "frame too large"


def test_a_text_that_is_too_long_is_cut_and_its_rest_is_skipped_without_being_kept() -> None:
    splitter = RelpSplitter(1 << 20, 100)
    text = bytes(range(33, 123)) * 1000
    stream = frame(7, b"syslog", text) + frame(8, b"syslog", b"next")
    found = []
    for position in range(0, len(stream), 50):
        found += splitter.feed(stream[position : position + 50])
        assert splitter.buffered_bytes <= 160
    assert found == [(7, b"syslog", text[:100]), (8, b"syslog", b"next")]
    assert is_cut(found[0][2]) and not is_cut(found[1][2])


frames = st.lists(st.tuples(st.integers(0, 999_999_999), st.sampled_from([b"open", b"syslog", b"close", b"rsp"]), st.binary(max_size=60)), max_size=8)


@given(frames, st.lists(st.integers(0, 400), max_size=8))
def test_pieces_make_no_difference(parts: list[tuple[int, bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(*part) for part in parts)
    splitter = RelpSplitter(1000, 40)
    positions = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    found = [each for start, end in pairwise(positions) for each in splitter.feed(stream[start:end])]
    assert [(transaction, command) for transaction, command, _ in found] == [(number, command) for number, command, _ in parts]
    for (_, _, text), (_, _, data) in zip(found, parts, strict=True):
        assert data.startswith(text) and (text == data or (is_cut(text) and len(data) > 40))


@given(st.binary(max_size=100), st.integers(1, 20))
def test_any_bytes_in_any_pieces_end_alike(stream: bytes, size_bytes: int) -> None:
    whole, pieces = RelpSplitter(1000, 40), RelpSplitter(1000, 40)
    expected = whole.feed(stream)
    found = [each for position in range(0, len(stream), size_bytes) if not pieces.problem for each in pieces.feed(stream[position : position + size_bytes])]
    assert (found, pieces.problem) == (expected, whole.problem)


def test_transactions_start_again_behind_the_largest() -> None:
    assert [next_transaction(number) for number in (1, 999_999_998, 999_999_999)] == [2, 999_999_999, 1]
