from __future__ import annotations

import json
import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
import typer

from appliance.base.clock import ManualClock, SystemClock
from appliance.base.layout import Disk
from appliance.base.settings import Box, KafkaListener
from appliance.command import doctor_disks, doctor_machine
from appliance.command.disk_speed_probe import nameless_file, probe, residency_answers, verdict
from appliance.command.doctor import doctor
from appliance.command.doctor_disks import ask_all, judge_disk, judge_residency, judge_sharing, judge_states, look_at_disks
from appliance.command.doctor_machine import judge_clock_source, judge_clocks, judge_descriptors, judge_receive_buffer, judge_shared_memory, look_at_secrets
from appliance.command.doctor_network import (
    access,
    advertised,
    certificates,
    creation_by_name,
    encryption,
    is_local,
    judge_loopback,
    judge_zookeeper,
    ports,
    secret,
)
from appliance.command.findings import OK, PROBLEM, WARNING, Finding
from appliance.security.tls_contexts import certificate_expiry
from lab.certificates import Authority
from tests.unit.base.test_settings import make_box

DISK = Disk("d0", "/srv/d0")
RIGHT = {"cachestat": "right", "mincore": "right", "RWF_NOWAIT": "right", "RWF_DONTCACHE": "right"}
HEALTHY: dict[str, Any] = {
    "exists": True, "device": "8:1", "type": "ext4", "free_bytes": 90 << 30, "total_bytes": 100 << 30, "read_ahead_kb": 512, "error": "", "residency": RIGHT,
}  # fmt: skip
NOW_MS = 1_800_000_000_000


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def box(**values: Any) -> Box:
    return Box(**({"box": "", "broker_id": 1, "disks": [], "state_directory": "", "listen": "127.0.0.1", "advertise": "127.0.0.1",
                   "kafka_port": 0, "syslog_port": 0, "http_port": 0, "ingest_port": 0} | values))  # fmt: skip


def test_a_healthy_disk_is_two_good_lines() -> None:
    assert levels(judge_disk(DISK, HEALTHY)) == [OK, OK]


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"type": "tmpfs"}, WARNING, "gone after a reboot"),
        ({"type": "overlay"}, WARNING, "mount a volume"),
        ({"type": "nfs4"}, WARNING, "network file system"),
        ({"free_bytes": 4 << 30}, WARNING, "only 4.0 GiB free, 4 %"),
        ({"free_bytes": 100 << 20}, PROBLEM, "only 100.0 MiB free"),
        ({"read_ahead_kb": 32}, WARNING, "read_ahead_kb is 32"),
        ({"read_ahead_kb": 32_768}, WARNING, "/sys/class/bdi/8:1/read_ahead_kb"),
        ({"error": "Permission denied"}, PROBLEM, "cannot be written: permission denied"),
        ({"residency": dict.fromkeys(RIGHT, "absent")}, WARNING, "cold and warm reads cannot be distinguished"),
    ],
)
def test_what_is_wrong_with_a_disk_is_said_with_what_to_do(change: dict[str, Any], level: str, words: str) -> None:
    ill = [finding for finding in judge_disk(DISK, HEALTHY | change) if finding.level != OK]
    assert [finding.level for finding in ill] == [level]
    assert words in f"{ill[0].words}; {ill[0].advice}" and ill[0].advice


def test_a_disk_that_the_kernel_does_not_read_ahead_on_is_as_install_sh_makes_it() -> None:
    assert levels(judge_disk(DISK, HEALTHY | {"read_ahead_kb": 0})) == [OK, OK]


def test_a_disk_that_does_not_answer_is_a_problem() -> None:
    assert levels(judge_disk(DISK, None)) == [PROBLEM]


def test_directories_on_one_file_system_are_one_disk() -> None:
    disks = [Disk("a", "/a"), Disk("b", "/b"), Disk("c", "/c")]
    (shared,) = judge_sharing(disks, {"/a": HEALTHY, "/b": HEALTHY, "/c": HEALTHY | {"device": "8:2"}})
    assert shared.level == WARNING and shared.words == "a, b are on one file system"
    assert judge_sharing(disks, {"/a": HEALTHY, "/b": None, "/c": HEALTHY | {"error": "x"}}) == []


def test_the_kernel_is_asked_on_a_file_that_leaves_nothing(tmp_path: Path) -> None:
    answer = probe(str(tmp_path / "not" / "yet"))
    assert answer["exists"] is False and answer["error"] == "" and answer["type"]
    assert set(answer["residency"].values()) <= {"right", "always", "never", "absent"}
    assert "never" not in answer["residency"].values(), "pages that were just written are there"
    assert os.listdir(tmp_path) == []


def test_where_files_without_a_name_cannot_be_made_a_named_one_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    descriptor = nameless_file(str(tmp_path))
    assert os.listdir(tmp_path) == [] and "never" not in residency_answers(descriptor).values()
    os.close(descriptor)


@pytest.mark.parametrize(
    ("warm", "cold", "answer"), [(True, False, "right"), (True, True, "always"), (False, False, "never"), (None, None, "absent"), (True, None, "absent")]
)
def test_an_answer_is_worth_something_if_it_changes_with_the_truth(warm: bool | None, cold: bool | None, answer: str) -> None:
    assert verdict(warm, cold) == answer


def test_one_honest_way_to_ask_about_the_page_cache_is_enough() -> None:
    assert judge_residency("d0", {"cachestat": "absent", "mincore": "always", "RWF_NOWAIT": "right", "RWF_DONTCACHE": "absent"}).level == OK
    assert judge_residency("d0", {"cachestat": "absent", "mincore": "always", "RWF_NOWAIT": "never", "RWF_DONTCACHE": "right"}).level == WARNING


@pytest.mark.slow
def test_disks_are_asked_in_processes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answers = ask_all([str(tmp_path), str(tmp_path / "file" / "below")], SystemClock())
    good, bad = answers.values()
    assert good is not None and good["error"] == ""
    assert bad is not None and bad["error"] == "Not a directory"


@pytest.mark.slow
def test_a_disk_that_hangs_does_not_hang_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_disks, "python_arguments", lambda module, environment: ["-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(doctor_disks, "DEADLINE_MS", 50)
    (finding,) = look_at_disks([Disk("d0", str(tmp_path))], True, SystemClock())
    assert finding.level == PROBLEM and "does not answer" in finding.words


@pytest.mark.parametrize(("limit", "level"), [(resource.RLIM_INFINITY, OK), (20_000, OK), (4_096, WARNING), (512, PROBLEM)])
def test_open_files_must_suffice_for_the_connections(limit: int, level: str) -> None:
    assert judge_descriptors(limit, 10_000).level == level


def test_a_process_is_asked_for_its_limit() -> None:
    assert doctor_machine.process_descriptor_limit(os.getpid()) == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert doctor_machine.process_descriptor_limit(0x7FFFFFF0) is None


def test_shared_memory_and_receive_buffers_are_judged() -> None:
    assert judge_shared_memory(200, 300, 100).level == OK
    assert judge_shared_memory(64 << 20, 64 << 20, 192 << 20).level == PROBLEM
    assert [judge_receive_buffer(*asked).level for asked in ((16 << 20, False), (212_992, False), (212_992, True))] == [OK, WARNING, OK]


@pytest.mark.parametrize(
    ("wall_ms", "apart_ms", "synchronised", "level"),
    [(NOW_MS, 0, True, OK), (NOW_MS, 0, None, OK), (NOW_MS, 0, False, WARNING), (NOW_MS, -500, True, WARNING), (1_000, 0, True, PROBLEM)],
)
def test_clocks_are_judged(wall_ms: int, apart_ms: int, synchronised: bool | None, level: str) -> None:
    assert judge_clocks(wall_ms, apart_ms, synchronised).level == level


def test_a_slow_clock_source_is_warned_of() -> None:
    assert (judge_clock_source("tsc").level, judge_clock_source("hpet").level) == (OK, WARNING)


def test_a_box_that_listens_on_all_addresses_must_not_advertise_loopback() -> None:
    assert judge_loopback("127.0.0.1", "localhost", ["127.0.0.1", "::1"]) is None
    assert judge_loopback("0.0.0.0", "logs.example", ["192.0.2.7"]) is None
    found = judge_loopback("0.0.0.0", "localhost", ["127.0.0.1", "::1"])
    assert found is not None and found.level == WARNING and "--advertise" in found.advice


def test_listeners_that_serve_other_machines_without_authentication_are_named() -> None:
    assert access(box()).level == OK
    found = access(box(listen="0.0.0.0"))
    assert found.level == WARNING and "PLAINTEXT (0.0.0.0:" in found.words
    inner = KafkaListener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 1, "127.0.0.1")
    outer = KafkaListener("CLIENTS", "SSL", "0.0.0.0", 2, "box", 0, {"ssl.client.auth": "required"})
    assert access(box(listeners=[inner, outer])).level == OK
    assert access(box(listeners=[inner, outer._replace(settings={"ssl.client.auth": "requested"})])).level == WARNING


def test_automatic_creation_beyond_loopback_is_warned_of() -> None:
    assert creation_by_name(box()).level == OK
    assert creation_by_name(box(listen="0.0.0.0", settings={"auto.create.topics.enable": False})).level == OK
    found = creation_by_name(box(listen="0.0.0.0"))
    assert found.level == WARNING and "5000 topics (max.topics)" in found.advice


def test_an_advertised_name_must_resolve_and_its_port_answer() -> None:
    (unknown,) = advertised(box(advertise="no-such-host.invalid"), False)
    assert unknown.level == PROBLEM and "does not resolve" in unknown.words
    (elsewhere,) = advertised(box(advertise="192.0.2.7", listen="0.0.0.0"), False)
    assert elsewhere.level == WARNING and "no address of this machine" in elsewhere.words
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert levels(advertised(box(kafka_port=port), True)) == [OK]
    assert levels(advertised(box(kafka_port=port), True)) == [WARNING]
    assert is_local("127.0.0.1") and not is_local("192.0.2.7")


def test_ports_are_free_or_ours_or_said_to_be_neither() -> None:
    assert levels(ports(box(), False)) == [OK]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (taken,) = ports(box(kafka_port=port), False)
        assert taken.level == PROBLEM and f"port {port}" in taken.words and "--kafka-port" in taken.advice
        assert levels(ports(box(kafka_port=port, syslog_port=port, http_port=port, ingest_port=port), True)) == [OK]
    assert levels(ports(box(kafka_port=port, syslog_port=port, http_port=port, ingest_port=port), True)) == [PROBLEM] * 4


def test_a_zookeeper_that_asks_for_no_credentials_and_a_missing_secret_are_reported(tmp_path: Path) -> None:
    assert secret(make_box(state_directory=str(tmp_path))) == []
    members = make_box(state_directory=str(tmp_path), zookeeper_members=["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"])
    [missing] = secret(members)
    assert missing.level == PROBLEM and "millrace cluster secret new" in missing.advice
    [is_open] = secret(members._replace(settings={"zookeeper.auth.required": False}))
    assert is_open.level == WARNING and "can change the cluster" in is_open.words
    [elsewhere] = secret(make_box(state_directory=str(tmp_path), embedded_zookeeper=False))
    assert elsewhere.level == WARNING and "zookeeper.digest.file" in elsewhere.advice


def test_one_zookeeper_of_three_may_be_away() -> None:
    assert judge_zookeeper({"a:1": True}, True).level == OK
    assert judge_zookeeper({"a:1": True, "b:1": False, "c:1": True}, False).level == WARNING
    assert judge_zookeeper({"a:1": False}, False).level == PROBLEM


@pytest.mark.slow
def test_all_problems_are_reported_and_the_exit_code_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments: dict[str, Any] = {"state": str(tmp_path / "state"), "kafka_port": 0, "syslog_port": 0, "http_port": 0, "ingest_port": 0}
    ill = arguments | {"data": [str(tmp_path / "a"), str(tmp_path / "a" / "b")], "zookeeper": "127.0.0.1:1", "advertise": "0.0.0.0", "as_json": True}
    with pytest.raises(typer.Exit) as ended:
        doctor(**ill)
    assert ended.value.exit_code == 1
    document = json.loads(capsys.readouterr().out)
    problems = " ".join(finding["words"] for finding in document["findings"] if finding["level"] == PROBLEM)
    assert "lie inside one another" in problems and "127.0.0.1:1 does not serve" in problems and "--advertise is '0.0.0.0'" in problems
    assert document["running"] is False
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_without_problems_a_line_for_each_finding_and_a_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor(data=[str(tmp_path / "a")], state=str(tmp_path / "state"), kafka_port=0, syslog_port=0, http_port=0, ingest_port=0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"box of {tmp_path}/a: not running; looked at as `millrace run` would start it"
    assert {line.split()[0] for line in lines[2:-2]} <= {OK, WARNING}
    assert lines[-1].endswith(", 0 problems") and "\x1b" not in "".join(lines)


def test_a_disk_that_its_box_cannot_use_is_a_problem_though_root_may_write_there() -> None:
    found = judge_states({"d0": "online", "d1": "offline", "d2": "starting", "d3": "full"})
    assert [(finding.level, finding.subject, finding.words) for finding in found] == [
        (PROBLEM, "disk d1", "its box says: offline"),
        (PROBLEM, "disk d3", "its box says: full"),
    ]


def test_files_with_secrets_that_every_user_can_read_are_warned_of(tmp_path: Path) -> None:
    settings, key, load = tmp_path / "millrace.toml", tmp_path / "key.pem", tmp_path / "load.conf"
    for path in (settings, key):
        path.touch()
    load.write_text("MILLRACE_LOAD=x\nPGPASSWORD=secret\n")
    tls = {"name": "web", "protocol": "http", "transport": "tls", "port": 1, "certificate": "/c.pem", "private-key": str(key), "token": "secret"}
    guarded = box(sender_tables={"listener": [tls]})

    def found(mode: int, which: Box = guarded) -> list[str]:
        for path in (settings, key, load):
            path.chmod(mode)
        return [finding.words for finding in look_at_secrets(which, str(settings), str(load)) if finding.level == WARNING]

    assert found(0o640) == []
    assert [words.split()[0] for words in found(0o644)] == [str(key), str(settings), str(load)]
    assert [words.split()[0] for words in found(0o644, box())] == [str(load)], "settings without secrets may be read"


@pytest.mark.parametrize(("days", "level", "words"), [(60, OK, "expires in 60 days"), (29, WARNING, "expires in 29 days"), (-1, PROBLEM, "has expired")])
def test_a_certificate_that_expires_is_named_in_time(tmp_path: Path, days: int, level: str, words: str) -> None:
    made = Authority(tmp_path).sign("localhost", days=90)
    expires_s = certificate_expiry(str(made.certificate))
    assert expires_s is not None
    listener = KafkaListener("BOXES", "SSL", "127.0.0.1", 0, "h", 0, {"ssl.keystore.location": str(made.certificate)})
    (finding,) = certificates(box(listeners=[listener]), ManualClock((expires_s - days * 86_400) * 1000))
    assert finding.level == level and words in finding.words and str(made.certificate) in finding.words
    assert certificates(box(), ManualClock()) == []


def test_where_tls_is_encrypted_is_said(tmp_path: Path) -> None:
    listener = KafkaListener("BOXES", "SASL_SSL", "127.0.0.1", 0, "h", 0, {})
    statistics = tmp_path / "tls_stat"
    for words in ("has no kernel TLS", "has kernel TLS (kTLS), which the box does not use"):
        (finding,) = encryption(box(listeners=[listener]), str(statistics))
        assert finding.level == OK and words in finding.words and "BOXES is encrypted in user space, by OpenSSL" in finding.words
        statistics.touch()
    assert encryption(box()) == []
