"""SASL on the Kafka path: one real box, real clients of four kinds, users of `millrace user` and of Kafka's tool."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

from appliance.base.clock import SystemClock
from appliance.base.errors import ErrorCode
from appliance.base.settings import load_box
from appliance.client.address import Address
from appliance.client.connection import ClientConnection
from appliance.client.errors import BrokerUnreachable, ConnectionLost
from appliance.client.messages import METADATA, ClientApi
from appliance.client.security import AuthenticationFailed, ClientSecurity, client_security
from appliance.command import user
from appliance.command.kafka import open_cluster
from appliance.protocol import token_apis
from appliance.protocol.metadata import MetadataRequest
from appliance.security.delegation_tokens import password_of
from lab.certificates import Authority
from lab.real_kafka import kafka_configs, skip_without_kafka
from lab.running_box import RunningBox, eventually, start_box
from lab.token_issuer import AUDIENCE, ISSUER, TokenIssuer, key_set
from services.mirror.cluster_check import check_clusters
from services.mirror.mirror import Mirror
from services.mirror.mirror_file import read_mirror_file
from services.mirror.source import MirroredPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

pytestmark = [pytest.mark.system, pytest.mark.slow]
SECONDS = 20
PASSWORD = "correct horse battery staple"
PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "CLIENTS": "SASL_PLAINTEXT", "SECURE": "SASL_SSL", "EXPIRES": "SASL_PLAINTEXT", "TOKENS": "SASL_SSL"}
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


class Place:
    """A box with a loopback listener for administration, SASL without and with TLS, one whose sessions expire at once, and one for bearer tokens."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        made = self.authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
        keystore = made.write_keystore(directory / "keystore.pem")
        self.issuer = TokenIssuer(directory)
        self.publish(self.issuer)
        (directory / "token-key").write_text("a key that is nowhere else\n")
        (directory / "token-key").chmod(0o600)
        self.box: RunningBox = start_box(
            directory / "box",
            disks=1,
            settings={
                "listeners": ",".join(f"{name}://127.0.0.1:0" for name in PROTOCOLS),
                "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
                "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": f"file://{directory}/keys.json",
                "sasl.oauthbearer.expected.issuer": ISSUER,
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "listener.name.secure.sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.secure.connections.max.reauth.ms": 3_600_000,
                "listener.name.expires.connections.max.reauth.ms": 1,
                "ssl.keystore.location": str(keystore),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:root;User:ANONYMOUS",
                "delegation.token.secret.key.file": str(directory / "token-key"),
                "request.frame.timeout.ms": 20_000,
            },
        )
        self.ports = {listener.name: listener.port for listener in load_box(self.box.layout).kafka_listeners}
        self.silent = socket.create_connection(("127.0.0.1", self.ports["CLIENTS"]), SECONDS)
        for name in ("alice", "root"):
            self.add(name)

    @property
    def administration(self) -> str:
        """Where `millrace` connects."""
        return f"127.0.0.1:{self.ports['PLAINTEXT']}"

    def add(self, name: str, password: str = PASSWORD) -> None:
        """`millrace user add`."""
        path = self.directory / "password"
        path.write_text(f"{password}\n")
        user.add(name, password_file=str(path), bootstrap=self.administration)
        path.unlink()

    def settings_of(self, mechanism: str, user: str = "alice", password: str = PASSWORD, listener: str = "SECURE") -> dict[str, Any]:
        """Settings of librdkafka."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports[listener]}",
            "security.protocol": "SASL_SSL" if listener == "SECURE" else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.certificate),
            "log_level": 0,
        }

    def connect(self, listener: str, mechanism: str = "SCRAM-SHA-256", user: str = "alice", password: str = PASSWORD) -> ClientConnection:
        """A connection of our own client."""
        protocol = "SASL_SSL" if listener == "SECURE" else "SASL_PLAINTEXT"
        security = ClientSecurity(protocol, mechanism, user, password, str(self.authority.certificate))
        return ClientConnection(Address("127.0.0.1", self.ports[listener]), security=security)

    def publish(self, *issuers: TokenIssuer) -> None:
        """Replace the keys that verify tokens."""
        new = self.directory / "keys.json.new"
        new.write_bytes(key_set(*(issuer.public_key() for issuer in issuers)))
        new.rename(self.directory / "keys.json")

    def token_settings(self, token: Callable[[], str]) -> dict[str, Any]:
        """Settings of librdkafka for OAUTHBEARER."""
        wanted = {**self.settings_of("OAUTHBEARER", listener="TOKENS"), "security.protocol": "SASL_SSL", "oauth_cb": lambda _: (token(), time.time() + 600)}
        return {name: value for name, value in wanted.items() if name not in ("sasl.username", "sasl.password")}

    def connect_by_token(self, token: str) -> ClientConnection:
        path = self.directory / "token"
        path.write_text(f"{token}\n")
        security = ClientSecurity("SASL_SSL", "OAUTHBEARER", authorities=str(self.authority.certificate), token_file=str(path))
        return ClientConnection(Address("127.0.0.1", self.ports["TOKENS"]), security=security)

    def counter(self, name: str) -> int:
        return self.box.counters("acceptor@0").values.get(name, 0)

    def closed(self, reason: str) -> int:
        return self.counter(f'acceptor.closed{{reason="{reason}"}}')


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("sasl"))
    admin = AdminClient({"bootstrap.servers": made.administration, "log_level": 0})
    allowed = [
        AclBinding(kind, "logs", ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    for result in admin.create_acls(allowed).values():
        result.result(SECONDS)
    yield made
    made.silent.close()
    assert made.box.stop() == 0


def produce(settings: dict[str, Any], topic: str, value: bytes) -> object:
    """The error of the record, None if it was stored."""
    errors: list[object] = []
    producer = Producer(settings)
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    return errors[0] if errors else "not delivered"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_produces_and_consumes_with_the_rights_of_its_user(place: Place, mechanism: str) -> None:
    settings = place.settings_of(mechanism)
    assert produce(settings, "logs", mechanism.encode()) is None
    assert "TOPIC_AUTHORIZATION_FAILED" in repr(produce(settings, "other", b""))
    consumer = Consumer({**settings, "group.id": "logs", "auto.offset.reset": "earliest"})
    consumer.subscribe(["logs"])
    found = []
    while mechanism.encode() not in found:
        message = consumer.poll(SECONDS)
        assert message is not None and message.error() is None
        found.append(message.value())
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_of_kafka_0_10_log_in_by_frames_without_headers(place: Place, mechanism: str) -> None:
    """SaslHandshake 0, as librdkafka speaks it with brokers that it takes for old ones."""
    old = {"api.version.request": False, "broker.version.fallback": "0.10.0.0"}
    assert produce({**place.settings_of(mechanism), **old}, "logs", b"old") is None


@pytest.mark.parametrize(("mechanism", "listener"), [("SCRAM-SHA-256", "CLIENTS"), ("SCRAM-SHA-512", "CLIENTS"), ("PLAIN", "SECURE")])
def test_kafka_python_and_kcat_log_in(place: Place, mechanism: str, listener: str) -> None:
    wanted = place.settings_of(mechanism, listener=listener)
    producer = KafkaProducer(
        bootstrap_servers=wanted["bootstrap.servers"],
        security_protocol=wanted["security.protocol"],
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=PASSWORD,
        ssl_cafile=str(place.authority.certificate),
    )
    producer.send("logs", b"python").get(SECONDS)
    producer.close()
    if (kcat := shutil.which("kcat")) is not None:
        options = [f"-X{name}={value}" for name, value in wanted.items() if name not in ("bootstrap.servers", "log_level")]
        command = [kcat, "-b", wanted["bootstrap.servers"], "-t", "logs", "-P", *options]
        ended = subprocess.run(command, input="kcat\n", capture_output=True, text=True, check=False, timeout=SECONDS)
        assert ended.returncode == 0, ended.stderr


def test_java_logs_in_and_sets_a_user_with_kafkas_tool(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_kafka()
    properties = place.directory / "java.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={place.authority.certificate}\n"
        f'sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="root" password="{PASSWORD}";\n'
    )
    options = ("--command-config", str(properties), "--entity-type", "users", "--entity-name", "carol")
    kafka_configs(f"localhost:{place.ports['SECURE']}", *options, "--alter", "--add-config", f"SCRAM-SHA-256=[iterations=8192,password={PASSWORD}]")
    user.list_all(as_json=True, bootstrap=place.administration)
    listed = json.loads(capsys.readouterr().out)
    assert {"user": "carol", "mechanism": "SCRAM-SHA-256", "iterations": 8192} in listed
    place.connect("CLIENTS", user="carol").close()


def test_our_own_client_logs_in_by_each_mechanism_and_again_within_its_session(place: Place) -> None:
    for mechanism in MECHANISMS:
        connection = place.connect("SECURE", mechanism)
        again = ClientSecurity("SASL_SSL", mechanism, "alice", PASSWORD)
        again.authenticate(connection.request, connection.address)
        assert connection.request(METADATA, MetadataRequest(())).brokers
        with pytest.raises(AuthenticationFailed):
            again._replace(user="root").authenticate(connection.request, connection.address)
        connection.close()


def test_librdkafka_and_kafka_python_log_in_by_bearer_tokens(place: Place) -> None:
    assert produce(place.token_settings(place.issuer.token), "logs", b"token") is None
    assert "TOPIC_AUTHORIZATION_FAILED" in repr(produce(place.token_settings(place.issuer.token), "other", b""))

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return place.issuer.token()

    producer = KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{place.ports['TOKENS']}",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
        ssl_cafile=str(place.authority.certificate),
    )
    producer.send("logs", b"python").get(SECONDS)
    producer.close()


def test_java_logs_in_by_a_bearer_token(place: Place) -> None:
    skip_without_kafka()
    token, properties = place.directory / "java.token", place.directory / "token.properties"
    token.write_text(place.issuer.token("root"))
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={place.authority.certificate}\n"
        "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url=file://{token}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;\n"
    )
    bootstrap = f"localhost:{place.ports['TOKENS']}"
    options = ("--command-config", str(properties), "--entity-type", "users", "--entity-name", "dave")
    kafka_configs(bootstrap, *options, "--alter", "--add-config", f"SCRAM-SHA-256=[iterations=8192,password={PASSWORD}]")
    place.connect("CLIENTS", user="dave").close()
    with open_cluster(bootstrap, None, None, command_config=str(properties)) as cluster:
        assert "logs" in cluster.metadata(None).topics


def test_tokens_that_are_refused_and_keys_that_change(place: Place, tmp_path: Path) -> None:
    """A new key is found when its first token comes, at the latest; without keys the last ones are used."""
    failed = place.counter("acceptor.authentications_failed")
    other = TokenIssuer(tmp_path, "second")
    for token in (place.issuer.token(seconds=-60), place.issuer.token(aud="others"), "no.jwt.here", place.issuer.token("alice")[:-3]):
        with pytest.raises(AuthenticationFailed, match="invalid_token"):
            place.connect_by_token(token)
    assert place.counter("acceptor.authentications_failed") == failed + 4

    def is_refused() -> bool:
        try:
            place.connect_by_token(other.token())
        except AuthenticationFailed:
            return True
        except (ConnectionLost, BrokerUnreachable):  # the keys are about to be read again: Java would repeat this, and end at a refusal
            return False
        raise AssertionError("its key is not published")

    eventually(is_refused, "the keys were read again, and its key is not among them")
    (place.directory / "keys.json").write_text("{}")
    eventually(lambda: "the last ones are used" in place.box.messages, "that is logged")
    place.connect_by_token(place.issuer.token()).close()
    place.publish(other, place.issuer)

    def is_known() -> bool:
        with suppress(AuthenticationFailed, ConnectionLost, BrokerUnreachable):
            place.connect_by_token(other.token()).close()
            return True
        return False

    eventually(is_known, "the second key is used")
    place.connect_by_token(place.issuer.token()).close()
    assert place.counter("acceptor.token_keys_failed") >= 1
    assert "eyJ" not in place.box.messages, "no token is logged"


def test_a_session_ends_with_its_token(place: Place) -> None:
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        place.connect_by_token(place.issuer.token("\ud800"))
    connection = place.connect_by_token(place.issuer.token(seconds=-10))  # within the skew of clocks
    eventually(lambda: is_closed(connection), "the token has ended")


def is_closed(connection: ClientConnection) -> bool:
    try:
        connection.request(METADATA, MetadataRequest(()))
    except ConnectionLost:
        return True
    return False


def test_a_session_that_has_expired_is_closed(place: Place) -> None:
    connection = place.connect("EXPIRES")
    eventually(lambda: is_closed(connection), "the session has expired")
    eventually(lambda: place.closed("session-expired"), "it is counted")


def test_wrong_passwords_and_unknown_users_are_refused_alike_and_counted(place: Place) -> None:
    failed = place.counter("acceptor.authentications_failed")
    wrong = "a wrong password that is nowhere"
    texts = set()
    for mechanism in MECHANISMS:
        for name in ("alice", "no\nbody"):
            with pytest.raises(AuthenticationFailed) as refused:
                place.connect("SECURE", mechanism, name, wrong)
            texts.add(str(refused.value).partition(": ")[2])
    assert texts == {f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}" for mechanism in MECHANISMS}
    assert place.counter("acceptor.authentications_failed") >= failed + 6


CREATE_TOKEN = ClientApi(token_apis.CREATE_DELEGATION_TOKEN_REQUEST, token_apis.CREATE_DELEGATION_TOKEN_RESPONSE, 1, 3)
EXPIRE_TOKEN = ClientApi(token_apis.EXPIRE_DELEGATION_TOKEN_REQUEST, token_apis.EXPIRE_DELEGATION_TOKEN_RESPONSE, 1, 2)


@pytest.mark.parametrize("mechanism", MECHANISMS[:2])
def test_a_delegation_token_has_the_rights_of_its_owner_and_makes_no_token(place: Place, mechanism: str) -> None:
    with closing(place.connect("SECURE")) as alice:
        made = alice.request(CREATE_TOKEN, token_apis.CreateDelegationTokenRequest(max_lifetime_ms=600_000))
        assert made.error_code == 0 and produce(place.settings_of(mechanism), "logs", b"topic") is None
        for_other = token_apis.CreateDelegationTokenRequest("User", "root")
        assert alice.request(CREATE_TOKEN, for_other).error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        jaas = (
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{made.token_id}" password="{password_of(made.hmac)}" tokenauth="true";'
        )
        options = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
        security = client_security({**options, "ssl.truststore.location": str(place.authority.certificate)}, "test")

        def log_in() -> ClientConnection | None:
            with suppress(AuthenticationFailed):  # the other acceptor may not have read the image
                return ClientConnection(Address("127.0.0.1", place.ports["SECURE"]), security=security)
            return None

        with closing(eventually(log_in, "a login")) as token:
            topics = {topic.name for topic in token.request(METADATA, MetadataRequest(None)).topics}
            assert "logs" in topics and "__millrace_audit" not in topics
            refused = token.request(CREATE_TOKEN, token_apis.CreateDelegationTokenRequest())
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert alice.request(EXPIRE_TOKEN, token_apis.ExpireDelegationTokenRequest(made.hmac, -1)).error_code == 0

        def is_refused() -> bool:
            if (connection := log_in()) is not None:
                connection.close()
            return connection is None

        eventually(is_refused, "no login")
    with closing(ClientConnection(Address("127.0.0.1", place.ports["PLAINTEXT"]))) as anonymous:
        refused = anonymous.request(CREATE_TOKEN, token_apis.CreateDelegationTokenRequest())
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    for path in place.box.directory.rglob("*.log"):
        assert password_of(made.hmac).encode() not in path.read_bytes()


def test_no_file_of_the_box_has_a_password_and_only_one_has_credentials(place: Place) -> None:
    holders = set()
    for root in (place.box.directory, Path(place.box.layout.runtime_directory)):
        for path in root.rglob("*"):
            if path.is_file():
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    continue  # it was replaced
                assert PASSWORD.encode() not in content and b"a wrong password that is nowhere" not in content, path
                if b"stored_key" in content and "zookeeper" not in path.parts:
                    holders.add(path.name)
    assert holders == {"credential-image"}
    assert "stored_key" not in json.dumps(place.box.status())


def test_a_deleted_user_and_a_former_password_cannot_log_in_again(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.add("mallory")
    place.connect("CLIENTS", user="mallory").close()
    place.add("mallory", "another password")
    place.connect("CLIENTS", user="mallory", password="another password").close()
    with pytest.raises(AuthenticationFailed):
        place.connect("CLIENTS", user="mallory")
    user.delete("mallory", yes=True, bootstrap=place.administration)
    with pytest.raises(AuthenticationFailed):
        place.connect("CLIENTS", user="mallory", password="another password")
    assert capsys.readouterr().out == "added user 'mallory'\nchanged the password of user 'mallory'\ndeleted user 'mallory'\n"


@pytest.mark.parametrize("request_bytes", [struct.pack(">ihhih", 10, 3, 0, 1, -1), b"\x7f\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_comes_before_the_authentication_ends_the_connection(place: Place, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", place.ports["CLIENTS"]), SECONDS) as client:
        client.sendall(request_bytes)
        assert client.recv(1) == b""
    eventually(lambda: place.closed("unauthenticated-request") + place.closed("frame-too-large"), "it is counted")


def test_plaintext_listeners_answer_that_they_have_no_sasl(place: Place) -> None:
    connection = ClientConnection(Address("127.0.0.1", place.ports["PLAINTEXT"]))
    with pytest.raises(AuthenticationFailed, match="has no SASL"):
        ClientSecurity("SASL_PLAINTEXT", "SCRAM-SHA-256", "alice", PASSWORD).authenticate(connection.request, connection.address)
    connection.close()
    with pytest.raises(KafkaException):
        AdminClient({**place.settings_of("SCRAM-SHA-256", listener="PLAINTEXT"), "socket.timeout.ms": 1000}).list_topics(timeout=2)
    assert ErrorCode.ILLEGAL_SASL_STATE == 34


def test_commands_reach_a_closed_listener_with_the_options_of_kafka(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    properties = place.directory / "command.properties"
    properties.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=root\nsasl.password={PASSWORD}\nssl.ca.location={place.authority.certificate}\n"
    )
    bootstrap = f"127.0.0.1:{place.ports['SECURE']}"
    user.list_all(bootstrap=bootstrap, command_config=str(properties))
    assert "alice" in capsys.readouterr().out
    with pytest.raises(BrokerUnreachable, match="a listener with TLS ends connections like this"):
        ClientConnection(Address("127.0.0.1", place.ports["SECURE"]))
    monkeypatch.setenv("MILLRACE_COMMAND_CONFIG", str(properties))
    with open_cluster(bootstrap, None, None) as cluster:
        assert "logs" in cluster.metadata(None).topics


def test_a_connection_that_does_not_authenticate_is_closed(place: Place) -> None:
    """It was opened before the other tests."""
    place.silent.settimeout(3 * SECONDS)
    assert place.silent.recv(1) == b""
    eventually(lambda: place.closed("authentication-timeout"), "it is counted")
    place.silent.close()


def test_a_mirror_reads_and_writes_with_the_rights_of_its_user(place: Place, tmp_path: Path) -> None:
    """The box is source and target. A topic that the user may not write to waits, and the other one is copied."""
    place.add("mirror")
    admin = AdminClient({"bootstrap.servers": place.administration, "log_level": 0})

    def allow(kind: ResourceType, name: str, *operations: AclOperation, pattern: ResourcePatternType = ResourcePatternType.PREFIXED) -> None:
        bindings = [AclBinding(kind, name, pattern, "User:mirror", "*", operation, AclPermissionType.ALLOW) for operation in operations]
        for result in admin.create_acls(bindings).values():
            result.result(SECONDS)

    allow(ResourceType.TOPIC, "from-", AclOperation.READ)
    allow(ResourceType.TOPIC, "m.from-", AclOperation.CREATE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ)
    allow(ResourceType.TOPIC, "m.from-yes", AclOperation.WRITE)
    for topic in ("from-yes", "from-no"):
        assert produce({"bootstrap.servers": place.administration, "log_level": 0}, topic, topic.encode()) is None
    options = {name: value for name, value in place.settings_of("SCRAM-SHA-512", "mirror").items() if isinstance(value, str)}
    client = "".join(f'"{name}" = "{value}"\n' for name, value in options.items())
    file = tmp_path / "m.toml"
    file.touch(0o600)
    file.write_text(f'round-ms = 0\n[target]\n{client}[[source]]\nname = "m"\ntopics = ["from-.*"]\n{client}')
    options_of_file = read_mirror_file(str(file))
    target, source = check_clusters(options_of_file)
    assert source.found.endswith("; topics selected: 2 of 2") and target.found.endswith("; topics: 0 there, 2 to create")
    assert source.problems == ["the right DescribeConfigs is missing for topics from-no, from-yes"]
    assert target.problems == [
        "could not describe group 'millrace-mirror.m.m': not allowed on this group (GROUP_AUTHORIZATION_FAILED)",
        "the right Write is missing for transactional id millrace-mirror.m",
    ]
    allow(ResourceType.TOPIC, "from-", AclOperation.DESCRIBE_CONFIGS)
    for kind in (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
        allow(kind, "millrace-mirror.", AclOperation.ALL)
    eventually(lambda: not [each.problems for each in check_clusters(options_of_file) if each.problems], "all rights are there")
    mirror = Mirror(options_of_file, SystemClock(), lambda text: None, time.sleep)

    def partitions(topic: str) -> list[MirroredPartition]:
        mirror.step()
        return [each for name, each in mirror.sources[0].partitions.items() if name.topic == topic]

    try:
        eventually(lambda: sum(each.records for each in partitions("from-yes")) == 1, "what may be written is copied")
        eventually(lambda: any(each.refusals for each in partitions("from-no")), "what may not be written is refused")
        (refused,) = [each for each in partitions("from-no") if each.refusals]
        assert refused.records == 0 and "TOPIC_AUTHORIZATION_FAILED" in refused.problem and mirror.problem == ""
        allow(ResourceType.TOPIC, "m.from-no", AclOperation.WRITE)
        eventually(lambda: sum(each.records for each in partitions("from-no")) == 1, "it is copied when it may be written")
    finally:
        mirror.close()
