"""A box with two users and one group, as systemd runs it: what a process that faces the network shares with the others, and what it cannot do.

The users are two that every Debian has, and no box runs as.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.other_users import STRANGER, needs_root, new_directory, run_python, running_python

NAMES = """
import errno, json, os, select, sys, time
from appliance.base import trusted_files

trusted_files.SYSTEM_USER, trusted_files.NETWORK_USER = "games", "news"
os.umask(0o027)
from appliance.base.layout import BoxLayout
from appliance.ipc.channel import ChannelBroken, SourceChannel
from appliance.ipc.channel_acceptor import ChannelAcceptor
from appliance.ipc.descriptors import COMPLETION, DESCRIPTOR, Descriptor, DescriptorKind
from appliance.ipc.frames import PeerGone, connect_unix, listen_unix
from appliance.ipc.source import Source
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters, list_counters, read_counters
from appliance.shm.mapping import SharedObject, SharedObjectAbsent, SharedObjectTaken, list_names, taken_problems, unlink
from appliance.shm.ring import DESCRIPTOR_TAIL_WORD
from appliance.shm.partition_table import PURPOSE, PartitionTableReader, PartitionTableWriter

layout = BoxLayout(sys.argv[1])
"""

STORAGE = """
counters = Counters.create_or_adopt(layout, "log-writer@d0", 7)
table = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 7), 7)
arena = Source(layout, "coordinator", 7, 1 << 16, 8)
for name, mode in (("box.json", 0o640), ("secret", 0o600)):
    with open(os.open(f"{sys.argv[1]}/{name}", os.O_WRONLY | os.O_CREAT, mode), "w") as file:
        file.write("{}")
poller, doorbell = Poller(), os.eventfd(0)
gone = []
acceptor = ChannelAcceptor(doorbell, poller, counters, lambda: {"table": table.shared.name}, lambda channel, reason: gone.append(reason))
acceptor.open(layout.log_writer_socket("d0"))
own = listen_unix(layout.supervisor_socket, is_own=True)
print("it listens", flush=True)
while True:
    poller.poll(100)
    for channel in acceptor.channels:
        try:
            channel.take(8)
        except ChannelBroken as broken:
            acceptor.refuse(broken)
            break
        channel.memory[4096:4100] = b"seen"
    seen = {name: getattr(read_counters(layout, name), "pid", 0) for name in list_counters(layout)}
    counters.counter("sees_others").set(len(seen))
    counters.counter("tables").set(len(list_names(layout.shared_memory_name("table", "d0"))))
"""

NETWORK = """
answers = {"network": trusted_files.faces_network(), "box": layout.read_box()}
games, group = int(sys.argv[2]), os.getegid()
answers["runs_box"] = [trusted_files.runs_box(*each) for each in ((games, group), (65534, group), (65534, group + 1), (os.geteuid(), group))]
counters = Counters.create_or_adopt(layout, "acceptor@0", 9)
source = Source(layout, "acceptor@0", 9, 1 << 16, 8)


def denied(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM)
    except (PeerGone, SharedObjectAbsent):
        return True
    return False


def greet(name):
    control = connect_unix(layout.log_writer_socket("d0"))
    source.name = name
    channel = SourceChannel.greet(control, source, "rings")
    for _ in range(100):
        for frame in control.receive():
            channel.on_welcome(frame)
            return channel
        select.select([control.fileno()], [], [], 0.1)
    return channel


def descriptor(kind):
    return (int(kind), 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0)


def awaited(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    return condition()


channel = greet("acceptor@0")
channel.descriptors.offer(*descriptor(DescriptorKind.PRODUCE))
answers["is_served"] = awaited(lambda: bytes(source.arena.shared.memory[4096:4100]) == b"seen") and not denied(channel.control.receive)
channel.descriptors.offer(*descriptor(DescriptorKind.DELETE))
source.arena.shared.memory[4096:4100] = bytes(4)
answers["deletes"] = not awaited(lambda: denied(channel.control.receive))


def is_dropped_for(memory):
    arena, source.arena = source.arena, memory
    try:
        return denied(greet, "acceptor@0")
    finally:
        source.arena = arena


class Unsealed:
    class shared:
        descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)


os.ftruncate(Unsealed.shared.descriptor, len(source.arena.memory))
os.pwrite(Unsealed.shared.descriptor, source.arena.memory, 0)
answers["truncates"] = not denied(os.ftruncate, source.arena.shared.descriptor, 0) or not is_dropped_for(Unsealed)
channel = greet("acceptor@0")
channel.descriptors.offer(*descriptor(DescriptorKind.PRODUCE))
answers["is_served_again"] = awaited(lambda: bytes(source.arena.shared.memory[4096:4100]) == b"seen") and not denied(channel.control.receive)
channel.rings.shared.words[DESCRIPTOR_TAIL_WORD] = (1 << 64) - 1
answers["ends_the_log_writer"] = not awaited(lambda: denied(channel.control.receive))
answers["is_controller"] = not denied(greet, "controller")
table = layout.shared_memory_name("table", "d0", 7)
answers["reads_table"] = PartitionTableReader.attach(table).shared.incarnation == 7
answers["writes_table"] = not denied(SharedObject.attach, table, PURPOSE, True)
answers["removes_table"] = not denied(os.unlink, f"/dev/shm{table}")
SharedObject.create(layout.shared_memory_name("table", "d0", 99), PURPOSE, 4096, 99)
answers["reads_secret"] = not denied(open, f"{sys.argv[1]}/secret")
answers["writes_runtime"] = not denied(open, f"{sys.argv[1]}/image", "w")
answers["orders"] = connect_unix(layout.supervisor_socket) is not None
answers["signals"] = not denied(os.kill, read_counters(layout, "log-writer@d0").pid, 0)
storage = lambda: read_counters(layout, "log-writer@d0").values
awaited(lambda: storage().get("sees_others", 0) >= 2)
others = storage()
answers["seen"], answers["tables_of_the_log_writer"] = others["sees_others"], others["tables"]
print(json.dumps(answers))
source.close()
for name in list_names(layout.shared_memory_prefix):
    if os.stat(f"/dev/shm{name}").st_uid == os.geteuid():
        unlink(name)
"""

TAKES = """
fake = Counters.create_or_adopt(layout, "controller", 9)
print(json.dumps([read_counters(layout, "controller") is not None, "controller" in list_counters(layout)]))
"""

MISSES = """
try:
    Counters.create_or_adopt(layout, "controller", 7)
    said = ""
except SharedObjectTaken as taken:
    said = str(taken)
problems = taken_problems(layout.shared_memory_prefix)
print(json.dumps([read_counters(layout, "controller") is not None, "controller" in list_counters(layout), said, problems]))
"""

STRANGE = """
answers = [trusted_files.faces_network(), connect_unix(layout.log_writer_socket("d0")) is not None, read_counters(layout, "log-writer@d0") is not None]
print(json.dumps(answers))
"""


@pytest.fixture
def runtime() -> Iterator[Path]:
    try:
        owner, group = pwd.getpwnam("games").pw_uid, grp.getgrnam("games").gr_gid
        pwd.getpwnam("news")
    except KeyError:
        pytest.skip("this machine has no users games and news")
    directory = new_directory(owner, 0o750)
    os.chown(directory, owner, group)
    yield directory
    shutil.rmtree(directory)
    for name in os.listdir("/dev/shm"):
        if name.startswith(f"millrace.{directory.name}."):
            os.unlink(f"/dev/shm/{name}")


@needs_root
@pytest.mark.system
@pytest.mark.slow
def test_a_process_that_faces_the_network_offers_batches_and_can_do_nothing_to_the_logs(runtime: Path) -> None:
    storage, network, group = pwd.getpwnam("games").pw_uid, pwd.getpwnam("news").pw_uid, grp.getgrnam("games").gr_gid
    with running_python(storage, NAMES + STORAGE, str(runtime), group=group):
        found = json.loads(run_python(network, NAMES + NETWORK, str(runtime), str(storage), group=group))
        stranger = json.loads(run_python(STRANGER, NAMES + STRANGE, str(runtime)))
    can = {"network", "is_served", "is_served_again", "reads_table"}
    cannot = {
        "deletes", "is_controller", "truncates", "ends_the_log_writer", "writes_table", "removes_table",
        "reads_secret", "writes_runtime", "orders", "signals",
    }  # fmt: skip
    assert {name: found[name] for name in can} == dict.fromkeys(can, True)
    assert {name: found[name] for name in cannot} == dict.fromkeys(cannot, False)
    assert found["box"] == {}
    assert found["runs_box"] == [True, True, False, False], "in a user namespace, too, the user that owns the logs is known"
    assert (found["seen"], found["tables_of_the_log_writer"]) == (2, 1), "it sees counters of all, and no table that another user made"
    assert stranger == [False, False, False]


@needs_root
@pytest.mark.system
@pytest.mark.slow
def test_a_name_that_a_process_which_faces_the_network_took_is_read_by_none_and_reported(runtime: Path) -> None:
    storage, network, group = pwd.getpwnam("games").pw_uid, pwd.getpwnam("news").pw_uid, grp.getgrnam("games").gr_gid
    assert json.loads(run_python(network, NAMES + TAKES, str(runtime), group=group)) == [False, False]
    reads, lists, said, problems = json.loads(run_python(storage, NAMES + MISSES, str(runtime), group=group))
    words = f"belongs to user {network}, and this box needs the name; remove it as root: rm /dev/shm/"
    assert (reads, lists) == (False, False) and words in said and len(problems) == 1 and words in problems[0]
