"""Make the archive of Java classes with which the tests start Spark (Java's class data sharing).

`python -m lab.spark_classes` makes the file in the environment that runs; install.sh calls it. A JVM
whose Java or jars differ from those of the archive ignores it.

Measured (Java 17): with the archive and `SHORT_LIVED`, a session with three queries takes 4.7 s of
processor time instead of 16.9. The archive has 190 MB and takes about 30 s to make. Weak spot: a JVM
that ignores the archive says nothing.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "clients" / "spark-classes.jsa"
STAMP = ARCHIVE.with_suffix(".stamp")
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The optimizing compiler and parallel collection do not pay off within seconds."""


def use_archive() -> None:
    """Give the options to every Spark that this process and its children start."""
    archive = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds*=off" if ARCHIVE.exists() else ""
    os.environ["SPARK_SUBMIT_OPTS"] = SHORT_LIVED + archive
    os.environ["SPARK_LAUNCHER_OPTS"] = SHORT_LIVED  # the JVM that builds Spark's command line


def make_archive() -> None:
    """Run a session that does what tests do, and let its JVM write the classes that it has loaded."""
    from appliance.pipeline.spark_session import SessionOptions, start_spark

    made = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={made}"
    with tempfile.TemporaryDirectory(prefix="millrace-") as directory:
        running = start_spark(SessionOptions("classes", "local[1]", log=Path(directory, "log")))
        spark = running.session
        rows = spark.range(100).selectExpr("id % 7 AS key", "CAST(id AS STRING) AS value", "timestamp_seconds(id) AS at")
        rows.write.partitionBy("key").parquet(f"{directory}/rows")
        stored = spark.read.parquet(f"{directory}/rows")
        stored.mapInArrow(lambda batches: batches, stored.schema).groupBy("key").count().orderBy("key").collect()
        stream = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
        options = {"checkpointLocation": f"{directory}/checkpoint", "path": f"{directory}/stream"}
        stream.writeStream.format("parquet").options(**options).trigger(once=True).start().awaitTermination()
        spark.stop()
        with suppress(Exception):  # the connection ends with the JVM
            running.gateway.jvm.System.exit(0)
        running.close()
    os.rename(made, ARCHIVE)


def main() -> int:
    import pyspark

    from appliance.pipeline.spark_session import spark_java_home

    release = Path(spark_java_home(), "release")
    java = release.read_text() if release.exists() else spark_java_home()
    stamp = f"{pyspark.__version__} {pyspark.__file__} {java} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}"
    if not (ARCHIVE.exists() and STAMP.exists() and STAMP.read_text() == stamp):
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        ARCHIVE.unlink(missing_ok=True)
        make_archive()
        STAMP.write_text(stamp)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
