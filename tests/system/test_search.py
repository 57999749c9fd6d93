"""Search on a real box: the command, the same by HTTP, and what a search must not do to the box."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.running_box import RunningBox, environment, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

COMMAND = [sys.executable, "-P", "-m", "appliance.command.main", "search"]
BEGINNING_MS = 1_795_000_000_000
"""2026-11-18; a second later for each record."""
Search = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def search(shared_box: RunningBox) -> Search:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        found_by = environment() | {"MILLRACE_DATA": str(shared_box.disks[0]), "TZ": "UTC"}
        return subprocess.run([*COMMAND, *arguments], env=found_by, capture_output=True, text=True, timeout=60, check=False)

    return run


def value(number: int) -> bytes:
    message = f"request {number} timed out" if number % 100 == 0 else f"request {number} took {number % 97} ms"
    return json.dumps({"host": f"web{number % 10}", "app": "nginx", "proc_id": None, "severity": number % 8, "severity_name": "x", "message": message}).encode()


@pytest.fixture(scope="module")
def topic(shared_box: RunningBox) -> str:
    """4,000 records in four partitions, a codec each quarter."""
    name = "searched"
    admin = AdminClient({"bootstrap.servers": shared_box.bootstrap})
    admin.create_topics([NewTopic(name, 4, 1)])[name].result(30)
    for quarter, codec in enumerate(("none", "lz4", "zstd", "gzip")):
        producer = Producer({"bootstrap.servers": shared_box.bootstrap, "linger.ms": 20, "compression.type": codec})
        for number in range(1_000 * quarter, 1_000 * quarter + 1_000):
            producer.produce(name, value(number), partition=number % 4, timestamp=BEGINNING_MS + 1_000 * number)
        assert producer.flush(30) == 0
    return name


def test_the_command_finds_records_in_time_order(search: Search, topic: str) -> None:
    done = search('"timed out" host=web0 -severity=3', "--topic", topic, "--since", "2026-11-01", "--raw")
    expected = [value(number).decode() for number in range(0, 4_000, 100) if number % 8 != 3]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr
    assert done.stderr.startswith(f"{len(expected)} records in ")


def test_the_forms_of_the_output(search: Search, topic: str) -> None:
    named = ("--topic", topic, "--since", "2026-11-01")
    assert search("request 1200", *named).stdout == "2026-11-18T11:26:40.000+00:00 web0 nginx x: request 1200 timed out\n"
    found = json.loads(search("request 1200", *named, "--json").stdout)
    assert (found["topic"], found["timestamp"], found["value"]["host"]) == (topic, BEGINNING_MS + 1_200_000, "web0")
    assert search("timed", *named, "--count", "--quiet").stdout == "40\n"
    table = search("timed", *named, "--by", "hour,host").stdout.splitlines()
    assert table[0].split() == ["HOUR", "HOST", "RECORDS"] and sum(int(row.split()[2]) for row in table[1:]) == 40
    assert [json.loads(each)["offset"] for each in search("timed", *named, "--json", "--limit", "2", "--newest").stdout.splitlines()] == [950, 975]
    assert search("timed", *named, "--count", "--partition", "1").stdout == "0\n"
    around = search("request 1200", *named, "-B", "2", "-A", "1").stdout.splitlines()
    assert [(line[:2], line.partition("request ")[2].split()[0]) for line in around] == [("  ", "1192"), ("  ", "1196"), ("> ", "1200"), ("  ", "1204")]
    begin, end = (str(BEGINNING_MS + 1_000 * number) for number in (100, 300))
    assert search("timed", "--topic", topic, "--since", begin, "--until", end, "--count").stdout == "2\n"


def test_mistakes_say_what_and_where(search: Search, topic: str) -> None:
    done = search('host=web "timed', "--topic", topic)
    assert done.returncode == 2 and done.stderr.splitlines()[2] == "millrace:            ^", done.stderr
    assert "there is no topic absent" in search("x", "--topic", "absent").stderr
    assert "--since: 'soon' is no time" in search("x", "--topic", topic, "--since", "soon").stderr
    assert "has no partition 9" in search("x", "--topic", topic, "--partition", "9").stderr


def ask(box: RunningBox, headers: dict[str, str] | None = None, **parameters: Any) -> tuple[int, list[dict[str, Any]]]:
    with closing(http.client.HTTPConnection(box.http.host, box.http.port, timeout=30)) as connection:
        connection.request("GET", f"/api/search?{urlencode(parameters)}", headers=headers or {})
        response = connection.getresponse()
        return response.status, [json.loads(each) for each in response.read().splitlines()]


def test_the_same_by_http_as_lines_of_json(shared_box: RunningBox, topic: str) -> None:
    status, documents = ask(shared_box, topic=topic, query="request 1200", since="2026-11-01T00:00Z")
    assert status == 200 and list(documents[0]) == ["search"] and documents[0]["search"]["partitions"] == [0, 1, 2, 3]
    assert [json.loads(each["record"]["value"])["message"] for each in documents if "record" in each] == ["request 1200 timed out"]
    assert documents[-1]["end"] | {"milliseconds": 0, "scanned_bytes": 0, "opened_bytes": 0} == {
        "matches": 1, "scanned_bytes": 0, "opened_bytes": 0, "skipped_bytes": 0, "milliseconds": 0, "unordered": 0, "stopped": None,
        "not_searched": [], "notes": [],
    }  # fmt: skip
    assert ask(shared_box, topic=topic, query="(a")[0] == 400 and ask(shared_box, topic=topic, query="(a")[1][0]["column"] == 1
    status, (mistake,) = ask(shared_box, topic=topic, query="a /(/")
    assert status == 400 and mistake["column"] == 3 and "no regular expression: missing )" in mistake["error"]
    assert ask(shared_box, topic="absent", query="a")[0] == 404
    assert ask(shared_box, topic=topic, wrong="1")[0] == 400
    assert ask(shared_box, {"Sec-Fetch-Site": "cross-site"}, topic=topic, query="a")[0] == 403
    assert ask(shared_box, {"Host": "evil.example"}, topic=topic, query="a")[0] == 421


def searches_of(box: RunningBox) -> list[int]:
    """Pids of the search processes of a box."""
    console = box.status()["console"]["pid"]
    return [int(pid) for task in Path(f"/proc/{console}/task").iterdir() for pid in (task / "children").read_text().split()]


@pytest.fixture
def following(shared_box: RunningBox, topic: str) -> Iterator[subprocess.Popen[str]]:
    arguments = [*COMMAND, "arrived", "--topic", topic, "--since", "2026-11-01", "--follow", "--raw", "--data", str(shared_box.disks[0])]
    with subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_search_that_follows_shows_new_records_and_ends_with_its_command(shared_box: RunningBox, topic: str, following: subprocess.Popen[str]) -> None:
    eventually(lambda: searches_of(shared_box), "a search process runs")
    producer = Producer({"bootstrap.servers": shared_box.bootstrap})
    for number in range(3):
        producer.produce(topic, b"arrived %d" % number, partition=number)
        producer.flush(10)
        assert following.stdout is not None and following.stdout.readline() == f"arrived {number}\n"
    following.send_signal(signal.SIGINT)
    assert following.stderr is not None and following.stderr.read().startswith("ended by Ctrl-C: 3 records")
    eventually(lambda: not searches_of(shared_box), "no search process is left", 10)


def test_one_search_is_kept_for_the_box_itself_and_a_closed_connection_ends_one(shared_box: RunningBox, topic: str, following: subprocess.Popen[str]) -> None:
    with closing(http.client.HTTPConnection(shared_box.http.host, shared_box.http.port, timeout=30)) as connection:
        connection.request("GET", f"/api/search?{urlencode({'topic': topic, 'query': 'absent', 'follow': 'true'})}")
        assert connection.getresponse().status == 200
        pids = eventually(lambda: len(found := searches_of(shared_box)) == 2 and found, "the command searches beside it")
        eventually(lambda: all(os.getpriority(os.PRIO_PROCESS, pid) == 19 for pid in pids), "both have the lowest priority", 10)
        assert following.poll() is None
        assert ask(shared_box, topic=topic, query="absent")[0] == 429
    eventually(lambda: len(searches_of(shared_box)) == 1, "closing a connection ends its search", 10)
    assert ask(shared_box, topic=topic, query="absent")[0] == 200


def test_a_console_that_has_searched_has_loaded_neither_numpy_nor_re2(shared_box: RunningBox, topic: str) -> None:
    assert ask(shared_box, topic=topic, query="/timed/")[0] == 200, "the process compiles it"
    maps = Path(f"/proc/{shared_box.status()['console']['pid']}/maps").read_text()
    assert "orjson" in maps and "numpy" not in maps and "re2" not in maps


def test_a_stream_that_lasts_longer_than_an_answer_may_take_is_not_closed(shared_box: RunningBox, topic: str) -> None:
    """The console closes a connection whose answer has not progressed for 30 s."""
    started = time.monotonic()
    with closing(http.client.HTTPConnection(shared_box.http.host, shared_box.http.port, timeout=30)) as connection:
        connection.request("GET", f"/api/search?{urlencode({'topic': topic, 'query': 'absent', 'follow': 'true'})}")
        response = connection.getresponse()
        while time.monotonic() < started + 35:
            assert response.readline()


@pytest.fixture(scope="module")
def large_topic(shared_box: RunningBox) -> str:
    """10 MB in five segments; each record has three words of its own: one alone may be found in a
    filter by chance."""
    name = "summarized"
    admin = AdminClient({"bootstrap.servers": shared_box.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config={"segment.bytes": "2097152"})])[name].result(30)
    producer = Producer({"bootstrap.servers": shared_box.bootstrap, "linger.ms": 20})
    for number in range(10_000):
        producer.produce(name, json.dumps({"host": "web", "message": f"n{number} m{number} k{number} " + "padding " * 120}).encode())
        if number % 1_000 == 999:
            assert producer.flush(30) == 0
    return name


def test_a_searched_topic_gets_summaries_and_a_lost_one_is_made_again(shared_box: RunningBox, large_topic: str, search: Search) -> None:
    def skipped() -> int:
        _, documents = ask(shared_box, topic=large_topic, query="n9999 m9999 k9999")
        assert [json.loads(each["record"]["value"])["message"].split()[0] for each in documents if "record" in each] == ["n9999"]
        return int(documents[-1]["end"]["skipped_bytes"])

    (directory,) = [disk / f"{large_topic}-0" for disk in shared_box.disks if (disk / f"{large_topic}-0").exists()]
    sealed = sorted(directory.glob("*.log"))[:-1]
    assert not list(directory.glob("*.summary")), "no search has asked for one"
    assert skipped() == 0
    eventually(lambda: len(list(directory.glob("*.summary"))) == len(sealed), "each sealed segment has a summary", 60)
    assert skipped() == sum(path.stat().st_size for path in sealed)
    assert "skipped by summaries" in search("n9999 m9999 k9999", "--topic", large_topic).stderr
    assert sum(path.stat().st_size for path in directory.glob("*.summary")) <= sum(path.stat().st_size for path in sealed) // 50
    lost = sealed[0].with_suffix(".summary")
    lost.unlink()
    assert skipped() == sum(path.stat().st_size for path in sealed[1:])
    eventually(lost.exists, "it is made again", 60)
    admin = AdminClient({"bootstrap.servers": shared_box.bootstrap})
    admin.delete_topics([large_topic])[large_topic].result(30)
    eventually(lambda: not directory.exists(), "the summaries go with their segments")
