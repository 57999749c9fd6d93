"""Polls the ZooKeeper server of this box (`srvr`, `mntr`) without blocking, and maintains the
counters for its JVM.

Owned by the supervisor (under systemd by the ZooKeeper service), whose poller holds the
connections. A server that does not serve is polled every 50 ms, later twice per watchdog period. A
member of an ensemble without a quorum answers that it does not serve; then the other members are
polled as well, once a second, to report which ones are missing. If the others serve for longer than
a member may take to join them, ours is restarted: its connections are from before a network cut,
and TCP retries them rarely, while new ones reach the others at once. That time starts with the
first answer of the JVM, so a busy machine may take longer to start it, and doubles with each such
restart until the member serves. A server that serves is ready when its files are synced
(`StateSync`), because ZooKeeper does not sync its first snapshot, nor the one that a member writes
after an election; so they are synced again when a member serves under another leader.

Weak: for a second after an election its snapshot is in the page cache alone, beside older ones and
the log. `srvr` does not show a disk that hangs under the transaction log until a session writes. Host
names of members are resolved here; a name server that does not answer blocks the process (addresses
do not).
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.layout import BoxLayout
from appliance.base.settings import Box
from appliance.base.zookeeper_access import ZooKeeperTls, zookeeper_tls
from appliance.base.zookeeper_member import in_words
from appliance.runtime.poller import HANG_UP, READABLE, WRITABLE, Poller
from appliance.runtime.process_cost import CostReport
from appliance.shm.counters import Counters
from appliance.shm.mapping import PID_WORD

NAME = "zookeeper"
ASK_MS_WHILE_STARTING = 50
ASK_MS_WHILE_WAITING = 250
ASK_OTHERS_MS = 1_000
ASK_TREE_MS = 5_000
ANSWER_MS_MAX = 1_000
ZNODE_BYTES = 500
"""Heap of a node beside its path and data."""
LEFT_BEHIND_DOUBLINGS_MAX = 5
"""The time before a restart doubles up to this factor (10 s as shipped, so 320 s)."""


class ServerQuestion:
    """Sends a four-letter word to one server, one request at a time. `on_answer(None)` if there is
    no answer within `ANSWER_MS_MAX`. With `tls`, whose files may be renewed, it is encrypted."""

    def __init__(self, address: str, poller: Poller, on_answer: Callable[[bytes | None], None], word: bytes = b"srvr", tls: ZooKeeperTls | None = None) -> None:
        self._tls = tls
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._poller = poller
        self._on_answer = on_answer
        self._word = word
        self._socket: socket.socket | None = None
        self._received = b""
        self._is_sent = False
        """with TLS: the word was sent"""
        self._asked_ms = 0

    def ask(self, now_ms: int) -> None:
        """Send a request unless one is in flight; a request without an answer for too long is given
        up."""
        if self._socket is not None:
            if now_ms - self._asked_ms < ANSWER_MS_MAX:
                return
            self._end(None)
        self._asked_ms = now_ms
        self._received = b""
        self._is_sent = False
        self._socket = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect_ex(self._address)
        except OSError:  # a name that does not resolve
            self._socket.close()
            self._socket = None
            self._on_answer(None)
            return
        self._poller.register(self._socket.fileno(), WRITABLE, self._on_event if self._tls is None else self._on_event_of_tls)

    def _on_event(self, events: int) -> None:
        sock = self._socket
        assert sock is not None
        try:
            if events & WRITABLE and not events & HANG_UP:
                sock.send(self._word)
                self._poller.modify(sock.fileno(), READABLE)
                return
            data = sock.recv(4096)
        except OSError:
            data = b""
        self._receive(data)

    def _on_event_of_tls(self, events: int) -> None:
        import ssl  # 4 MB

        try:
            data = self._step_of_tls(events)
        except ssl.SSLWantReadError:
            assert self._socket is not None
            self._poller.modify(self._socket.fileno(), READABLE)
            return
        except OSError:
            data = b""
        self._receive(data)

    def _step_of_tls(self, events: int) -> bytes:
        """Connect, then shake hands and send, then return what comes; raises SSLWantReadError where the server is next."""
        import ssl

        sock = self._socket
        assert sock is not None and self._tls is not None
        if not isinstance(sock, ssl.SSLSocket):
            if events & HANG_UP:
                return b""
            context = self._tls.context()
            self._poller.unregister(sock.fileno())
            self._socket = None
            sock = self._socket = context.wrap_socket(sock, do_handshake_on_connect=False, server_hostname=self._address[0])
            self._poller.register(sock.fileno(), READABLE, self._on_event_of_tls)
        if not self._is_sent:
            sock.do_handshake()
            sock.send(self._word)
            self._is_sent = True
        return sock.recv(4096)

    def _receive(self, data: bytes) -> None:
        self._received += data
        if b"\nMode: " in self._received or not data:
            self._end(self._received or None)

    def _end(self, answer: bytes | None) -> None:
        self.hang_up()
        self._on_answer(answer)

    def hang_up(self) -> None:
        if self._socket is not None:
            self._poller.unregister(self._socket.fileno())
            self._socket.close()
            self._socket = None


class StateSync:
    """Syncs the server's files in a child process, so that a disk that hangs blocks the child only.

    Weak: such a child stays until the disk answers; after `abandon` it is reaped when its parent
    ends.
    """

    def __init__(self, sync: Callable[[str], None], state: str) -> None:
        self._sync = sync
        self._state = state
        self._pid = 0
        self._is_outdated = False
        """Whether the files changed after the sync began."""
        self.is_done = False
        self.problem = ""
        """Why the sync failed; '' while it runs and when it is done."""

    def repeat(self) -> None:
        """Sync again, after the sync that runs, if any: the server has written more."""
        self.is_done = False
        self._is_outdated = self._pid != 0

    def turn(self) -> None:
        """Start the sync, or check whether it has ended."""
        if self.is_done or self.problem:
            return
        if not self._pid:
            self._pid = self._begin()
            return
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        self.is_done = code == 0 and not self._is_outdated
        self._is_outdated = False
        if code:
            self.problem = os.strerror(code) if code > 0 else f"signal {-code}"

    def abandon(self) -> None:
        """Forget the sync, because the server or this process ends: what the next server writes is
        synced again."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, os.WNOHANG)
        self._pid = 0
        self._is_outdated = False
        self.is_done = False
        self.problem = ""

    def _begin(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = errno.EIO
        try:
            signal.set_wakeup_fd(-1)  # the parent's pipe
            os.closerange(3, 1 << 16)  # a child that a disk blocks must not keep sockets and locks
            self._sync(self._state)
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code)


class ZooKeeperWatch:
    """`serves`: the last answer. `heard_ms`: when it was received. `words`: why the server
    does not serve, if known.

    `sync` makes the server's files below a state directory durable; it runs in a child process once
    the server serves.
    """

    def __init__(self, layout: BoxLayout, box: Box, poller: Poller, clock: Clock, sync: Callable[[str], None]) -> None:
        self._layout = layout
        self._clock = clock
        self._counters = Counters.create_or_adopt(layout, NAME, clock.monotonic_ns(), clock.wall_ms())
        self._cost = CostReport(self._counters)
        tls = zookeeper_tls(box.settings)
        self._own = ServerQuestion(box.own_zookeeper, poller, self._on_answer, tls=tls)
        self._others = {
            member.member_id: ServerQuestion(member.client_address, poller, lambda answer, other=member.member_id: self._on_other(other, answer), tls=tls)  # type: ignore[misc]
            for member in box.ensemble
            if member.member_id != box.broker_id
        }
        self._tree = ServerQuestion(box.own_zookeeper, poller, self._on_tree, b"mntr", tls)
        self._ask_tree_ms = 0
        self._heap_bytes = box.integer("zookeeper.heap.mb") << 20
        self._is_there: dict[int, bool] = {}
        """Whether each other member answered, if polled since ours last served."""
        self._ask_others_ms = 0
        self._join_ms_max = box.integer("zookeeper.init.limit") * box.integer("zookeeper.tick.ms")
        self._serving_others: set[int] = set()
        self._without_us_since_ms = 0
        """When other members began to serve without ours; reset when none does."""
        self._answers_since_ms = 0
        """When this JVM first answered; 0 before that."""
        self._left_behind_count = 0
        """Restarts because the member could not rejoin, since it last served."""
        self._state_sync = StateSync(sync, box.state_directory)
        self._term: tuple[str, int] | None = None
        """The role of a server that serves, and the epoch of its last transaction."""
        self._now_ms = 0
        self.serves = False
        self.heard_ms = 0

    def on_started(self, pid: int, now_ms: int) -> None:
        """Start to watch a new JVM."""
        self._own.hang_up()
        self._tree.hang_up()
        self.serves = False
        self._term = None
        self._serving_others.clear()
        self._answers_since_ms = 0
        self._state_sync.abandon()
        self.heard_ms = now_ms
        self._ask_others_ms = now_ms + ASK_OTHERS_MS
        self._begin_counters(pid)

    def _begin_counters(self, pid: int) -> None:
        self._counters.close()
        self._counters = Counters.create_or_adopt(self._layout, NAME, self._clock.monotonic_ns(), self._clock.wall_ms())
        self._counters.shared.words[PID_WORD] = pid  # readers of the counters want the pid of the JVM
        self._cost = CostReport(self._counters, pid)
        self._counters.beat(self._clock.monotonic_ns())

    def keep_counters(self) -> str:
        """Create the counters again if another program deleted them. Return their name if so,
        otherwise ''."""
        if not self._counters.is_deleted:
            return ""
        state = self._counters.state
        self._begin_counters(self._counters.shared.words[PID_WORD])
        self._counters.set_state(state)
        return self._counters.shared.name

    def set_state(self, state: str) -> None:
        self._counters.set_state(state)

    @property
    def words(self) -> str:
        """Return why the server does not serve; '' if it serves or nothing is known yet."""
        if self.serves or len(self._is_there) < len(self._others) or not self._others:
            return ""
        missing = sorted(member for member, is_there in self._is_there.items() if not is_there)
        majority = (len(self._others) + 1) // 2 + 1
        wanted = majority - (1 + len(self._others) - len(missing))
        if wanted <= 0:
            return "waits until the ZooKeeper ensemble has agreed on a leader"
        enough = f"; {'one' if wanted == 1 else wanted} of them {'is' if wanted == 1 else 'are'} enough" if wanted < len(missing) else ""
        return f"waits for {in_words(missing)} of the ZooKeeper ensemble{enough}"

    def is_left_behind(self, now_ms: int) -> bool:
        """Return whether our member answers but others have served without it for too long."""
        if not self._serving_others or not self._answers_since_ms:
            return False
        since_ms = max(self._without_us_since_ms, self._answers_since_ms)
        return now_ms - since_ms > self._join_ms_max << min(self._left_behind_count, LEFT_BEHIND_DOUBLINGS_MAX)

    def on_left_behind(self) -> None:
        """Record a restart of our member because it cannot rejoin."""
        self._left_behind_count += 1

    @property
    def is_ready(self) -> bool:
        """Whether the server serves and its files are synced. Reading it drives the sync; see
        `sync_problem`."""
        if self.serves:
            self._state_sync.turn()
        return self.serves and self._state_sync.is_done

    @property
    def sync_problem(self) -> str:
        return self._state_sync.problem

    def next_ask_ms(self, now_ms: int, rest_ms: int) -> int:
        """Return when to poll next; `rest_ms` is the interval for a server that serves alone."""
        if self.serves:
            return now_ms + (min(rest_ms, ASK_OTHERS_MS) if self._others else rest_ms)
        return now_ms + (ASK_MS_WHILE_WAITING if self.words else ASK_MS_WHILE_STARTING)

    def ask(self, now_ms: int) -> None:
        """Poll our server, and the others while it waits for them."""
        self._now_ms = now_ms
        if self.serves:
            self._state_sync.turn()
        self._own.ask(now_ms)
        self._cost.turn(self._clock.monotonic_ns())
        if self.serves and now_ms >= self._ask_tree_ms:
            self._ask_tree_ms = now_ms + ASK_TREE_MS
            self._tree.ask(now_ms)
        if self._others and not self.serves and now_ms >= self._ask_others_ms:
            self._ask_others_ms = now_ms + ASK_OTHERS_MS
            for question in self._others.values():
                question.ask(now_ms)

    def _on_answer(self, answer: bytes | None) -> None:
        if answer is None:
            return  # the JVM starts or hangs; the watchdog handles it
        self.serves = b"\nMode: " in answer
        self._answers_since_ms = self._answers_since_ms or self._now_ms
        term = _term_of(answer) if self.serves else None
        if term != self._term and term is not None:
            self._state_sync.repeat()
        self._term = term
        if self.serves:
            self._left_behind_count = 0
            self._is_there.clear()
            self._serving_others.clear()
        if self.serves or self._others:
            self.heard_ms = self._clock.monotonic_ms()
            self._counters.beat(self._clock.monotonic_ns())

    def _on_tree(self, answer: bytes | None) -> None:
        """Publish the size of the tree, which the heap holds as a whole."""
        fields = dict(line.split(b"\t", 1) for line in (answer or b"").splitlines() if b"\t" in line)
        try:
            znodes, data_bytes = int(fields[b"zk_znode_count"]), int(fields[b"zk_approximate_data_size"])
        except (KeyError, ValueError):
            return  # the server does not serve, or does not answer `mntr`
        self._counters.gauge("zookeeper.znodes").set(znodes)
        self._counters.gauge("zookeeper.tree_bytes").set(data_bytes + ZNODE_BYTES * znodes)
        self._counters.gauge("zookeeper.heap_bytes").set(self._heap_bytes)

    def _on_other(self, member_id: int, answer: bytes | None) -> None:
        if self.serves:
            return
        self._is_there[member_id] = answer is not None
        if answer is None or b"\nMode: " not in answer:
            self._serving_others.discard(member_id)
            return
        if not self._serving_others:
            self._without_us_since_ms = self._now_ms
        self._serving_others.add(member_id)

    def close(self) -> None:
        self._state_sync.abandon()
        for question in (self._own, self._tree, *self._others.values()):
            question.hang_up()
        self._counters.close()


def _term_of(answer: bytes) -> tuple[str, int]:
    """Return the role of a server and the epoch of its last transaction: a member that joins a new
    leader has other ones than before, once it has written its snapshot."""
    fields = dict(line.split(": ", 1) for line in answer.decode("ascii", "replace").splitlines() if ": " in line)
    try:
        zxid = int(fields.get("Zxid", "0"), 16)
    except ValueError:
        zxid = 0
    return fields["Mode"], zxid >> 32
