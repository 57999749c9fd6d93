"""`millrace user` without a box: where a password comes from, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from appliance.base.errors import RequestRefused
from appliance.client import messages
from appliance.client.security import ClientSecurity, client_security, read_properties
from appliance.command.failures import UsageProblem
from appliance.command.kafka import read_security, spark_options
from appliance.command.user import add, delete, list_all, read_password
from appliance.pipeline.cluster_access import access_from
from tests.unit.client.fake_kafka_broker import FakeKafkaBroker

JAAS = r'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="a\"b\\c";'


def test_a_password_is_the_first_line_of_a_file_or_of_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "password"
    path.write_text("pass word ü\nsecond\n")
    assert read_password("alice", str(path)) == "pass word ü"
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin\r\n"))
    assert read_password("alice", None) == "from stdin"


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 1001, b"nul\0nul\0nul\n", b"\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_a_password_that_cannot_be_one_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "password"
    path.write_bytes(content)
    with pytest.raises(UsageProblem) as refused:
        read_password("alice", str(path))
    assert "short" not in str(refused.value) and "nul\0" not in str(refused.value)


def test_what_may_not_be_done_names_the_right_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("long enough\n")
    broker = FakeKafkaBroker()
    refusal = {"throttle_time": 0, "error_code": 31, "error_message": "Cluster authorization failed.", "results": []}
    broker.answers[messages.DESCRIBE_USER_SCRAM_CREDENTIALS] = lambda _request: refusal
    bootstrap = str(broker.address)
    try:
        with pytest.raises(RequestRefused, match=r"could not set the password of user 'alice': the right Alter on the cluster is missing \(CLUSTER_AUTH"):
            add("alice", password_file=str(tmp_path / "password"), bootstrap=bootstrap)
        with pytest.raises(RequestRefused, match="could not delete user 'alice': the right Alter on the cluster is missing"):
            delete("alice", bootstrap=bootstrap)
        with pytest.raises(RequestRefused, match="could not list users: the right Describe on the cluster is missing"):
            list_all(bootstrap=bootstrap)
    finally:
        broker.close()


def test_a_missing_file_and_wrong_options_are_refused_before_a_broker_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="No such file"):
        read_password("alice", str(tmp_path / "missing"))
    with pytest.raises(UsageProblem, match="PLAIN verifies passwords against these"):
        add("alice", mechanism=["PLAIN"])
    with pytest.raises(UsageProblem, match="4096 to 16384"):
        add("alice", iterations=100)


def test_the_options_of_kafkas_clients_are_understood() -> None:
    text = f"# a comment\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={JAAS}\nssl.truststore.type=PEM\nrequest.timeout.ms=1\n"
    security = client_security(read_properties(text + "ssl.truststore.location=/ca.pem\nssl.endpoint.identification.algorithm=\n"), "file")
    assert security == ClientSecurity("SASL_SSL", "SCRAM-SHA-512", "alice", 'a"b\\c', "/ca.pem", "", False)
    assert 'a"b' not in repr(security)
    librdkafka = "security.protocol=sasl_ssl\nsasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password=x=y\nssl.ca.location=/ca.pem\n"
    assert client_security(read_properties(librdkafka), "file") == ClientSecurity("SASL_SSL", "PLAIN", "alice", "x=y", "/ca.pem")
    assert client_security(read_properties(""), "file") == ClientSecurity("PLAINTEXT")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=TLS", "security.protocol is 'TLS'"),
        ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism is ''"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=hidden", "clear text"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.password=hidden", "has no username"),
        ("ssl.truststore.password=hidden", "ssl.truststore.password is not supported"),
        ("ssl.truststore.type=JKS", "only PEM"),
    ],
)
def test_what_cannot_be_done_is_refused_without_showing_a_password(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    with pytest.raises(UsageProblem) as refused:
        read_security(str(path))
    assert words in str(refused.value) and str(path) in str(refused.value) and "hidden" not in str(refused.value)


def test_spark_jobs_get_the_options_of_the_properties_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\nssl.truststore.location=/ca.pem\nclient.id=x\n")
    monkeypatch.setenv("MILLRACE_COMMAND_CONFIG", str(file))
    wanted = {"kafka.bootstrap.servers": "box:9093", "kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/ca.pem"}
    assert spark_options("box:9093", None, None) == wanted
    assert access_from(wanted).security == ClientSecurity("SSL", authorities="/ca.pem")
    file.write_text("security.protocol=SASL_SSL\n")
    with pytest.raises(UsageProblem, match=r"sasl\.mechanism"):
        spark_options("box:9093", None, None)
    monkeypatch.delenv("MILLRACE_COMMAND_CONFIG")
    assert spark_options("box:9093", None, None) == {"kafka.bootstrap.servers": "box:9093"}
