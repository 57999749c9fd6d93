"""A directory that stands for a Kafka release (KAFKA_PATH) where librdkafka's tests call its scripts: `kafka-topics.sh`, and Java programs of the suite.

Its jars are those of `lab.client_packages`, and Eclipse's compiler is its `javac`, so a Java runtime is enough. Owned by its creator. Weak
spot: without those jars the suite's Java parts fail; `missing` says so beforehand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab import client_packages
from lab.running_box import ROOT


def missing() -> str | None:
    """Why the Java programs cannot be run here; None if they can."""
    return client_packages.missing_java()


def make_kafka_home(directory: Path) -> Path:
    """`bin` with scripts (put it on PATH for `javac`) and `libs` with the client's jar."""
    (directory / "libs").mkdir(parents=True, exist_ok=True)
    (directory / "bin").mkdir(exist_ok=True)
    jar = next(client_packages.JARS.glob("kafka-clients-*.jar"))
    (directory / "libs" / jar.name).unlink(missing_ok=True)
    (directory / "libs" / jar.name).symlink_to(jar)
    compiler = next(client_packages.JARS.glob("ecj-*.jar"))
    scripts = {
        "kafka-topics.sh": f'PYTHONPATH={ROOT} exec {sys.executable} -m tests.judges.kafka_topics "$@"',
        # The suite's run-class.sh leaves its classes in CLASSPATH.
        "kafka-run-class.sh": f'exec java -Xmx128m -cp "$CLASSPATH:{client_packages.class_path()}" "$@"',
        # The suite's Makefile names the client's jar only, and the source last; Eclipse's compiler wants what that refers to, too.
        "javac": f'for source; do :; done; exec java -jar {compiler} -17 -nowarn -cp "{client_packages.class_path()}" "$source"',
    }
    for name, line in scripts.items():
        script = directory / "bin" / name
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
    return directory
