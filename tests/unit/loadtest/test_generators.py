"""Generators in C: they compile without a warning, and do what their benchmarks count on."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from appliance.records.builder import BatchBuilder
from loadtest.benchmark import BenchmarkFailed
from loadtest.generators.compiler import HERE, compile_generator, find_compiler, find_librdkafka
from loadtest.generators.fetch_frame import build_fetch_frame, fetch_layout
from loadtest.load_generator import LoadGenerator

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_compiler() is None, reason="no C compiler")]
TOPIC = "bench"
LINES, HOSTS, LINE_BYTES = 500, 16, 300


@pytest.mark.parametrize("name", sorted(source.stem for source in HERE.glob("*.c")))
def test_a_generator_compiles_without_a_warning(name: str, tmp_path: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    compiled = subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", str(tmp_path / name), str(HERE / f"{name}.c"), "-ldl"], check=False)
    assert compiled.returncode == 0


def test_the_udp_sender_sends_each_line_once_with_its_number_and_host(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        receiver.settimeout(10)
        receiver.bind(("127.0.0.1", 0))
        arguments = [str(compile_generator("syslog_udp_sender", tmp_path)), "127.0.0.1", str(receiver.getsockname()[1])]
        with LoadGenerator("sender", [*arguments, "5000", "0.1", str(LINE_BYTES), str(HOSTS), "1000"]) as sender:
            sender.await_ready()
            sender.go()
            lines = [receiver.recv(65536) for _ in range(LINES)]
            document = json.loads(sender.finish(10.0).output)
    assert document["lines"] == LINES
    assert {len(line) for line in lines} == {LINE_BYTES}
    words = [line.split() for line in lines]
    assert [int(word[8]) for word in words] == list(range(LINES))
    assert [word[2].decode() for word in words] == [f"host-{n % HOSTS:03d}" for n in range(LINES)]


def reply(correlation: int, batches: bytes, high_watermark: int, error: int = 0) -> bytes:
    name = TOPIC.encode()
    body = struct.pack(">iihii", correlation, 0, 0, 0, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">iihqqqiii", 1, 0, error, high_watermark, high_watermark, 0, 0, -1, len(batches)) + batches
    return struct.pack(">i", len(body)) + body


def batch(base_offset: int, records: int) -> bytes:
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(1_700_000_000_000, None, b"x" * 100, ())
    built = bytes(builder.build())
    return struct.pack(">q", base_offset) + built[8:]


def fetch_once(directory: Path, *replies: bytes) -> dict[str, int]:
    """The fetcher reads a partition once from a broker that gives these replies."""
    request = directory / "request"
    request.write_bytes(build_fetch_frame(TOPIC, 0, 1 << 20))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for words in replies:
                    connection.recv(1000)
                    connection.sendall(words)
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        numbers = map(str, (1, 0, 2 << 20, *fetch_layout(TOPIC)))
        try:
            command = [str(compile_generator("fetcher", directory)), "127.0.0.1", str(server.getsockname()[1]), *numbers, str(request)]
            with LoadGenerator("fetcher", command) as fetcher:
                fetcher.await_ready()
                fetcher.go()
                document: dict[str, int] = json.loads(fetcher.finish(20.0).output.splitlines()[-1])
                return document
        finally:
            thread.join()


def test_the_fetcher_counts_every_record_up_to_the_high_watermark(tmp_path: Path) -> None:
    document = fetch_once(tmp_path, reply(1, batch(0, 3) + batch(3, 4), 9), reply(2, batch(7, 2), 9))
    assert (document["records"], document["replies"]) == (9, 2)


def test_a_batch_that_was_cut_off_is_asked_for_again(tmp_path: Path) -> None:
    assert fetch_once(tmp_path, reply(1, batch(0, 3) + batch(3, 4)[:80], 7), reply(2, batch(3, 4), 7))["records"] == 7


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (reply(1, batch(0, 3) + batch(4, 4), 8), "does not begin where"),
        (reply(1, batch(0, 3)[:-1] + b"y", 3), "wrong checksum"),
        (reply(1, batch(0, 3), 3, error=6), "error code 6"),
        (reply(2, batch(0, 3), 3), "another request"),
        (reply(1, b"", 3), "no whole batch"),
    ],
)
def test_the_fetcher_refuses_what_is_not_right(tmp_path: Path, words: bytes, complaint: str) -> None:
    with pytest.raises(BenchmarkFailed, match=complaint):
        fetch_once(tmp_path, words)


def test_librdkafka_lies_where_the_wheel_puts_it(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    library = find_librdkafka()
    assert library is not None
    program = shutil.copy(compile_generator("librdkafka_client", tmp_path), tmp_path / "client")
    said = subprocess.run([program, str(library), "produce", "x:1", "t", "1", "1", "8", "no.such.property=1"], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "no.such.property" in said.stderr
