"""The listeners for Kafka clients (`appliance/security/listeners.py`)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from appliance.base.settings import AUTHORIZERS, KafkaListener, default_settings, resolve_settings
from appliance.security.listeners import boxes_use_tls, mechanisms_of, plan_listeners

ROOT = Path(__file__).parent.parent.parent.parent
DEFAULT = KafkaListener("PLAINTEXT", "PLAINTEXT", "0.0.0.0", 9092, "box.example")
TWO = "PLAINTEXT://127.0.0.1:9091,CLIENTS://:9092"
MAP = "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT"


def plan(overrides: dict[str, object] | None = None, **settings: str) -> tuple[list[KafkaListener], list[str]]:
    chosen = {name.replace("_", "."): value for name, value in settings.items()}
    return plan_listeners({**default_settings(), **chosen}, overrides or {}, DEFAULT)


def test_without_the_setting_there_is_one_plaintext_listener() -> None:
    listeners, problems = plan()
    assert (listeners, problems) == ([DEFAULT], [])


def test_a_listener_on_all_addresses_advertises_the_name_of_the_box() -> None:
    listeners, problems = plan(listeners=TWO, listener_security_protocol_map=MAP)
    assert problems == []
    assert [listener.endpoint for listener in listeners] == [("PLAINTEXT", "127.0.0.1", 9091), ("CLIENTS", "box.example", 9092)]


def test_the_inter_broker_listener_is_the_first() -> None:
    listeners, problems = plan(listeners=TWO, listener_security_protocol_map=MAP, inter_broker_listener_name="clients")
    assert (listeners[0].name, problems) == ("CLIENTS", [])


def test_advertised_listeners_name_what_clients_connect_to() -> None:
    listeners, problems = plan(listeners=TWO, listener_security_protocol_map=MAP, advertised_listeners="CLIENTS://[fd00::1]:19092")
    assert problems == []
    assert listeners[1].endpoint == ("CLIENTS", "fd00::1", 19092)


def test_a_listener_may_have_limits_of_its_own() -> None:
    listeners, problems = plan({"listener.name.clients.max.connections": 5}, listeners=TWO, listener_security_protocol_map=MAP)
    assert problems == []
    assert [listener.settings for listener in listeners] == [{}, {"max.connections": 5}]


def test_all_problems_are_reported_at_once() -> None:
    overrides: dict[str, object] = {
        "listener.name.other.max.connections": 5,
        "listener.name.plaintext.num.partitions": 5,
        "listener.name.plaintext.max.connections": 0,
    }
    _, problems = plan(
        overrides,
        listeners="PLAINTEXT://:9092,plaintext://:1,CLIENTS://:9092,9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:SCRAM,x",
        advertised_listeners="OTHER://0.0.0.0:1",
        inter_broker_listener_name="INTERNAL",
    )
    words = "\n".join(problems)
    for expected in (
        "listeners has PLAINTEXT twice",
        "listeners has '9093'; it must look like NAME://HOST:PORT",
        "listener.security.protocol.map has 'x'",
        "advertised.listeners has OTHER, which listeners does not have",
        "advertised.listeners has OTHER with the host '0.0.0.0'",
        "there is no listener OTHER",
        "a listener cannot have num.partitions for itself",
        "max.connections is 0",
        "its security protocol is 'SCRAM'",
        "listeners has PLAINTEXT and CLIENTS on port 9092",
        "inter.broker.listener.name is INTERNAL, which listeners does not have",
    ):
        assert expected in words


def test_settings_that_need_listeners_are_reported_without_them() -> None:
    _, problems = plan(advertised_listeners="PLAINTEXT://a:1", inter_broker_listener_name="PLAINTEXT")
    assert [problem.partition(" ")[0] for problem in problems] == ["advertised.listeners", "inter.broker.listener.name"]


def test_two_plaintext_listeners_of_other_names_need_an_inter_broker_listener() -> None:
    _, problems = plan(listeners="A://:1,B://:2", listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT")
    assert problems == ["inter.broker.listener.name is not set; name one of A, B, through which boxes connect"]


def test_boxes_connect_through_an_ssl_listener_if_it_requires_certificates_and_through_none_with_sasl() -> None:
    chosen = {
        "listeners": "CLIENTS://:9092,BOXES://:9093",
        "listener_security_protocol_map": "CLIENTS:SASL_SSL,BOXES:SSL",
        "inter_broker_listener_name": "boxes",
    }
    override: dict[str, object] = {"listener.name.boxes.ssl.client.auth": "required"}
    listeners, problems = plan(override, **chosen)
    assert ([each.name for each in listeners], problems) == (["BOXES", "CLIENTS"], [])
    for auth in ("none", "requested"):
        _, problems = plan({"listener.name.boxes.ssl.client.auth": auth}, **{**chosen, "ssl_client_auth": "required"})
        assert len(problems) == 1 and f"ssl.client.auth is {auth}; set listener.name.boxes.ssl.client.auth to required" in problems[0]
    _, problems = plan(override, **{**chosen, "inter_broker_listener_name": "CLIENTS"})
    where = "inter.broker.listener.name is CLIENTS, which is SASL_SSL, and"
    names = ("inter.broker.user", "inter.broker.password.file", "ssl.truststore.location", "authorizer.class.name")
    assert problems == [f"{where} {name} is empty; set it" for name in names]
    login = {"inter_broker_user": "boxes", "inter_broker_password_file": "/p", "ssl_truststore_location": "/t", "authorizer_class_name": AUTHORIZERS[1]}
    listeners, problems = plan(override, **{**chosen, **login, "inter_broker_listener_name": "CLIENTS"})
    assert problems == [] and listeners[0].protocol == "SASL_SSL" and boxes_use_tls("SASL_SSL", "CLIENTS")
    _, problems = plan(override, **{**chosen, **login, "inter_broker_listener_name": "CLIENTS", "sasl_mechanism_inter_broker_protocol": "PLAIN"})
    assert problems == [f"{where} its sasl.enabled.mechanisms does not have PLAIN (sasl.mechanism.inter.broker.protocol)"]
    again: dict[str, object] = {**override, "listener.name.clients.connections.max.reauth.ms": 1000}
    _, problems = plan(again, **{**chosen, **login, "inter_broker_listener_name": "CLIENTS"})
    assert len(problems) == 1 and "set listener.name.clients.connections.max.reauth.ms to 0" in problems[0]
    in_clear = {**chosen, **login, "listener_security_protocol_map": "BOXES:SSL,CLIENTS:SASL_PLAINTEXT", "inter_broker_listener_name": "CLIENTS"}
    _, problems = plan(override, **in_clear)
    assert problems == ["inter.broker.listener.name is CLIENTS, which is SASL_PLAINTEXT; boxes log in with TLS only: name a SASL_SSL, SSL or PLAINTEXT one"]


def test_a_listener_with_sasl_has_mechanisms_and_plain_needs_tls() -> None:
    two = {"listeners": TWO, "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT"}
    listeners, problems = plan(**two)
    assert problems == []
    assert [mechanisms_of(each, default_settings()) for each in listeners] == [(), ("SCRAM-SHA-256", "SCRAM-SHA-512")]
    _, problems = plan({"listener.name.clients.sasl.enabled.mechanisms": "plain,GSSAPI"}, **two)
    assert len(problems) == 2 and "has GSSAPI; it can have" in problems[0] and "PLAIN, which sends passwords in clear text" in problems[1]
    override: dict[str, object] = {"listener.name.clients.sasl.enabled.mechanisms": "PLAIN", "listener.name.clients.sasl.plain.without.tls": True}
    listeners, problems = plan(override, **two)
    assert problems == [] and mechanisms_of(listeners[1], default_settings()) == ("PLAIN",)
    _, problems = plan(listeners=TWO, listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL", sasl_enabled_mechanisms=" ")
    assert any("is empty" in problem for problem in problems)
    _, problems = plan(listeners=TWO, listener_security_protocol_map="PLAINTEXT:SASL_SSL,CLIENTS:SASL_SSL")
    assert any("has no PLAINTEXT listener" in problem for problem in problems)


def test_the_listeners_of_the_documentation_are_valid() -> None:
    """The blocks of docs/security.md, which an operator copies; `tests/security/test_closed_box.py` runs the one before them."""
    blocks = [tomllib.loads(block) for block in re.findall(r"```\n(\"listeners\".*?)```", (ROOT / "docs/security.md").read_text(), re.DOTALL)]
    protocols = []
    for block in blocks:
        overrides = {name: block.pop(name) for name in list(block) if name.startswith("listener.name.")}
        settings, problems = resolve_settings(block, "docs/security.md")
        assert problems == []
        listeners, problems = plan_listeners(settings, overrides, DEFAULT, is_alone=True)
        assert problems == []
        protocols.append([listener.protocol for listener in listeners])
    assert protocols == [["SSL"], ["SSL", "SASL_SSL"]]


def test_oauthbearer_wants_to_know_whose_tokens_it_takes_and_where_their_keys_are() -> None:
    settings = default_settings() | {
        "listeners": "PLAINTEXT://127.0.0.1:9091,CLIENTS://0.0.0.0:9092",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
    }
    _, problems = plan_listeners(settings, {}, DEFAULT)
    assert [problem.split(" is empty")[0].rpartition(".")[2] for problem in problems] == ["url", "issuer", "audience"]
    known = {"sasl.oauthbearer.expected.issuer": "https://issuer", "sasl.oauthbearer.expected.audience": "logs"}
    for url, is_right in {
        "https://issuer.example.com/keys": True,
        "http://127.0.0.1:8080/keys": True,
        "file:///etc/millrace/keys.json": True,
        "http://issuer.example.com/keys": False,
        "http://localhost.example.com/keys": False,
        "https://user@issuer.example.com/keys": False,
        "ftp://issuer/keys": False,
        "/etc/keys.json": False,
    }.items():
        _, problems = plan_listeners(settings | known | {"sasl.oauthbearer.jwks.endpoint.url": url}, {}, DEFAULT)
        assert (problems == []) is is_right, url


def test_a_box_alone_needs_no_plaintext_listener() -> None:
    settings = {**default_settings(), "listeners": "CLIENTS://:9092", "listener.security.protocol.map": "CLIENTS:SASL_SSL"}
    listeners, problems = plan_listeners(settings, {}, DEFAULT, is_alone=True)
    assert (problems, [each.name for each in listeners]) == ([], ["CLIENTS"])
    _, problems = plan_listeners(settings, {}, DEFAULT)
    assert problems == [
        "listeners has no PLAINTEXT listener, through which the boxes of a cluster connect; add one, or set inter.broker.listener.name to an SSL one"
    ]


def test_a_box_alone_with_encrypted_listeners_has_no_certificate_for_other_boxes() -> None:
    """Each of its processes logged at its start that the authorities of other boxes were missing."""
    assert boxes_use_tls("SSL", "BOXES")
    assert not any(boxes_use_tls(*case) for case in (("SSL", ""), ("SASL_SSL", ""), ("PLAINTEXT", "PLAINTEXT")))
