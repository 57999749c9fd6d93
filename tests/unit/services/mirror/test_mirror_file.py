from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.errors import ConfigurationProblems
from appliance.client.address import Address
from services.mirror.mirror_file import MirrorOptions, read_mirror_file

SMALLEST = """
[target]
bootstrap.servers = "central:9092"
[[source]]
name = "berlin"
bootstrap.servers = "b1:9092,b2"
topics = ["syslog"]
"""


def read(directory: Path, text: str, name: str = "logs.toml", mode: int = 0o600) -> MirrorOptions:
    path = directory / name
    path.touch(mode)
    path.write_text(text)
    return read_mirror_file(str(path))


def problems_of(directory: Path, text: str, name: str = "logs.toml", mode: int = 0o600) -> list[str]:
    with pytest.raises(ConfigurationProblems) as raised:
        read(directory, text, name, mode)
    return [problem.removeprefix(f"{directory / name}: ") for problem in raised.value.problems]


def test_the_smallest_file_has_safe_defaults(tmp_path: Path) -> None:
    options = read(tmp_path, SMALLEST)
    (source,) = options.sources
    assert (options.name, options.transactional_id, options.group_of(source)) == ("logs", "millrace-mirror.logs", "millrace-mirror.logs.berlin")
    assert source.cluster.bootstrap == [Address("b1", 9092), Address("b2", 9092)]
    assert (source.prefix, source.start, source.on_source_change, source.groups) == ("berlin.", "earliest", "continue", [])
    assert options.status_file == f"{tmp_path}/logs.toml.status.json"
    assert read_mirror_file(str(tmp_path / "logs.toml"), "/run/m").status_file == "/run/m/status.json"


def test_options_of_clients_have_kafkas_names_as_tables_or_as_texts(tmp_path: Path) -> None:
    text = SMALLEST.replace(
        "[[source]]", '"security.protocol" = "SASL_PLAINTEXT"\nsasl.mechanism = "SCRAM-SHA-256"\nsasl.username = "m"\nsasl.password = "secret"\n[[source]]'
    )
    options = read(tmp_path, text)
    security = options.target.security
    assert security is not None and (security.protocol, security.mechanism, security.user) == ("SASL_PLAINTEXT", "SCRAM-SHA-256", "m")
    assert "secret" not in repr(options)


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    text = """
round-ms = -1
colour = "red"
[target]
bootstrap.servers = "central:no"
replication-factor = 0
sasl.kerberos.service.name = "kafka"
[[source]]
name = "b/1"
topics = ["("]
prefix = "a b"
start = "now"
[[source]]
name = "c"
bootstrap.servers = "c"
groups = "all"
[[source]]
name = "c"
bootstrap.servers = "c"
topics = ["t"]
security.protocol = "SSL"
ssl.truststore.location = "/nowhere/ca.pem"
[[source]]
name = "d"
bootstrap.servers = "d"
topics = ["t"]
security.protocol = true
sasl.mechanism = 1
"""
    found = "\n".join(problems_of(tmp_path, text))
    for part in (
        "round-ms is -1; it is a number from 0 to 60000",
        "colour is no key",
        "[target]: bootstrap.servers: 'central:no' has no valid port",
        "[target]: replication-factor is 0; it is a number from 1 to 100",
        "[target]: sasl.kerberos.service.name is not supported",
        "[[source]] b/1: name is missing, or has other characters",
        "[[source]] b/1: topics: '(' is no regular expression",
        "[[source]] b/1: prefix 'a b': topic name 'a bx' has characters other than",
        "[[source]] b/1: start is 'now'; it can be earliest, latest",
        "[[source]] b/1: bootstrap.servers: '' names no broker",
        "[[source]] c: groups must be a list",
        "[[source]] c: topics is missing",
        "two sources have the name 'c'",
        "[[source]] c: /nowhere/ca.pem cannot be read",
        "[[source]] d: security.protocol must be a text",
        "[[source]] d: sasl.mechanism must be a text",
    ):
        assert part in found


def test_a_file_without_tables_a_missing_one_and_no_toml_are_said(tmp_path: Path) -> None:
    assert [each.split(";")[0] for each in problems_of(tmp_path, "")] == ["[target] is missing", "[[source]] is missing"]
    assert "is no TOML" in problems_of(tmp_path, "[")[0]
    with pytest.raises(ConfigurationProblems, match="No such file"):
        read_mirror_file(str(tmp_path / "none.toml"))


def test_a_password_that_all_users_may_read_is_refused(tmp_path: Path) -> None:
    text = SMALLEST + 'security.protocol = "SASL_SSL"\nsasl.mechanism = "PLAIN"\nsasl.username = "m"\nsasl.password = "p"\n'
    assert read(tmp_path, text, "right.toml").sources[0].cluster.security is not None
    (tmp_path / "open.toml").write_text(text)
    (tmp_path / "open.toml").chmod(0o644)
    (problem,) = problems_of(tmp_path, text, "open.toml", 0o644)
    assert "chmod o-r" in problem
    assert "the name of a mirror is its file's name" in problems_of(tmp_path, SMALLEST, "a b.toml")[0]
