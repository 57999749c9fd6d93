"""`millrace logs`: which events, from where, and how they look in 80 columns."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.message_file import EVENT_BYTES_MAX, MESSAGES_BYTES_MAX, ROTATED_BYTES, MessageFile
from appliance.command.failures import UsageProblem
from appliance.command.logs import EventFilter, EventLines, LoggedEvent, event_of, file_entries, journal_command, may_read_journal, unknown_name
from tests.unit.base.test_settings import make_box

TIME_US = 1_795_875_920_820_000


@pytest.fixture
def layout(tmp_path: Path) -> BoxLayout:
    (tmp_path / "box.json").write_text("{}")
    tmp_path.chmod(0o700)
    return BoxLayout(str(tmp_path))


def logger_of(layout: BoxLayout, process: str) -> Logger:
    log = Logger(process, descriptor=os.open(os.devnull, os.O_WRONLY), clock=ManualClock())
    log.message_file = MessageFile(layout.message_file, ManualClock())
    return log


def texts(entries: object) -> list[str]:
    return [found.text for entry in entries if entry is not None and (found := event_of(entry)) is not None]  # type: ignore[attr-defined]


def test_what_all_processes_of_millrace_run_report_is_in_one_file_with_its_fields(layout: BoxLayout) -> None:
    log, other = logger_of(layout, "log-writer@d0"), logger_of(layout, "acceptor@0")
    log.common_fields["disk"] = "d0"
    log.warning("one\n  two")
    other.info("audit.topic.created: x", audit="audit.topic.created", topic="x")
    other.debug("not wanted")
    first, second = [event_of(entry) for entry in file_entries(layout, follow=False) if entry is not None]
    assert first is not None and second is not None
    assert first[1:] == ("log-writer@d0", 4, "", "one\n  two", {"disk": "d0"})
    assert second[1:] == ("acceptor@0", 6, "audit.topic.created", "audit.topic.created: x", {"audit": "audit.topic.created", "topic": "x"})


def test_following_misses_no_event_when_the_file_is_rotated_and_ends_with_the_box(layout: BoxLayout) -> None:
    log = logger_of(layout, "ingest@0")
    assert log.message_file is not None
    log.info("before")
    following = file_entries(layout, follow=True)
    assert texts([next(following), next(following)]) == ["before"], "and then nothing more is there"
    log.info("x" * (EVENT_BYTES_MAX // 2))
    log.info("last of the old file")
    with open(layout.message_file, "ab") as file:
        file.write(b" " * ROTATED_BYTES + b"\n")
    log.message_file.rotate()
    log.info("first of the new file")
    found = []
    while "first of the new file" not in found:
        found += texts([next(following)])
    assert found[1:] == ["last of the old file", "first of the new file"]
    assert "before" in texts(file_entries(layout, follow=False)), "the older file is read first"
    os.unlink(layout.message_file)
    os.unlink(layout.box_file)
    assert texts(following) == []


def test_the_file_is_bounded_and_a_box_that_has_gone_gets_none(layout: BoxLayout, tmp_path: Path) -> None:
    log = logger_of(layout, "ingest@0")
    log.info("x" * 3 * EVENT_BYTES_MAX)
    assert 0 < os.stat(layout.message_file).st_size <= EVENT_BYTES_MAX
    os.truncate(layout.message_file, MESSAGES_BYTES_MAX)
    log.info("too many")
    assert os.stat(layout.message_file).st_size == MESSAGES_BYTES_MAX
    gone = MessageFile(f"{tmp_path}/gone/messages", ManualClock())
    gone.append({"MESSAGE": "x"})
    gone.rotate()
    assert not os.path.exists(f"{tmp_path}/gone")


def test_a_line_that_is_being_written_is_read_when_it_is_whole_and_one_that_was_cut_costs_no_other(layout: BoxLayout) -> None:
    with open(layout.message_file, "ab", buffering=0) as file:
        file.write(b'{"MESSAGE": "cut, because tmpfs was f')
        logger_of(layout, "ingest@0").info("next")
        file.write(b'\n{"__REALTIME_TIMESTAMP": "1", "MESSAGE": "in t')
        following = file_entries(layout, follow=True)
        assert texts([next(following), next(following)]) == ["next"]
        file.write(b'wo"}\n')
        assert texts([next(following)]) == ["in two"]
    following.close()  # type: ignore[attr-defined]


def test_only_a_file_on_tmpfs_is_written_because_a_disk_may_hang(layout: BoxLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Logger("x", descriptor=os.open(os.devnull, os.O_WRONLY))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    log.keep_messages(layout)
    assert log.message_file is None, "STATE/run is on the disk of the state directory"
    log.keep_messages(BoxLayout("/run/millrace/b"))
    assert log.message_file is not None


def test_a_journal_that_a_user_may_not_read_is_not_taken_for_an_empty_one() -> None:
    assert may_read_journal(0, ()) and may_read_journal(1000, {"users", "adm"}) and not may_read_journal(1000, {"users"})


def test_a_link_or_a_pipe_in_place_of_the_file_is_not_read(layout: BoxLayout) -> None:
    os.mkfifo(layout.message_file)
    assert list(file_entries(layout, follow=False)) == []


def event(process: str = "log-writer@d0", severity: int = 4, name: str = "", text: str = "disk d0 is full", time_us: int = TIME_US) -> LoggedEvent:
    return LoggedEvent(time_us, process, severity, name, text, {"disk": "d0"})


def wanted(since: str = str(TIME_US // 1_000), until: str | None = None, **more: str) -> EventFilter:
    given = {"severity": "debug"} | more
    return EventFilter.chosen(since, until, given["severity"], given.get("process"), given.get("disk"), given.get("name"))


def test_events_are_chosen_by_time_severity_process_disk_and_name() -> None:
    assert wanted().has(event()) and not wanted().has(event(time_us=TIME_US - 1))
    assert not wanted("2020-01-01", str(TIME_US // 1_000)).has(event()), "until is exclusive"
    assert wanted(severity="warn").has(event()) and not wanted(severity="err").has(event())
    assert wanted(process="log-writer@*").has(event()) and not wanted(process="log-writer").has(event())
    assert wanted(disk="d0").has(event()) and not wanted(disk="d1").has(event())
    assert wanted(name="audit.*").has(event(name="audit.denied")) and not wanted(name="audit.*").has(event())


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"since": "soon"}, "--since: 'soon' is no time"),
        ({"severity": "bad"}, "critical, error, warning"),
        ({"since": "1h", "until": "2h"}, "is not after --since"),
    ],
)
def test_what_cannot_be_meant_is_refused(chosen: dict[str, str], words: str) -> None:
    with pytest.raises(UsageProblem, match=words):
        wanted(**chosen)


def test_a_process_or_a_disk_that_does_not_exist_is_refused_with_those_that_do() -> None:
    box = make_box()
    assert all(unknown_name(wanted(**names), box) is None for names in ({}, {"process": "ingest@*"}, {"process": "supervisor", "disk": box.disks[0].name}))
    assert "--process supervisr: the box has no such process" in str(unknown_name(wanted(process="supervisr"), box))
    assert "it has supervisor, " in str(unknown_name(wanted(process="supervisr"), box))
    assert str(unknown_name(wanted(disk="d77"), box)).endswith(f"it has {', '.join(disk.name for disk in box.disks)}")


def test_journalctl_leaves_out_what_its_indexes_tell() -> None:
    command = journal_command(wanted(severity="error", disk="d0"), follow=True)
    assert command[:1] == ["journalctl"] and "MILLRACE_DISK=d0" in command
    assert {"--unit=millrace*", "--since=@1795875920.820000", "--priority=3", "--follow", "--no-tail"} <= set(command)


def test_entries_of_systemd_and_of_lines_on_stderr_have_the_process_of_their_unit() -> None:
    entry = {"__REALTIME_TIMESTAMP": str(TIME_US), "PRIORITY": "5", "MESSAGE": "Main process exited", "_SYSTEMD_UNIT": "init.scope"}
    found = event_of(entry | {"UNIT": "millrace-log-writer@d0.service"})
    assert found is not None and (found.process, found.severity) == ("log-writer@d0", 5)
    found = event_of(entry | {"_SYSTEMD_UNIT": "millrace-console.service", "MESSAGE": [0x1B, 0x5B, 0xFF]})
    assert found is not None and (found.process, found.text) == ("console", "\x1b[\\xff"), "not UTF-8: journalctl writes numbers"
    assert event_of({"MESSAGE": "without a time"}) is None


def test_a_terminal_of_80_columns_shows_time_process_severity_event_and_text() -> None:
    lines = EventLines(as_json=False, columns=80)
    shown = lines.text(event(name="disk-full", text="a long text " * 9 + "\x1b[31m\nits stack")) + lines.text(event())
    assert all(len(line) <= 80 for line in shown.splitlines()) and "\x1b" not in shown
    day, first, *_, last = shown.splitlines()
    assert day.startswith("2026-11-2") and day.endswith(")"), "the zone"
    assert first.split()[1:4] == ["log-writer@d0", "warning", "disk-full:"]
    assert last.endswith("log-writer@d0   warning  disk d0 is full") and shown.count(day) == 1


def test_elsewhere_an_event_is_one_line_with_the_whole_time_or_json() -> None:
    line = EventLines(as_json=False).text(event(name="audit.denied", text="audit.denied: User:a\nmore"))
    assert line.split(maxsplit=1)[1] == "log-writer@d0   warning  audit.denied User:a\n    more\n"
    shown = json.loads(EventLines(as_json=True).text(event(severity=0)))
    assert (shown["timestamp"], shown["severity"], shown["severity_name"], shown["event"], shown["disk"]) == (TIME_US // 1_000, 0, "critical", None, "d0")
