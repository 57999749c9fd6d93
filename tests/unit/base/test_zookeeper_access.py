"""The ZooKeeper secret of a box: made once, private, and refused when it cannot be used."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.base.settings import Box
from appliance.base.zookeeper_access import (
    SECRET_FILE,
    USER,
    ZooKeeperAccess,
    access_problems,
    consumer_password,
    digest_id,
    ensure_secret,
    new_secret,
    read_secret,
    replace_secret,
    secret_path,
    zookeeper_access,
)


def box(state: Path, **changes: object) -> Box:
    return Box("x", 1, [], str(state), "h", "h", 1, 1, 1)._replace(**changes)  # type: ignore[arg-type]


def member_of_three(state: Path, **changes: object) -> Box:
    return box(state, zookeeper_members=["1=10.0.0.1", "2=10.0.0.2", "3=10.0.0.3"], **changes)


def test_a_box_alone_makes_a_private_secret_once(tmp_path: Path) -> None:
    first = zookeeper_access(box(tmp_path))
    assert first == ZooKeeperAccess(USER, ensure_secret(str(tmp_path)), True, True)
    assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]
    assert zookeeper_access(box(tmp_path)) == first


def test_two_boxes_have_different_secrets_and_neither_shows_its_own(tmp_path: Path) -> None:
    secrets = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        access = zookeeper_access(box(tmp_path / name))
        assert access is not None and access.password not in repr(access)
        secrets.add(access.password)
    assert len(secrets) == 2


def test_processes_that_make_a_secret_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: ensure_secret(str(tmp_path)), range(32)))) == 1
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]


def test_the_checks_before_a_start_make_nothing(tmp_path: Path) -> None:
    assert access_problems(box(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_the_problem_of_a_member_without_a_secret_names_the_command(tmp_path: Path) -> None:
    [problem] = access_problems(member_of_three(tmp_path))
    assert f"there is no {tmp_path}/{SECRET_FILE}" in problem and "millrace cluster secret set" in problem
    with pytest.raises(ConfigurationProblems, match="millrace cluster secret new"):
        zookeeper_access(member_of_three(tmp_path))
    assert access_problems(member_of_three(tmp_path, settings={"zookeeper.auth.required": False})) == []
    assert list(tmp_path.iterdir()) == []


def test_a_box_without_a_member_needs_the_secret_of_the_ensemble_too(tmp_path: Path) -> None:
    assert access_problems(member_of_three(tmp_path, broker_id=7, embedded_zookeeper=False)) != []
    secret = new_secret()
    replace_secret(str(tmp_path), secret)
    expected = ZooKeeperAccess(USER, secret, True, True)
    assert zookeeper_access(member_of_three(tmp_path, broker_id=7, embedded_zookeeper=False)) == expected


def test_the_only_member_of_an_ensemble_makes_its_secret_itself(tmp_path: Path) -> None:
    assert zookeeper_access(box(tmp_path, zookeeper_members=["1=10.0.0.1"])) is not None


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    ensure_secret(str(tmp_path))
    (tmp_path / SECRET_FILE).chmod(0o640)
    [problem] = access_problems(box(tmp_path))
    assert "other users may read" in problem and f"chmod 600 {secret_path(str(tmp_path))}" in problem


@pytest.mark.parametrize("text", ["", "short", "a" * 20 + " " + "b" * 20, 'a"' * 20, "ä" * 20, "a" * 20 + "\n" + "b" * 20])
def test_a_secret_that_no_server_could_take_is_refused(tmp_path: Path, text: str) -> None:
    replace_secret(str(tmp_path), text)
    assert len(access_problems(box(tmp_path))) == 1


def test_a_secret_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SECRET_FILE)
    assert "regular file" in access_problems(box(tmp_path))[0]


def test_an_ensemble_elsewhere_is_open_without_a_file_of_credentials(tmp_path: Path) -> None:
    elsewhere = box(tmp_path, embedded_zookeeper=False)
    assert zookeeper_access(elsewhere) is None and list(tmp_path.iterdir()) == []
    file = tmp_path / "digest"
    file.write_text("kafka:pass:word\n")
    file.chmod(0o600)
    named = elsewhere._replace(settings={"zookeeper.digest.file": str(file)})
    assert zookeeper_access(named) == ZooKeeperAccess("kafka", "pass:word", True, False)
    file.write_text("only-a-password\n")
    assert zookeeper_access(named) == ZooKeeperAccess(USER, "only-a-password", True, False)
    file.unlink()
    assert "does not exist" in access_problems(named)[0]


def test_the_digest_is_zookeepers() -> None:
    assert digest_id("super", "test") == "super:D/InIHSb7yEEbrWz8b9l71RjZJU="  # from ZooKeeper's administrator's guide


def test_the_consumers_password_follows_from_the_secret_and_does_not_contain_it() -> None:
    secret = new_secret()
    assert consumer_password(secret) == consumer_password(secret) != consumer_password(new_secret())
    assert consumer_password(secret) not in secret
    assert read_secret("/nonexistent/secret") is None
