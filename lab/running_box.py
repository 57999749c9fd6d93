"""A real box in a directory of its own, on free ports of loopback, for tests that want the whole appliance.

`start_box` returns when the ready line is out, or fails with everything the box has said. `stop` and `leftovers` hold it to its promise that
no process, socket, shared-memory object, directory or lock is left.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout, box_name, runtime_roots
from appliance.base.settings import Box, load_box
from appliance.ipc.frames import connect_unix
from appliance.runtime.directories import lock_holder
from appliance.runtime.request_server import STATUS
from appliance.runtime.run_options import RunOptions, python_arguments
from appliance.runtime.spawning import die_with_parent
from appliance.senders.old_table import tables_text
from appliance.shm.counters import CounterSnapshot, read_counters
from appliance.shm.mapping import list_names

ROOT = Path(__file__).parent.parent
READY_SECONDS = 120.0
STOP_SECONDS = 60.0
COMMAND = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()", "run"]
LIST_OPTIONS = ("data", "zookeeper_members")
READY = "millrace ready "
USUAL_SETTINGS: dict[str, object] = {"host.figures.interval.ms": 0}
"""Of boxes whose options name no settings file. A topic that comes by itself after ten seconds is none of most tests' business."""
BEGUN: set[str] = set()
"""Names of the boxes that this process began, or asked others to begin."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def eventually(condition: Callable[[], Any], what: str, seconds: float = 90.0) -> Any:
    """The first true answer of `condition`; fails with `what` after `seconds`. Real processes give no other way to wait for them, and on a busy
    machine one may get no processor for seconds: a limit that says something about the product stands in the test."""
    began = asked = time.monotonic()
    while not (answer := condition()):
        waited, took = time.monotonic() - began, time.monotonic() - asked
        assert waited < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(max(min(0.05, max(0.01, waited / 20)), min(0.25, took)))  # a condition that runs a command costs more than the wait
        asked = time.monotonic()
    return answer


def chosen_options(
    directory: Path,
    disks: int = 2,
    data: list[Path] | None = None,
    settings: Mapping[str, object] | None = None,
    senders: Mapping[str, object] | None = None,
    broker_id: int | None = None,
    **options: object,
) -> dict[str, object]:
    """Options of `millrace run` for a box in `directory`, by their Python names (`kafka_port=0`). Writes the settings file with the tables
    `senders` in it."""
    directory.mkdir(parents=True, exist_ok=True)
    data = [directory / f"d{index}" for index in range(disks)] if data is None else data
    if "config" not in options:
        settings = {**USUAL_SETTINGS, **(settings or {})}
    chosen = {"data": data, "state": directory / "state", "kafka_port": 0, "syslog_port": 0, "http_port": 0, "ingest_port": 0} | options
    BEGUN.add(box_name(str(chosen["state"])))
    if settings or senders or broker_id is not None:
        file = directory / "millrace.toml"
        lines = [f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in (settings or {}).items()]
        lines += [] if broker_id is None else [f"[box]\nbroker-id = {broker_id}\n"]
        file.write_text("".join([*lines, tables_text(senders or {})]))
        chosen["config"] = file
    return chosen


def listener(name: str, protocol: str, transport: str = "tcp", port: int = 0, **keys: object) -> dict[str, object]:
    """A table `[[ingest.listener]]`; `idle_seconds=1` is the key `idle-seconds`."""
    return {"name": name, "protocol": protocol, "transport": transport, "port": port} | {key.replace("_", "-"): value for key, value in keys.items()}


def run_arguments(directory: Path, **options: Any) -> list[str]:
    """Those options as `millrace run` takes them."""
    named = [(f"--{name.replace('_', '-')}", value) for name, value in chosen_options(directory, **options).items()]
    return [part for name, value in named for each in (value if isinstance(value, list) else [value]) for part in (name, str(each))]


def supervisor_command(directory: Path, **options: Any) -> list[str]:
    """What `millrace run` makes of itself when it has understood those options. A box comes a fifth of a second sooner by it."""
    chosen = chosen_options(directory, **options)
    lists = {name: [str(each) for each in (value if isinstance(value, list) else [value])] for name, value in chosen.items() if name in LIST_OPTIONS}
    others = {name: value if isinstance(value, int) else str(value) for name, value in chosen.items() if name not in LIST_OPTIONS}
    return [sys.executable, *python_arguments("services.supervisor", environment()), RunOptions(**lists, **others).to_json()]  # type: ignore[arg-type]


def environment() -> dict[str, str]:
    """Of boxes and commands: as users have it, in which there are no packages for tests."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}/lab/not_for_users{os.pathsep}{ROOT}", "COLUMNS": "200"}


def run_and_wait(arguments: list[str], seconds: float = READY_SECONDS) -> subprocess.CompletedProcess[str]:
    """`millrace run` that is expected to end by itself."""
    return subprocess.run([*COMMAND, *arguments], env=environment(), capture_output=True, text=True, timeout=seconds, check=False)


def start_box(directory: Path, seconds: float = READY_SECONDS, **options: Any) -> RunningBox:
    """Start a box and wait until it serves."""
    return begin_box(directory, **options).wait(seconds)


class StartingBox(NamedTuple):
    """A box that is on its way; several may be at a time."""

    process: subprocess.Popen[bytes]
    directory: Path
    messages: Path
    started: float

    def wait(self, seconds: float = READY_SECONDS) -> RunningBox:
        """Until it serves."""
        output = self.read_ready_lines(seconds)
        return RunningBox(self.process, self.directory, output, self.messages, time.monotonic() - self.started)

    def read_ready_lines(self, seconds: float = READY_SECONDS) -> list[str]:
        """What it prints when it serves: all that there is of a box of another user."""
        return _read_until_ready(self.process, self.messages, self.started + seconds)


def begin_box(directory: Path, by_command: bool = False, wrapper: Sequence[str] = (), **options: Any) -> StartingBox:
    """Start a box, as `millrace run` starts it or (`by_command`) by that; `wait` for it. `wrapper`: a command that becomes the one behind it."""
    command = [*COMMAND, *run_arguments(directory, **options)] if by_command else supervisor_command(directory, **options)
    messages = directory / "messages"
    with open(messages, "ab") as file:
        started = time.monotonic()
        process = subprocess.Popen(
            [*wrapper, *command],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            # A test run that is cut off (by its time limit, by kill -9) must not leave boxes behind.
            preexec_fn=partial(die_with_parent, os.getpid()) if threading.current_thread() is threading.main_thread() else None,
        )
    return StartingBox(process, directory, messages, started)


def _read_until_ready(process: subprocess.Popen[bytes], messages: Path, deadline: float) -> list[str]:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    received = b""
    while received.count(b"\n") < 4:
        left = deadline - time.monotonic()
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, left))
        data = process.stdout.read() if readable else None
        if not data:
            process.kill()
            process.wait()
            process.stdout.close()
            reason = "it ended" if readable else "it was not ready in time"
            raise AssertionError(f"millrace run: {reason}\n{messages.read_text(errors='replace')}")
        received += data
    return received.decode().splitlines()


class RunningBox:
    """A box that serves. Ports, directories, processes; and ways to hurt it."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, output: list[str], messages: Path, ready_seconds: float) -> None:
        self.process = process
        self.directory = directory
        self.output = output
        self.ready_seconds = ready_seconds
        self._messages = messages
        words = dict(word.split("=", 1) for word in output[0].removeprefix(READY).split())
        self.kafka, self.syslog, self.http, self.ingest = (_parse_address(words[name]) for name in ("kafka", "syslog", "http", "ingest"))
        self.layout = self._find_layout()
        self.box: Box = load_box(self.layout)
        self.disks = [Path(disk.path) for disk in self.box.disks]
        self.exit_code: int | None = None
        self._listeners: dict[str, int] = {}
        """Ports by inodes of sockets: when the box has ended, another test's process may listen on its port."""
        self._find_listeners()

    def _find_listeners(self) -> None:
        ports = {self.kafka.port, self.syslog.port, self.http.port}
        self._listeners |= {inode: port for inode, port in listening_sockets().items() if port in ports}

    def _find_layout(self) -> BoxLayout:
        state = str(self.directory / "state")
        name = box_name(state)
        return next(layout for root in runtime_roots(state) if os.path.exists((layout := BoxLayout(f"{root}/{name}")).box_file))

    def sender(self, listener: str) -> Address:
        """Where a listener of the tables of senders listens."""
        name = f"ingest-{listener}"
        return next(Address(self.kafka.host, sock.port) for sock in self.box.sender_sockets if sock.name == name)

    @property
    def bootstrap(self) -> str:
        return str(self.kafka)

    @property
    def messages(self) -> str:
        """Everything the box has said on stderr."""
        return self._messages.read_text(errors="replace")

    # --- processes ---

    def status(self) -> dict[str, dict[str, Any]]:
        """The supervisor's answer: process name → its description."""
        connection = connect_unix(self.layout.supervisor_socket)
        assert connection is not None, "the supervisor does not answer"
        try:
            connection.send(STATUS)
            while not (frames := (select.select([connection], [], [], 10), connection.receive())[1]):
                pass
            return {process["name"]: process for process in json.loads(frames[0].payload)["processes"]}
        finally:
            connection.close()

    def pids(self) -> dict[str, int]:
        """Pid by process name, the supervisor included."""
        return {name: process["pid"] for name, process in self.status().items() if process["pid"]}

    def pid(self, name: str) -> int:
        """Of the process that runs, or of the next one if the last has just died."""
        return int(eventually(lambda: self.status()[name]["pid"], f"{name} is there"))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a process; returns the pid it had."""
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def stop_process(self, name: str) -> int:
        """SIGSTOP, and wait until it stands still: a signal is only on its way when `kill` returns. Its pid."""
        pid = self.kill(name, signal.SIGSTOP)
        eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", f"{name} stands still")
        return pid

    def counters(self, name: str) -> CounterSnapshot:
        snapshot = read_counters(self.layout, name)
        assert snapshot is not None, f"{name} has no counters"
        return snapshot

    def await_restart(self, name: str, old_pid: int, seconds: float = 90.0) -> int:
        """Wait until a new incarnation of `name` serves; returns its pid."""

        def new_pid() -> int | None:
            process = self.status()[name]
            return process["pid"] if process["state"] == "serving" and process["pid"] != old_pid else None

        return int(eventually(new_pid, f"{name} serves again", seconds))

    def get(self, path: str) -> tuple[int, Any]:
        """HTTP GET from the console: (status, JSON); status 0 if it hung up."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except ConnectionError:
            return 0, None  # the console died while it answered

    def get_local(self, path: str) -> tuple[int, Any]:
        """The same through the console's Unix socket."""
        with closing(HTTPConnection("localhost", timeout=30)) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self.layout.console_socket)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.load(answer)

    # --- the end ---

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it (once) and wait; returns the exit code."""
        if self.exit_code is None:
            if self.process.poll() is None:
                self._find_listeners()
                self.process.send_signal(number)
            try:
                self.exit_code = self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"millrace run did not stop in {STOP_SECONDS:g} s\n{self.messages}") from None
            finally:
                assert self.process.stdout is not None
                self.process.stdout.close()
        return self.exit_code

    def kill_supervisor(self) -> None:
        """kill -9 of the parent; returns when it and every process of the box are gone."""
        self._find_listeners()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.exit_code = -signal.SIGKILL
        eventually(lambda: not processes_of(self.layout), "the children die with their parent")

    def leftovers(self) -> list[str]:
        """What is still there of a box that has ended; nothing, if all is well."""
        found = [f"process {pid} ({name})" for pid, name in processes_of(self.layout).items()]
        found += [f"shared memory {name}" for name in list_names(self.layout.shared_memory_prefix)]
        if os.path.exists(self.layout.runtime_directory):
            found.append(f"{self.layout.runtime_directory}: {os.listdir(self.layout.runtime_directory)}")
        found += [f"lock on {path}" for path in [self.directory / "state", *self.disks] if lock_holder(str(path)) is not None]
        still = listening_sockets()
        found += [f"a process listens on port {port}" for inode, port in self._listeners.items() if inode in still]
        return found


def processes_of(layout: BoxLayout) -> dict[int, str]:
    """Living processes that were started for this box: pid → name. They are known by their environment, which their children inherit."""
    wanted = f"MILLRACE_RUNTIME={layout.runtime_directory}".encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            if wanted in variables:
                found[int(entry)] = Path(f"/proc/{entry}/comm").read_text().strip()
        except OSError:
            continue  # it ended while we looked, or it is not ours
    return found


def listening_sockets() -> dict[str, int]:
    """Ports of the TCP sockets of this network namespace that listen, by the sockets' inodes."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def proportional_kib(pid: int) -> int:
    """PSS of a process, in KiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has no Pss")


def _parse_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host.strip("[]"), int(port))
