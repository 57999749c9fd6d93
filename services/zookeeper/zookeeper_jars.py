"""Fetches the jars of the embedded ZooKeeper (`jars.txt`) by Maven, which finds its repository by the
user's own settings.

`python -m services.zookeeper.zookeeper_jars [--from DIR] [TARGET]` makes TARGET whole, by default
where this Python's box looks for it; `--from` copies the jars from a directory (a wheelhouse, those of
PySpark) instead. Each is compared with its SHA-256 before it is in its place. Needs only the standard
library, because the installation runs it beside pip. Exits with 1, and says why, if a jar could not be
had.

Measured: Maven needs 10 MB of downloads for the 9 MB of jars. Weak: proxies and mirrors that only pip
knows do not help Maven; then the installation takes PySpark.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

LIST = Path(__file__).with_name("jars.txt")
SECONDS = 300
PLUGIN = "org.apache.maven.plugins:maven-clean-plugin:2.5"
"""Needs one small jar itself. Maven fetches what it is made to depend on; `dependency:copy`,
made for this, would bring 50 jars of its own (18 MB)."""


def read_jars(text: str) -> dict[str, str]:
    """Return the SHA-256 of each jar by its path in a Maven repository (without `.jar`)."""
    return dict(line.split() for line in text.splitlines() if line and not line.startswith("#"))


def file_name(path: str) -> str:
    return f"{path.rpartition('/')[2]}.jar"


def is_right(file: Path, digest: str) -> bool:
    """Return whether a file is there and has this SHA-256."""
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest


def missing_in(target: Path, jars: Mapping[str, str]) -> list[str]:
    """Return the jars that are not in `target`, or damaged."""
    return [path for path, digest in jars.items() if not is_right(target / file_name(path), digest)]


def fetch_jars(jars: Mapping[str, str], target: Path, source: Path | None = None) -> None:
    """Bring what is missing in `target`, from the directory `source` or by Maven, and remove every other
    jar. Raises OSError or RuntimeError."""
    if wanted := missing_in(target, jars):
        _bring(wanted, jars, target, source)
    names = set(map(file_name, jars))
    for file in target.glob("*.jar"):
        if file.name not in names:
            file.unlink()


def _bring(wanted: list[str], jars: Mapping[str, str], target: Path, source: Path | None) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for left in target.glob(".fetching-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target) as directory:
        repository = Path(directory, "repository")
        if source is None:
            _run_maven(wanted, Path(directory), repository)
        for path in wanted:
            name = file_name(path)
            brought = Path(directory, name)
            shutil.copyfile(f"{repository}/{path}.jar" if source is None else source / name, brought)
            if not is_right(brought, jars[path]):
                raise RuntimeError(f"{name} has another SHA-256 than {jars[path]}")
            os.replace(brought, target / name)


def _run_maven(paths: list[str], directory: Path, repository: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("there is no mvn on the PATH")
    (directory / "pom.xml").write_text(_project(paths))
    # A repository of its own: the user's stays as it is.
    words = [maven, "--batch-mode", "--quiet", "-Dstyle.color=never", f"-Dmaven.repo.local={repository}", f"{PLUGIN}:clean"]
    if (settings := Path.home() / ".m2/settings.xml").exists():  # a user without an account has no home that Java knows
        words += ["--settings", str(settings)]
    variables = {"MAVEN_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"} | os.environ
    ended = subprocess.run(words, cwd=directory, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False)
    if ended.returncode:
        raise RuntimeError(f"mvn ended with {ended.returncode}: {(ended.stdout + ended.stderr).strip()[:500]}")


def _project(paths: list[str]) -> str:
    """Return a Maven project that needs exactly these artifacts (`group/…/artifact/version/artifact-version[-classifier]`)."""
    dependencies = []
    for path in paths:
        *groups, artifact, version, file = path.split("/")
        classifier = file.removeprefix(f"{artifact}-{version}").removeprefix("-")
        dependencies.append(
            f"<dependency><groupId>{'.'.join(groups)}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            + (f"<classifier>{classifier}</classifier>" if classifier else "")
            + "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        )
    group, artifact, version = PLUGIN.split(":")
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>millrace</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><build><plugins><plugin><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"<dependencies>{''.join(dependencies)}</dependencies></plugin></plugins></build></project>"
    )


def main(words: list[str]) -> int:
    source = None
    if words[:1] == ["--from"]:
        source, words = Path(words[1]), words[2:]
    target = Path(words[0]) if words else Path(sys.prefix, "share/millrace/zookeeper")
    try:
        fetch_jars(read_jars(LIST.read_text()), target, source)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"could not fetch ZooKeeper's jars: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
