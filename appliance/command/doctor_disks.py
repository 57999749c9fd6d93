"""Check data directories: present, writable, file system, free space, and what the kernel reports about their page cache.

A process for each directory probes it (`disk_speed_probe`), all at once and with a deadline, because a hung disk blocks each
process that uses it. Verdicts are pure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from appliance.base.clock import Clock
from appliance.base.layout import Disk
from appliance.command.findings import Finding, ok, problem, warning
from appliance.command.output import bytes_text
from appliance.runtime.directories import in_use_problem, read_meta_properties
from appliance.runtime.run_options import python_arguments

DEADLINE_MS = 5_000
GIVE_UP_SECONDS = 0.5
FREE_BYTES_MIN = 1 << 30
FREE_SHARE_MIN = 0.05
READ_AHEAD_KB = (64, 16_384)
"""Or 0, as install.sh sets it for log disks: log-readers request what they need, and a page in flight would block an acceptor."""
LOCAL_TYPES = frozenset({"ext4", "xfs", "btrfs", "ext3", "f2fs", "zfs", "bcachefs"})
GONE_AT_REBOOT = frozenset({"tmpfs", "ramfs"})
TROUBLED_STATES = frozenset({"offline", "hung", "full", "log-writer down"})
LAYER_TYPES = frozenset({"overlay", "aufs"})

Answer = Mapping[str, Any]


def look_at_disks(disks: list[Disk], is_running: bool, clock: Clock) -> list[Finding]:
    answers = ask_all([disk.path for disk in disks], clock)
    findings = []
    for disk in disks:
        findings += judge_disk(disk, answers[disk.path])
        if not is_running and answers[disk.path] is not None:
            findings += _users(disk)
    return findings + judge_sharing(disks, answers)


def ask_all(paths: list[str], clock: Clock) -> dict[str, Answer | None]:
    """None: no answer within the deadline. Its process is killed, and left alone if even that must wait for the disk."""
    environment = dict(os.environ)
    arguments = [sys.executable, *python_arguments("appliance.command.disk_speed_probe", environment)]
    asked = {path: subprocess.Popen([*arguments, path], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for path in dict.fromkeys(paths)}
    deadline_ms = clock.monotonic_ms() + DEADLINE_MS
    answers: dict[str, Answer | None] = {}
    for path, process in asked.items():
        try:
            output, _ = process.communicate(timeout=max(deadline_ms - clock.monotonic_ms(), 0) / 1000)
            answers[path] = json.loads(output) if output else {"error": "the probe died"}
        except subprocess.TimeoutExpired:
            _give_up(process)
            answers[path] = None
    return answers


def _give_up(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    assert process.stdout is not None
    process.stdout.close()
    try:
        process.wait(GIVE_UP_SECONDS)
    except subprocess.TimeoutExpired:
        pass  # in the kernel, waiting for the disk; it ends when that does


def judge_states(states: Mapping[str, str]) -> list[Finding]:
    """What a running box says of its disks by name: the doctor may be root, and be let where the box is not."""
    advice = "millrace disk list says why, journalctl MILLRACE_DISK={} since when"
    return [problem(f"disk {name}", f"its box says: {state}", advice.format(name)) for name, state in states.items() if state in TROUBLED_STATES]


def judge_disk(disk: Disk, answer: Answer | None) -> list[Finding]:
    subject = f"disk {disk.name}"
    if answer is None:
        return [
            problem(
                subject, f"{disk.path} does not answer within {DEADLINE_MS // 1000} s", "look at the kernel's log (dmesg); the box goes on without that disk"
            )
        ]
    if answer["error"]:
        return [
            problem(subject, f"{disk.path} cannot be written: {answer['error'].lower()}", "give this user the right (chown), free space, or choose another")
        ]
    findings = [_place(subject, disk, answer), *_space(subject, answer)]
    low, high = READ_AHEAD_KB
    ahead = answer["read_ahead_kb"]
    if ahead and not low <= ahead <= high:
        advice = f"on a disk of logs alone 0 is best (sudo ./install.sh), else {low} to {high}: echo 512 > /sys/class/bdi/{answer['device']}/read_ahead_kb"
        findings.append(warning(subject, f"read_ahead_kb is {ahead}", advice))
    return [*findings, judge_residency(subject, answer["residency"])]


def _place(subject: str, disk: Disk, answer: Answer) -> Finding:
    kind = answer["type"] or "an unknown file system"
    made = "" if answer["exists"] else ", made at the start"
    ahead = "" if answer["read_ahead_kb"] is None else f", read_ahead_kb {answer['read_ahead_kb']}"
    words = f"{disk.path} on {kind}{made}, {bytes_text(answer['free_bytes'])} free of {bytes_text(answer['total_bytes'])}{ahead}"
    if kind in GONE_AT_REBOOT:
        return warning(subject, words, "its records are gone after a reboot; choose a directory on a disk")
    if kind in LAYER_TYPES:
        return warning(subject, words, "a container's layer is slow and goes with the container; mount a volume")
    if kind not in LOCAL_TYPES:
        return warning(subject, words, "not tried; ext4 and xfs on a local disk are, and a network file system loses locks and time")
    return ok(subject, words)


def _space(subject: str, answer: Answer) -> list[Finding]:
    free, total = answer["free_bytes"], answer["total_bytes"]
    if free < FREE_BYTES_MIN // 8:
        return [problem(subject, f"only {bytes_text(free)} free", "writes are refused when it is full; free space")]
    if free < FREE_BYTES_MIN or free < FREE_SHARE_MIN * total:
        return [warning(subject, f"only {bytes_text(free)} free, {100 * free / max(total, 1):.0f} %", "free space, or add a disk")]
    return []


def judge_residency(subject: str, residency: Mapping[str, str]) -> Finding:
    """Can the kernel be asked whether bytes are in the page cache, and is its answer right?"""
    said = {"right": "yes", "always": "always says resident", "never": "never says resident", "absent": "no"}
    words = "page cache: " + ", ".join(f"{way} {said[answer]}" for way, answer in residency.items())
    if any(answer == "right" for way, answer in residency.items() if way != "RWF_DONTCACHE"):
        return ok(subject, words)
    return warning(subject, words, "cold and warm reads cannot be distinguished here; use a local ext4 or xfs with Linux 6.5 or later")


def judge_sharing(disks: list[Disk], answers: Mapping[str, Answer | None]) -> list[Finding]:
    """Directories on one file system are one disk with several names."""
    by_device: dict[str, list[str]] = {}
    for disk in disks:
        answer = answers[disk.path]
        if answer is not None and not answer["error"]:
            by_device.setdefault(answer["device"], []).append(disk.name)
    return [
        warning("disks", f"{', '.join(names)} are on one file system", "it fails, and fills up, for all of them at once; give each disk a directory of its own")
        for names in by_device.values()
        if len(names) > 1
    ]


def _users(disk: Disk) -> list[Finding]:
    """Check for other users of the directory, and for its former owner."""
    if in_use := in_use_problem(disk.path, "--data"):
        words, _, advice = in_use.partition("; ")
        return [problem(f"disk {disk.name}", words, advice)]
    known = read_meta_properties(disk.path)
    if known is None:
        return []
    return [ok(f"disk {disk.name}", f"belongs to cluster {known.get('cluster.id', '?')}, broker {known.get('broker.id', known.get('node.id', '?'))}")]
