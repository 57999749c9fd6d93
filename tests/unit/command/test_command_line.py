"""The command as a process: what it prints, where, and its exit codes. A librdkafka mock cluster is its broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer as TheirProducer

from appliance.records.batch import stamp_batch
from appliance.records.builder import BatchBuilder
from lab.running_box import environment

COMMAND = [sys.executable, "-m", "appliance.command.main"]

pytestmark = [pytest.mark.slow, pytest.mark.system]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    mock = TheirProducer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = mock.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"


def millrace(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], env=environment(), input=stdin, capture_output=True, timeout=60, check=False)


def begin(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def lines_sent(bootstrap: str, topic: str, text: bytes, *options: str) -> list[bytes]:
    """Send lines, read as many back."""
    sent = millrace("send", topic, "--bootstrap", bootstrap, *options, stdin=text)
    assert (sent.returncode, sent.stdout) == (0, b""), sent.stderr
    count = len(text.splitlines())
    assert f"sent {count:,} records".encode() in sent.stderr
    tailed = millrace("topic", "tail", topic, "--from-beginning", "--max", str(count), "--keys", "--bootstrap", bootstrap)
    assert (tailed.returncode, tailed.stderr) == (0, b"")
    return sorted(tailed.stdout.splitlines())


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_sent_are_lines_tailed(bootstrap: str, compression: str) -> None:
    numbers = [b"%d" % number for number in range(3_000)]
    found = lines_sent(bootstrap, f"lines-{compression}", b"\n".join(numbers) + b"\n", "--compression", compression)
    assert found == sorted(b"null\t" + number for number in numbers)


def test_the_separator_divides_key_and_value(bootstrap: str) -> None:
    assert lines_sent(bootstrap, "keyed", b"a=1\nb=2=3\n", "--key-separator", "=") == [b"a\t1", b"b\t2=3"]


def test_acks_0_and_1_are_taken(bootstrap: str) -> None:
    assert lines_sent(bootstrap, "acks-0", b"x\ny\n", "--acks", "0") == [b"null\tx", b"null\ty"]
    assert lines_sent(bootstrap, "acks-1", b"x\ny\n", "--acks", "1") == [b"null\tx", b"null\ty"]


def test_topics_are_listed_and_described(bootstrap: str) -> None:
    lines_sent(bootstrap, "described", b"x\ny\n")
    listed = millrace("topic", "list", "--bootstrap", bootstrap).stdout
    assert [b"described", b"4", b"1", b"ok"] in [line.split() for line in listed.splitlines()]
    described = millrace("topic", "describe", "described", "--bootstrap", bootstrap).stdout.decode().splitlines()
    assert described[0].startswith("topic described  id ") and described[0].endswith("  4 partitions")
    assert described[1].split() == ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "OFFSET", "END", "OFFSET", "RECORDS"]
    assert sum(int(line.split()[-1]) for line in described[2:]) == 2


def test_interrupting_a_tail_is_its_ordinary_end(bootstrap: str) -> None:
    millrace("send", "followed", "--bootstrap", bootstrap, stdin=b"first\n")
    tail = begin("topic", "tail", "followed", "-b", "--bootstrap", bootstrap)
    assert tail.stdout is not None
    assert tail.stdout.readline() == b"first\n"
    tail.send_signal(signal.SIGINT)
    printed, said = tail.communicate(timeout=60)
    assert printed == b"" and said.startswith(b"ended by Ctrl-C: 1 record; next offsets ")
    assert tail.returncode == 0


def test_a_reader_that_has_had_enough_is_no_error(bootstrap: str) -> None:
    millrace("send", "much", "--bootstrap", bootstrap, stdin=b"x" * 200 + b"\n" * 5_000)
    tail = begin("topic", "tail", "much", "-b", "--bootstrap", bootstrap)
    assert tail.stdout is not None and tail.stderr is not None
    tail.stdout.close()
    assert tail.stderr.read() == b""
    tail.stderr.close()
    assert tail.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["topic", "describe", "nope", "--bootstrap", "BROKER"], 1, "there is no such topic"),
        (["topic", "create", "a b", "--bootstrap", "BROKER"], 2, "characters other than letters"),
        (["topic", "create", "a", "--partitions", "0", "--bootstrap", "BROKER"], 2, "--partitions"),
        (["topic", "create", "a", "--set", "x", "--bootstrap", "BROKER"], 2, "NAME=VALUE"),
        (["topic", "list", "--bootstrap", "127.0.0.1:1"], 1, "no broker at 127.0.0.1:1: connection refused; check the address"),
        (["topic", "list", "--bootstrap", "127.0.0.1:x"], 2, "port"),
        (["status", "--data", "/nowhere"], 2, "no running box has the data directory /nowhere"),
        (["log", "dump", "/nowhere/00000000000000000000.log"], 2, "no such file"),
        (["log", "dump", "/etc/hostname"], 2, "is no file of a log: known are OFFSET with .log, .index, .timeindex, .txnindex, .summary, .snapshot"),
        (["log", "dump", "/etc"], 2, "/etc is a directory; name a file in it"),
        (["send", "a", "--key-separator", "", "--bootstrap", "BROKER"], 2, "must not be empty"),
        (["send", "a", "--compression", "rar", "--bootstrap", "BROKER"], 2, "rar"),
        (["run", "--kafka-port", "x", "--acceptors", "y"], 2, "--acceptors is 'y'"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(bootstrap: str, arguments: list[str], code: int, words: str) -> None:
    done = millrace(*(bootstrap if argument == "BROKER" else argument for argument in arguments))
    assert words in done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b"")
    assert b"Traceback" not in done.stderr


def test_a_segment_is_dumped_with_its_records(tmp_path: Path) -> None:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, b"host-7", b"disk d3 is warm")
    batch = bytearray(builder.build())
    stamp_batch(batch, 0, 41, 3)
    segment = tmp_path / "00000000000000000041.log"
    segment.write_bytes(batch)
    done = millrace("log", "dump", str(segment), "--records")
    batch_line, record_line = done.stdout.decode().splitlines()
    assert "baseOffset: 41" in batch_line and "isvalid: true" in batch_line
    assert "key: host-7 value: disk d3 is warm" in record_line
    assert millrace("log", "dump", str(segment)).stdout.decode().splitlines() == [batch_line]


def test_help_says_how_a_box_is_found_and_what_exit_codes_mean() -> None:
    done = millrace("--help")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert all(words in text for words in ("MILLRACE_DATA", "Exit codes: 0", "run", "status", "topic", "send", "log"))


def test_help_costs_none_of_the_heavy_imports() -> None:
    done = subprocess.run([sys.executable, "-X", "importtime", *COMMAND[1:], "--help"], capture_output=True, timeout=60, check=True, env=os.environ)
    imported = {line.split(b"|")[-1].strip() for line in done.stderr.splitlines()}
    assert b"typer" in imported
    assert not imported & {b"kio", b"rich", b"cramjam", b"orjson", b"posix_ipc", b"asyncio", b"appliance.client.messages"}
