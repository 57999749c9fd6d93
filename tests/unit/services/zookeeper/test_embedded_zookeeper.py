"""How the embedded ZooKeeper is found and started."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
from pathlib import Path

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.base.layout import Disk
from appliance.base.settings import Box
from appliance.base.zookeeper_access import USER, consumer_password, new_secret, read_secret, replace_secret, secret_path
from appliance.cluster import zookeeper_server as zookeeper
from services.zookeeper import zookeeper_jars
from services.zookeeper.zookeeper_classes import make_class_archive
from services.zookeeper.zookeeper_keeper import own_member_problems
from tests.unit.base.test_settings import make_box


def java_home(directory: Path, version: str) -> Path:
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "java").write_text("#!/bin/sh\n")
    (directory / "bin" / "java").chmod(0o755)
    (directory / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return directory


@pytest.mark.parametrize(("version", "feature"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("25.0.2", 25)])
def test_a_javas_release_is_read_without_running_it(tmp_path: Path, version: str, feature: int) -> None:
    assert zookeeper.java_version(str(java_home(tmp_path / "java", version) / "bin" / "java")) == feature


def test_java_home_comes_first_unless_it_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old, path = (java_home(tmp_path / name, version) for name, version in (("new", "21.0.1"), ("old", "1.8.0"), ("path", "17.0.1")))
    monkeypatch.setenv("PATH", str(path / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert zookeeper.find_java() == (str(new / "bin" / "java"), 21)
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert zookeeper.find_java() == (str(path / "bin" / "java"), 17)


PYSPARK_JARS = Path(importlib.metadata.distribution("pyspark").locate_file("pyspark/jars"))
PINNED = zookeeper_jars.read_jars(zookeeper_jars.LIST.read_text())


def test_the_pinned_jars_are_the_class_path_and_pyspark_has_the_same_bytes() -> None:
    names = sorted(map(zookeeper_jars.file_name, PINNED))
    assert [sum(name.startswith(wanted) for name in names) for wanted in zookeeper.JARS] == [1] * len(names)
    assert zookeeper_jars.missing_in(PYSPARK_JARS, PINNED) == []


def test_fetched_jars_come_before_those_of_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper.sys, "prefix", str(tmp_path))
    assert {Path(jar).parent for jar in zookeeper.find_jars()} == {PYSPARK_JARS}
    zookeeper_jars.fetch_jars(PINNED, Path(zookeeper.fetched_jars()), PYSPARK_JARS)
    assert {Path(jar).parent for jar in zookeeper.find_jars()} == {Path(zookeeper.fetched_jars())}
    next(Path(zookeeper.fetched_jars()).glob("netty-*.jar")).unlink()
    assert {Path(jar).parent for jar in zookeeper.find_jars()} == {PYSPARK_JARS}, "whole, or not at all"


def test_what_is_missing_or_damaged_is_fetched_and_what_is_not_listed_goes(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    jars = {f"org/example/{name}/1/{name}-1": hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    for name in ("one", "two"):
        (there / f"{name}-1.jar").write_text(name)
    (here / "two-1.jar").write_text("damaged")
    (here / "two-0.jar").write_text("of an earlier release")
    zookeeper_jars.fetch_jars(jars, here, there)
    assert {file.name: file.read_text() for file in here.iterdir()} == {"one-1.jar": "one", "two-1.jar": "two"}
    (here / "one-1.jar").unlink()
    (there / "one-1.jar").write_text("evil")
    with pytest.raises(RuntimeError, match=r"one-1\.jar has another SHA-256"):
        zookeeper_jars.fetch_jars(jars, here, there)
    assert [file.name for file in here.iterdir()] == ["two-1.jar"]


MAVEN = """#!/bin/sh
for word; do case $word in -Dmaven.repo.local=*) repository=${word#*=} ;; esac; done
grep -c '<groupId>[*]</groupId>' pom.xml >&2
mkdir -p "$repository/org/example/one/1" && printf %s "$BROUGHT" >"$repository/org/example/one/1/one-1.jar"
"""
"""Puts one jar where Maven does. That Maven itself brings all of them is seen by every installation of the tests."""


def test_a_jar_that_maven_brings_is_compared_before_it_is_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = {"org/example/one/1/one-1": hashlib.sha256(b"one").hexdigest()}
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin/mvn").write_text(MAVEN)
    (tmp_path / "bin/mvn").chmod(0o755)
    monkeypatch.setenv("BROUGHT", "evil")
    with pytest.raises(RuntimeError, match=r"one-1\.jar has another SHA-256"):
        zookeeper_jars.fetch_jars(jars, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []
    monkeypatch.setenv("BROUGHT", "one")
    zookeeper_jars.fetch_jars(jars, tmp_path / "here")
    assert [file.read_text() for file in (tmp_path / "here").iterdir()] == ["one"]
    monkeypatch.setenv("PATH", str(tmp_path))
    zookeeper_jars.fetch_jars(jars, tmp_path / "here")
    with pytest.raises(RuntimeError, match="there is no mvn on the PATH"):
        zookeeper_jars.fetch_jars(jars, tmp_path / "elsewhere")


def test_a_missing_jar_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "JARS", ("zookeeper-3", "no-such-jar-"))
    with pytest.raises(ConfigurationProblems, match="no-such-jar"):
        zookeeper.find_jars()


def test_the_server_listens_on_loopback_alone_and_keeps_its_data_in_the_state_directory(tmp_path: Path) -> None:
    box = Box("x", 1, [Disk("d0", "/nonexistent")], str(tmp_path), "0.0.0.0", "h", 1, 1, 1, zookeeper="127.0.0.1:2999")
    command = zookeeper.prepare(box)
    written = (tmp_path / "zookeeper" / "zoo.cfg").read_text().splitlines()
    assert {"clientPort=2999", "clientPortAddress=127.0.0.1", "admin.enableServer=false", f"dataDir={tmp_path}/zookeeper/data"} <= set(written)
    assert "-Xmx64m" in command and command[-1] == f"{tmp_path}/zookeeper/zoo.cfg"
    assert not any("forceSync" in part for part in (*written, *command))


def test_a_member_of_an_ensemble_listens_on_its_own_address_and_knows_the_others(tmp_path: Path) -> None:
    members = ["1=10.0.0.1:2181:2888:3888", "2=10.0.0.2:2191:2889:3889", "3=[fd00::3]:2181:2888:3888"]
    connect = "10.0.0.2:2191,10.0.0.1:2181,[fd00::3]:2181"
    box = Box("x", 2, [Disk("d0", "/nonexistent")], str(tmp_path), "0.0.0.0", "h", 1, 1, 1, zookeeper=connect, zookeeper_members=members)
    secret = new_secret()
    replace_secret(str(tmp_path), secret)
    zookeeper.prepare(box)
    written = (tmp_path / "zookeeper" / "zoo.cfg").read_text().splitlines()
    assert {"clientPort=2191", "clientPortAddress=10.0.0.2", "tickTime=100", "initLimit=100", "syncLimit=6", "connectToLearnerMasterLimit=8"} <= set(written)
    assert {"server.1=10.0.0.1:2888:3888", "server.2=10.0.0.2:2889:3889", "server.3=[fd00::3]:2888:3888"} <= set(written)
    assert (tmp_path / "zookeeper" / "data" / "myid").read_text() == "2\n"
    assert f"superUser={USER}" in written and secret in (tmp_path / "zookeeper" / zookeeper.JAAS_FILE).read_text()


def test_a_server_admits_only_sessions_with_credentials_unless_settings_say_otherwise(tmp_path: Path) -> None:
    box = Box("x", 1, [Disk("d0", "/nonexistent")], str(tmp_path), "0.0.0.0", "h", 1, 1, 1, zookeeper="127.0.0.1:2999")
    command = zookeeper.prepare(box)
    files = {name: (tmp_path / "zookeeper" / name) for name in ("zoo.cfg", zookeeper.JAAS_FILE)}
    required = {"enforce.auth.enabled=true", "enforce.auth.schemes=sasl"}
    assert required <= set(files["zoo.cfg"].read_text().splitlines())
    secret = read_secret(secret_path(str(tmp_path)))
    assert secret is not None and not any(secret in text for text in (*command, files["zoo.cfg"].read_text()))
    assert consumer_password(secret) in files[zookeeper.JAAS_FILE].read_text()
    assert {file.stat().st_mode & 0o777 for file in files.values()} == {0o600}
    zookeeper.prepare(box._replace(settings={"zookeeper.auth.required": False}))
    written = set(files["zoo.cfg"].read_text().splitlines())
    assert not required & written and f"superUser={USER}" in written


@pytest.mark.slow
def test_a_server_finds_its_classes_in_the_file_that_an_installation_makes(tmp_path: Path) -> None:
    java, archive = zookeeper.find_java(), tmp_path / "made" / "classes.jsa"
    assert java is not None and java.version >= 13
    assert make_class_archive(str(archive)) is None
    assert [path.name for path in archive.parent.iterdir()] == ["classes.jsa"]
    program, *arguments = zookeeper.server_command(java.path, zookeeper.find_jars(), str(tmp_path), 64, str(archive))
    asked = [program, *arguments[:-1], "-of", "-no", "-such", "-file"]  # it says how it wants to be called, and ends
    loaded = subprocess.run([*asked[:1], "-Xlog:class+load", *asked[1:]], capture_output=True, text=True, timeout=60, check=False).stdout
    assert f"{zookeeper.MAIN_CLASS} source: shared objects file (top)" in loaded


def test_a_server_is_given_the_file_of_classes_only_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box("x", 1, [Disk("d0", "/nonexistent")], str(tmp_path / "state"), "127.0.0.1", "h", 1, 1, 1, zookeeper="127.0.0.1:2999")
    monkeypatch.setattr(zookeeper.sys, "prefix", str(tmp_path))
    option = f"-XX:SharedArchiveFile={zookeeper.class_archive()}"
    assert option not in zookeeper.prepare(box)
    Path(zookeeper.class_archive()).parent.mkdir(parents=True)
    Path(zookeeper.class_archive()).touch()
    assert option in zookeeper.prepare(box)


def test_a_member_elsewhere_is_found_before_its_jvm_is_started() -> None:
    """The supervisor of an installed box has no network, in which it could ask."""
    box = make_box(zookeeper_members=["1=127.0.0.1", "2=198.51.100.77"], broker_id=2)
    (problem,) = own_member_problems(box)
    assert "198.51.100.77, which is no address of this machine" in problem
    assert own_member_problems(make_box()) == []
