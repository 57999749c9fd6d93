"""Kafka's StandardAuthorizer as a judge of ours: a Java program that answers questions about bindings.

It is compiled where a test wants it and gets all questions at once, so one JVM answers tens of thousands.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from appliance.security.acl import AclBinding, AclOperation, AclResource
from lab import client_packages
from lab.real_kafka import class_path, java

JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")


def scenario(bindings: Iterable[AclBinding], super_users: str = "", allow_everyone: bool = False) -> list[str]:
    """Lines that begin a new authorizer with these bindings."""
    lines = [f"new\t{super_users}\t{str(allow_everyone).lower()}"]
    return lines + [
        "\t".join(("acl", each.resource.name, each.pattern.name, each.name, each.principal, each.host, each.operation.name, each.permission.name))
        for each in bindings
    ]


def question(principal: str, host: str, operation: AclOperation, resource: AclResource, name: str | None) -> str:
    """Whether the operation is allowed on a resource; without a name: on any of the type."""
    fields = (principal, host, operation.name, resource.name)
    return "\t".join(("any", *fields) if name is None else ("may", *fields, name))


def answers(lines: Sequence[str], directory: Path) -> list[bool]:
    """What StandardAuthorizer says, in the order of the questions."""
    ended = subprocess.run(compiled("AclOracle", directory), input="\n".join(lines), capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return [each == "1" for each in ended.stdout.strip()]


def compiled(name: str, directory: Path) -> list[str]:
    """Compile a program of `lab/clients/kafka` into a directory; return the command that runs it."""
    source = client_packages.SOURCES / "kafka" / f"{name}.java"
    compiler = next(client_packages.JARS.glob("ecj-*.jar"))
    subprocess.run([java(), "-jar", str(compiler), "-17", "-nowarn", "-cp", class_path(), "-d", str(directory), str(source)], check=True, timeout=60)
    return [java(), *JVM, "-cp", f"{directory}:{class_path()}", name]
