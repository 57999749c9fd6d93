"""What install.sh finds against a machine before it changes anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.install_functions import TREE, Answer, run_functions

pytestmark = pytest.mark.slow


def findings(directory: Path, code: str) -> Answer:
    return run_functions(directory, f'DISKS_FROM=given; box_is_active() {{ false; }}; {code}; print_findings; echo "count $PROBLEM_COUNT"')


def test_everything_that_is_wrong_with_a_machine_is_said(tmp_path: Path) -> None:
    code = "check_system ubuntu 24.04 Ubuntu; check_system debian 11 'Debian 11'; check_processor aarch64 8; check_memory 512 64; check_limits 1024"
    answer = findings(tmp_path, code)
    assert answer.lines[-1] == "count 5"
    assert [line.split()[:2] for line in answer.lines[:-1]] == [
        ["warning", "system"], ["problem", "system"], ["problem", "processor"], ["problem", "memory"], ["problem", "/dev/shm"], ["problem", "limits"],
    ]  # fmt: skip


def test_a_good_machine_has_no_problem(tmp_path: Path) -> None:
    answer = findings(tmp_path, "check_system debian 13 'Debian 13'; check_processor x86_64 8; check_memory 16000 8000; check_limits 1048576")
    assert answer.lines[-1] == "count 0"
    assert all(line.startswith("ok") for line in answer.lines[:-1])


SKIP_ACL = "JAVA_TOOL_OPTIONS=-Dzookeeper.skipACL=yes"
SECRET = "0123456789abcdef0123456789abcdef"


def test_a_member_of_an_ensemble_needs_the_secret_of_it(tmp_path: Path) -> None:
    settings, file = tmp_path / "millrace.toml", tmp_path / "secret"
    three = f"STATE_DIRECTORY={tmp_path}/state EFFECTIVE_SETTINGS={settings} MEMBERS=(1=a 2=b 3=c)"
    assert findings(tmp_path, f"{three}; MEMBERS=(); check_secret").lines[-1] == "count 0"
    settings.write_text("")
    missing = findings(tmp_path, f"{three}; check_secret")
    assert missing.lines[-1] == "count 1" and "--zookeeper-secret FILE" in missing.output
    settings.write_text('"zookeeper.auth.required" = false\n')
    assert findings(tmp_path, f"{three}; check_secret").lines[-1] == "count 0"
    assert "is no file" in findings(tmp_path, f"{three} SECRET_FILE={file}; check_secret").output
    file.write_text(f"{SECRET}\n")
    file.chmod(0o644)
    assert "other users may read" in findings(tmp_path, f"{three} SECRET_FILE={file}; check_secret").output
    file.chmod(0o600)
    assert findings(tmp_path, f"{three} SECRET_FILE={file}; check_secret").lines[-1] == "count 0"
    file.write_text("short\n")
    assert "16 or more" in findings(tmp_path, f"{three} SECRET_FILE={file}; check_secret").output


def test_a_secret_is_installed_once_for_the_service_alone(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    place = f"STATE_DIRECTORY={state} SYSTEM_USER=root SECRET_FILE={file}; place_secret"
    assert run_functions(tmp_path, place).code == 0
    installed = state / "zookeeper.secret"
    assert installed.read_text() == f"{SECRET}\n" and installed.stat().st_mode & 0o777 == 0o600
    file.write_text("another-secret-of-some-length\n")
    assert run_functions(tmp_path, place).code == 0
    assert installed.read_text() == f"{SECRET}\n"
    code = f"STATE_DIRECTORY={state} EFFECTIVE_SETTINGS=/dev/null MEMBERS=(1=a 2=b 3=c) SECRET_FILE={file}; chmod 600 {file}; check_secret"
    assert "is another secret" in findings(tmp_path, code).output


def test_a_release_without_a_secret_runs_on_a_tree_with_acls(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = run_functions(tmp_path, f'acl_drop_in "{tmp_path}/old"').output
    assert old.startswith("[Service]\n") and SKIP_ACL in old
    assert run_functions(tmp_path, f'acl_drop_in "{TREE}"').output == ""


def test_a_disk_listed_twice_is_refused_also_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "d0").mkdir()
    (tmp_path / "link").symlink_to("d0")
    answer = findings(tmp_path, f"check_disks {tmp_path}/d0 {tmp_path}/d0 {tmp_path}/link")
    assert answer.lines[-1] == "count 2"
    assert f"{tmp_path}/d0 is given twice; give each disk's directory once" in answer.output
    assert f"{tmp_path}/link is given twice ({tmp_path}/d0 is the same directory)" in answer.output


def test_two_disks_on_one_file_system_are_a_warning(tmp_path: Path) -> None:
    answer = findings(tmp_path, f"check_disks {tmp_path}/d0 {tmp_path}/d1")
    assert answer.lines[-1] == "count 0"
    assert f"{tmp_path}/d1 and {tmp_path}/d0 are one file system" in answer.output


def test_a_directory_with_other_things_in_it_is_no_log_disk(tmp_path: Path) -> None:
    (tmp_path / "d0/holiday").mkdir(parents=True)
    (tmp_path / "d1/lost+found").mkdir(parents=True)
    answer = findings(tmp_path, f"check_disks {tmp_path}/d0 {tmp_path}/d1 relative '{tmp_path}/a b'")
    assert answer.lines[-1] == "count 3"
    assert f"{tmp_path}/d0 is not empty and no log directory" in answer.output


def test_disks_that_are_given_are_refused_for_each_reason_at_once_unless_it_is_forced(tmp_path: Path) -> None:
    """The directories of a test are on one file system, which may be the root file system."""
    (tmp_path / "state").mkdir()
    (tmp_path / "d0").mkdir()
    check = f"STATE_DIRECTORY={tmp_path}/state; check_chosen {tmp_path}/d0 {tmp_path}/typo"
    refused = findings(tmp_path, check)
    problems = [line for line in refused.lines if line.startswith("problem   disks")]
    assert len(problems) >= 3 and refused.lines[-1] == f"count {len(problems)}"
    assert f"{tmp_path}/typo does not exist" in refused.output and "--force missing" in refused.output
    assert f"{tmp_path}/d0 is on the same device as the state directory ({tmp_path}/state)" in refused.output
    assert f"{tmp_path}/typo is on the same device as the state directory ({tmp_path}/state), the log directory ({tmp_path}/d0)" in refused.output
    forced = findings(tmp_path, f"parse_options --force same-device --force=missing,root-filesystem; {check}")
    assert forced.lines == ["count 0"]
    partly = findings(tmp_path, f"parse_options --force same-device,root-filesystem; {check}")
    assert partly.lines[-1] == "count 1" and "does not exist" in partly.output
    wrong = findings(tmp_path, f"parse_options --force everything; {check}")
    assert wrong.lines[-1] == "count 1" and "--force everything: there is no such reason" in wrong.output


def test_disks_that_are_served_or_were_not_given_now_are_no_choice_to_refuse(tmp_path: Path) -> None:
    check = f"STATE_DIRECTORY={tmp_path}/state; check_chosen {tmp_path}/typo"
    assert findings(tmp_path, f"has_unit() {{ true; }}; {check}").lines == ["count 0"]
    assert findings(tmp_path, f"DISKS_FROM='as before'; {check}").lines == ["count 0"]


def test_disks_that_no_python_can_check_yet_are_checked_once_there_is_one(tmp_path: Path) -> None:
    check = f"STATE_DIRECTORY={tmp_path}/state DISKS=({tmp_path}/typo); system_python() {{ false; }}; check_chosen $DISKS; echo unchecked $CHOSEN_UNCHECKED"
    assert findings(tmp_path, check).lines == ["unchecked 1", "count 0"]
    later = findings(tmp_path, f'{check}; system_python() {{ echo /usr/bin/python3; }}; [ -z "$CHOSEN_UNCHECKED" ] || check_chosen_now')
    assert later.code == 1 and "does not exist" in later.output and "nothing but packages was installed" in later.output


def test_other_files_in_a_disk_that_is_given_may_be_forced(tmp_path: Path) -> None:
    (tmp_path / "d0/holiday").mkdir(parents=True)
    assert "to use it all the same: --force other-files" in findings(tmp_path, f"check_disks {tmp_path}/d0").output
    assert findings(tmp_path, f"parse_options --force other-files; check_disks {tmp_path}/d0").lines[-1] == "count 0"


def test_of_what_is_mounted_only_what_is_surely_meant_becomes_a_log_disk(tmp_path: Path) -> None:
    for name in ("empty", "known", "full", "again", "read-only"):
        (tmp_path / name / "lost+found").mkdir(parents=True)
    (tmp_path / "known/meta.properties").touch()
    (tmp_path / "full/file").touch()
    mounts = f"""/ /dev/sda1 rw
{tmp_path}/empty /dev/sdb rw,relatime
{tmp_path}/known /dev/sdc rw
{tmp_path}/full /dev/sdd rw
{tmp_path}/again /dev/sdb rw
{tmp_path}/read-only /dev/sde ro,relatime
/boot/efi /dev/sda2 rw"""
    code = f"SYSTEM_PLACES='/ /boot'; log_disks_among <<'END'\n{mounts}\nEND\n"
    assert run_functions(tmp_path, code).lines == [f"{tmp_path}/empty", f"{tmp_path}/known"]


def test_a_taken_port_is_found_where_it_would_be_in_the_way(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        tcp, udp = listening.getsockname()[1], datagrams.getsockname()[1]
        ask = "if port_is_taken {} {} {}; then echo taken; else echo free; fi; "
        asked = [("tcp", tcp, "0.0.0.0"), ("tcp", tcp, "127.0.0.1"), ("tcp", tcp, "127.0.0.2"), ("udp", udp, "0.0.0.0"), ("udp", udp, "127.0.0.2")]
        answer = run_functions(tmp_path, "".join(ask.format(*port) for port in asked))
    assert answer.lines == ["taken", "taken", "free", "taken", "free"]


def test_an_option_that_does_not_exist_is_refused_with_the_list_of_those_that_do(tmp_path: Path) -> None:
    for wrong in ("--disk /srv/d0", "start", "--wait soon", "--disks", "--listen="):
        answer = run_functions(tmp_path, f"parse_options {wrong}")
        assert answer.code == 2, wrong
        assert "--make-wheelhouse DIR" in answer.output


def test_values_follow_their_options_or_stand_behind_an_equals_sign(tmp_path: Path) -> None:
    code = 'parse_options --disks /srv/a,/srv/b --listen=* --yes --wait=9 --prefix /opt/x/; echo "${DISKS[*]} $LISTEN $YES $WAIT_SECONDS $PREFIX $MODE"'
    assert run_functions(tmp_path, code).lines == ["/srv/a /srv/b 0.0.0.0 1 9 /opt/x install"]


def test_an_upgrade_may_leave_out_only_the_disks_that_were_away_before_it(tmp_path: Path) -> None:
    answers = ["log-writer@d1 dead, log-reader@d1 dead", "log-writer@d1 not started, acceptor@0 starting", "<urlopen error [Errno 111] Connection refused>"]
    code = "".join(f"echo \"[$(disks_in '{answer}')]\"; " for answer in answers)
    assert run_functions(tmp_path, code).lines == ["[log-writer@d1 log-reader@d1]", "[log-writer@d1]", "[]"]


def test_the_rule_for_log_disks_leaves_the_disk_of_the_root_file_system_alone(tmp_path: Path) -> None:
    code = """
findmnt() { case "$*" in *SOURCE,UUID*/logs*) echo "/dev/sdb1 uuid-logs" ;; *SOURCE,UUID*) echo "/dev/sda3 uuid-rest" ;; *) echo /dev/sda2 ;; esac; }
lsblk() { case "$*" in *PKNAME*/dev/sd?[0-9]) echo "$3" | sed -E "s|/dev/(sd.).*|\\1|" ;; esac; }
existing_part() { echo "$1"; }
disk_rules /logs /other"""
    lines = [line for line in run_functions(tmp_path, code).lines if not line.startswith("#")]
    assert len(lines) == 2
    for line, queue in zip(lines, ("queue", "../queue"), strict=True):
        assert 'ENV{ID_FS_UUID}=="uuid-logs"' in line
        assert f'ATTR{{{queue}/read_ahead_kb}}="0", ATTR{{{queue}/scheduler}}="mq-deadline"' in line


def test_a_prefix_below_a_directory_that_others_may_change_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert run_functions(tmp_path, f'open_parent "{shared}/deep/millrace"').output.strip() == str(shared)
    shared.chmod(0o1777)
    assert run_functions(tmp_path, f'open_parent "{shared}/deep/millrace"').output.strip() == str(shared), "a sticky directory lets others be first"
    assert run_functions(tmp_path, "open_parent /usr/millrace").output == ""
