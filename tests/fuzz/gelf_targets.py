"""Fuzzed GELF: datagrams of two senders with their chunks, a stream, a body.

Whatever a sender says is a record, part of one, or counted; nothing is left when the time of chunks is over. Weak spot: what is too much for a
sender's share of memory is for the unit tests, since inputs are small.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from appliance.senders.listener import Listener, ListenerTransport, Protocol
from services.ingest.protocols.gelf.gelf_datagrams import DEADLINE_MS, MAGIC, SENDER_BYTES_MAX, ChunkAssembly, GelfDatagrams
from services.ingest.protocols.gelf.gelf_session import GelfSession
from services.ingest.records.ack_group import AckGroup
from services.ingest.records.event import EventSource
from services.ingest.records.intake import RefusedReason
from tests.fuzz.push_targets import answered
from tests.fuzz.target import Target, Targets, check_records, talk, whole_and_pieces
from tests.support.recording_intake import RecordingIntake

_FRAME_BYTES = 128
_UDP = Listener("gelf", Protocol.GELF, ListenerTransport.UDP, 0, frame_bytes_max=_FRAME_BYTES, decompressed_bytes_max=1 << 16)
_TCP = _UDP._replace(transport=ListenerTransport.TCP)
_HOSTS = b"192.0.2.7", b"192.0.2.8"
_GELF = b'{"version":"1.1","host":"h","short_message":"x","timestamp":1.5,"level":3,"_a":1}'


def fuzz_gelf_datagrams(data: bytes) -> None:
    """Datagrams, two bytes in front of each: sender and length. Every message that began is whole, or lost once."""
    intake = RecordingIntake()
    handler, assembly = GelfDatagrams(_UDP, intake), ChunkAssembly()
    units = [AckGroup(_UDP, EventSource(host + b":1", host, b"gelf")) for host in _HOSTS]
    begun, ended = 0, 0
    for sender, datagram in _datagrams_of(data):
        handler.received(units[sender], [datagram])
        intake.clock_ms += 100
        assert handler.assembly.size_bytes <= SENDER_BYTES_MAX
        before = len(assembly)
        whole = assembly.take(datagram, _HOSTS[sender], intake.clock_ms)
        lost = len(assembly.take_lost())
        ended += (whole is not None) + lost
        begun += len(assembly) - before + (whole is not None) + lost
    assembly.expire(intake.clock_ms + DEADLINE_MS)
    handler.tick(intake.clock_ms + 2 * DEADLINE_MS)
    assert begun == ended + len(assembly.take_lost())
    for each in (assembly, handler.assembly):
        assert not len(each) and not each.size_bytes and not each.sender_count
    check_records(intake.records)


def _datagrams_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 2 < len(data):
        size = 1 + int.from_bytes(data[position : position + 2], "big") % 300
        yield data[position] >> 7, data[position + 2 : position + 2 + size]
        position += 2 + size


def fuzz_gelf_stream(data: bytes) -> None:
    """The same messages however it is cut: each is a record, or counted once."""
    if (cut := whole_and_pieces(data)) is None:
        return
    stream, steps = cut
    said = [talk(GelfSession, _TCP, stream, step, _gelf_bounds) for step in steps]
    assert said[0].records == said[1].records
    messages = sum(1 for message in stream.split(b"\0") if message.strip())
    for each in said:
        assert len(each.records) + each.refused[RefusedReason.TOO_LARGE] == messages


def _gelf_bounds(session: GelfSession, _piece: int) -> None:
    assert session.buffered_bytes <= _FRAME_BYTES


def fuzz_gelf_body(data: bytes) -> None:
    """A message, or one on each line."""
    assert len(answered("/gelf", data).records) <= 1 + data.count(b"\n")


def _datagram_seeds() -> Iterator[bytes]:
    def framed(*datagrams: bytes) -> bytes:
        return b"".join((len(datagram) - 1).to_bytes(2, "big") + datagram for datagram in datagrams)

    packed = zlib.compress(_GELF)
    parts = [MAGIC + b"01234567" + bytes((index, 3)) + packed[index * 40 : (index + 1) * 40] for index in range(3)]
    yield framed(_GELF, packed, gzip.compress(_GELF, mtime=0), b"\0" + _GELF + b"\0")
    yield framed(parts[2], parts[0], parts[0], parts[1])
    yield framed(parts[0], MAGIC, MAGIC + b"01234567\x04\x02", b"x" * 299, b"\0" + _GELF)
    yield framed(parts[0], parts[1][:11] + b"\x04" + parts[1][12:], parts[1])


def _stream_seeds() -> Iterator[bytes]:
    yield b"\x10" + _GELF + b"\0" + _GELF + b"\0\0" + b"no json\0" + _GELF
    yield b"\x07" + b"x" * 3 * _FRAME_BYTES + b"\0" + _GELF


def _body_seeds() -> Iterator[bytes]:
    yield _GELF
    yield _GELF + b"\n" + _GELF
    yield b'{"host":7,"short_message":null,"level":"warn","_id":1,"facility":"kern","timestamp":"1e400","_timestamp":NaN}'


GELF_TARGETS: Targets = {
    "gelf_datagrams": Target(fuzz_gelf_datagrams, _datagram_seeds, 768),
    "gelf_stream": Target(fuzz_gelf_stream, _stream_seeds, 512),
    "gelf_body": Target(fuzz_gelf_body, _body_seeds, 256),
}
