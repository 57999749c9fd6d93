"""The audit of an acceptor: what requests change, what is counted together, what is never shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import orjson
import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.base.logging import Logger
from appliance.base.model import AUDIT_TOPIC
from appliance.cluster.credential_image import CredentialFollower, CredentialImage, write_credential_image
from appliance.cluster.metadata_image import MetadataImage
from appliance.cluster.quota_image import QuotaFollower, QuotaImage, write_quota_image
from appliance.cluster.state_log import AUDIT_CONFIGS, AUDIT_PARTITIONS
from appliance.cluster.token_image import TokenImage, write_token_image
from appliance.protocol import config_apis, group_offset_apis, quota_apis, reassignment_apis, sasl_apis, token_apis, topic_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.security.acl import AclOperation, AclResource
from appliance.security.authorizer import Authorizer
from appliance.security.delegation_tokens import DelegationToken, password_of, secret_of
from appliance.security.principals import PRIVILEGED, Principal, RequestOrigin, local_principal
from appliance.security.quotas import DEFAULT_NAME, PRODUCER_BYTE_RATE, QuotaEntity
from appliance.security.scram import ScramCredential, ScramMechanism
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout
from services.acceptor.audit import audited_requests
from services.acceptor.audit.audit_topic import WAITING_BYTES_MAX, AuditTopic
from services.acceptor.audit.audit_trail import (
    AUDITED,
    DECODED_ELEMENTS_MAX,
    ITEMS_MAX,
    PERIOD_NS,
    REMEMBERED_MAX,
    AuditTrail,
    may_be_without_member,
)
from services.acceptor.audit.audited_requests import ITEMS, read_change
from services.acceptor.connection import Connection
from tests.unit.protocol.sample_requests import samples

SALT, SALTED = b"the salt of alice", b"the salted password"


class _Records:
    """In place of the topic: keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def offer(self, value: bytes) -> None:
        self.events.append(orjson.loads(value))


class World(NamedTuple):
    trail: AuditTrail
    records: _Records
    clock: ManualClock
    counters: Counters
    arena: Arena

    def connection(self, flags: int = 0) -> Connection:
        made = Connection(cast(Any, None), "10.0.0.1", 0, RequestOrigin(local_principal(7), "CLIENTS", flags))
        made.listening = cast(Any, SimpleNamespace(name="CLIENTS"))
        return made

    def connection_of_box(self) -> Connection:
        """As far as one can see: a program on the machine of a box may look the same."""
        made = self.connection()
        made.listening = cast(Any, SimpleNamespace(name="BOXES", is_inter_broker=True))
        made.rights = cast(Any, SimpleNamespace(would_allow_on_cluster=lambda _operation: True))
        return made

    @property
    def told(self) -> list[tuple[str, str, int]]:
        return [(each["event"], each["outcome"], each["times"]) for each in self.records.events]


class _View:
    image = MetadataImage(0, "", -1, cast(Any, {1: None, 2: None}), {})
    broker_id = 0


@pytest.fixture
def world() -> Iterator[World]:
    with scratch_layout() as layout:
        counters, clock, records = Counters.create_or_adopt(layout, "acceptor@0", 1), ManualClock(), _Records()
        arena = Arena.create(layout.shared_memory_name("arena", "test", 1), 1 << 16, 1)
        trail = AuditTrail(cast(Any, _View()), clock, Logger("acceptor@0", descriptor=2), counters, cast(Any, records))
        yield World(trail, records, clock, counters, arena)
        arena.close()
        counters.close()


def header(key: ApiKey, version: int) -> RequestHeader:
    return RequestHeader(key, version, 7, "", 0)


@pytest.mark.slow
def test_every_audited_request_of_every_version_has_items_whatever_its_response_is(world: World) -> None:
    seen = set()
    assert ITEMS.keys() == AUDITED
    for sample in samples():
        if sample.api_key not in AUDITED:
            continue
        body = bytes(sample.body)
        change = read_change(sample.api_key, sample.version, body, MetadataImage.empty())
        assert list(change.items(None)) or sample.api_key in (ApiKey.DELETE_ACLS, ApiKey.ELECT_LEADERS)
        if sample.api_key != ApiKey.DELETE_RECORDS:
            assert all(item.error_code for item in change.items(change.refused(ErrorCode.POLICY_VIOLATION, "no")))
        seen.add(sample.api_key)
        pending = world.trail.begin(world.connection(), header(sample.api_key, sample.version), body)
        if pending is not None:
            pending.on_answer(None)
    assert seen == AUDITED
    assert {each["outcome"] for each in world.records.events} == {"unknown"}


def test_of_users_and_configs_no_secret_is_shown(world: World) -> None:
    scram = sasl_apis.AlterUserScramCredentialsRequest((), (sasl_apis.ScramCredentialUpsertion("alice", 1, 4096, SALT, SALTED),))
    body = sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST.encode(0, scram)
    pending = world.trail.begin(world.connection(), header(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0), body)
    assert pending is not None
    answer = sasl_apis.AlterUserScramCredentialsResponse(0, (sasl_apis.AlteredScramUser("alice"),))
    pending.on_answer(sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE.encode(0, answer))
    changes = (config_apis.ConfigToAlter("retention.ms", 0, "1000"), config_apis.ConfigToAlter("ssl.key.password", 0, "hush"))
    resources = tuple(config_apis.ResourceToAlter(kind, "x", changes) for kind in (config_apis.ResourceType.TOPIC, config_apis.ResourceType.BROKER))
    body = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(0, config_apis.IncrementalAlterConfigsRequest(resources))
    pending = world.trail.begin(world.connection(), header(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0), body)
    assert pending is not None
    pending.on_answer(None)
    shown = orjson.dumps(world.records.events)
    assert b"alice" in shown and b"SCRAM-SHA-256" in shown and b'"set":"1000"' in shown and b"***" in shown
    for secret in (SALT, SALTED, b"hush"):
        assert secret not in shown


def test_levels_of_loggers_are_shown_and_nothing_else_in_their_place(world: World) -> None:
    levels = (config_apis.ConfigToAlter("millrace.acceptor", 0, "DEBUG"), config_apis.ConfigToAlter("root", 0, "hush"))
    resource = config_apis.ResourceToAlter(config_apis.ResourceType.BROKER_LOGGER, "1", levels)
    body = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(0, config_apis.IncrementalAlterConfigsRequest((resource,)))
    pending = world.trail.begin(world.connection(), header(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0), body)
    assert pending is not None
    pending.on_answer(None)
    (event,) = world.records.events
    assert (event["event"], event["resource"]) == ("audit.config.altered", "loggers of broker 1")
    assert {name: each["set"] for name, each in event["details"]["configs"].items()} == {"millrace.acceptor": "DEBUG", "root": "***"}


def test_changes_of_users_and_quotas_show_what_was_before_and_no_credential(world: World) -> None:
    credential = ScramCredential.of_salted_password(ScramMechanism.SHA_256, SALT, SALTED.ljust(32), 8192).encode()
    quotas = {QuotaEntity("alice", DEFAULT_NAME): {PRODUCER_BYTE_RATE: 1_000.0}, QuotaEntity(address="::1"): {"connection_creation_rate": 5.0}}
    with scratch_layout() as layout:
        log = Logger("acceptor@0", descriptor=2)
        write_quota_image(layout.quota_image_file, QuotaImage(1, quotas))
        write_credential_image(layout.credential_image_file, CredentialImage(1, b"secret", {"alice": {"SCRAM-SHA-256": credential}}))
        followed = QuotaFollower(layout, log)
        followed.load()
        world.trail.follow_access(followed, lambda: CredentialFollower(layout, log))
        deletion = sasl_apis.ScramCredentialDeletion("alice", 1)
        added = [sasl_apis.ScramCredentialUpsertion(name, 1, 4096, SALT, SALTED) for name in ("alice", "bob")]
        for request in (sasl_apis.AlterUserScramCredentialsRequest((deletion,), ()), sasl_apis.AlterUserScramCredentialsRequest((), tuple(added))):
            body = sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST.encode(0, request)
            pending = world.trail.begin(world.connection(), header(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0), body)
            assert pending is not None
            write_credential_image(layout.credential_image_file, CredentialImage(1, b"secret", {}))  # the change is there before its answer
            pending.on_answer(None)
            write_credential_image(layout.credential_image_file, CredentialImage(2, b"secret", {"alice": {"SCRAM-SHA-256": credential}}))
        part, operation = quota_apis.QuotaEntityPart, quota_apis.QuotaOperation
        entries = (
            quota_apis.QuotasToAlter((part("user", "alice"), part("client-id", None)), (operation(PRODUCER_BYTE_RATE, 5.0),)),
            quota_apis.QuotasToAlter((part("user", "bob"),), (operation("request_percentage", 0.0, True),)),
            quota_apis.QuotasToAlter((part("ip", "0:0::1"),), (operation("connection_creation_rate", 7.0),)),
            quota_apis.QuotasToAlter((part("ip", "no address"),), (operation("connection_creation_rate", 7.0),)),
        )
        body = quota_apis.ALTER_CLIENT_QUOTAS_REQUEST.encode(0, quota_apis.AlterClientQuotasRequest(entries))
        pending = world.trail.begin(world.connection(), header(ApiKey.ALTER_CLIENT_QUOTAS, 0), body)
        assert pending is not None
        pending.on_answer(None)
    found = [(each["event"], each["resource"], each["details"].get("before", "unknown")) for each in world.records.events]
    assert found == [
        ("audit.user.deleted", "user alice", {"iterations": 8192}),
        ("audit.user.altered", "user alice", {"iterations": 8192}),
        ("audit.user.altered", "user bob", None),
        ("audit.quota.altered", "user alice, client-id (default)", {PRODUCER_BYTE_RATE: 1_000.0}),
        ("audit.quota.altered", "user bob", {"request_percentage": None}),
        ("audit.quota.altered", "ip 0:0::1", {"connection_creation_rate": 5.0}),
        ("audit.quota.altered", "ip no address", "unknown"),
    ]
    shown = orjson.dumps(world.records.events).decode()
    assert not any(part.partition("=")[2] in shown for part in credential.split(",") if not part.startswith("iterations"))


def test_changes_of_delegation_tokens_show_what_was_before_and_no_secret(world: World) -> None:
    secret = secret_of("id-1", "key")
    owner = Principal("User", "alice")
    token = DelegationToken("id-1", owner, owner, (), 1, 5_000, 9_000)
    with scratch_layout() as layout:
        write_token_image(layout.token_image_file, TokenImage(1, {"id-1": (token, secret)}))
        world.trail.follow_access(QuotaFollower(layout, Logger("test", descriptor=2)), lambda: CredentialFollower(layout, Logger("test", descriptor=2)))
        made = token_apis.CreateDelegationTokenResponse(0, *owner, *owner, 1, 5_000, 9_000, "id-1", secret)
        create = token_apis.CreateDelegationTokenRequest(renewers=(token_apis.TokenPrincipal("User", "bob"),))
        expiry = token_apis.TokenExpiryResponse(0, 7_000)
        for request, answer, user_request, user_answer in (
            (token_apis.CREATE_DELEGATION_TOKEN_REQUEST, token_apis.CREATE_DELEGATION_TOKEN_RESPONSE, create, made),
            (token_apis.RENEW_DELEGATION_TOKEN_REQUEST, token_apis.RENEW_DELEGATION_TOKEN_RESPONSE, token_apis.RenewDelegationTokenRequest(secret), expiry),
            (token_apis.EXPIRE_DELEGATION_TOKEN_REQUEST, token_apis.EXPIRE_DELEGATION_TOKEN_RESPONSE, token_apis.ExpireDelegationTokenRequest(secret), expiry),
            (token_apis.EXPIRE_DELEGATION_TOKEN_REQUEST, token_apis.EXPIRE_DELEGATION_TOKEN_RESPONSE, token_apis.ExpireDelegationTokenRequest(b"?"), expiry),
        ):
            pending = world.trail.begin(world.connection(), header(request.api.key, 2), request.encode(2, user_request))  # type: ignore[attr-defined]
            assert pending is not None
            pending.on_answer(answer.encode(2, user_answer))  # type: ignore[attr-defined]
    assert [(each["event"], each["resource"], each["details"]) for each in world.records.events] == [
        ("audit.token.created", "delegation token id-1", {"owner": "User:alice", "renewers": ["User:bob"], "expires_ms": 5_000, "max_ms": 9_000}),
        ("audit.token.renewed", "delegation token id-1", {"owner": "User:alice", "expires_ms": 7_000, "before": {"expires_ms": 5_000}}),
        ("audit.token.expired", "delegation token id-1", {"owner": "User:alice", "expires_ms": 7_000, "before": {"expires_ms": 5_000}}),
        ("audit.token.expired", "delegation token (unknown)", {"owner": None, "expires_ms": 7_000, "before": {"expires_ms": None}}),
    ]
    shown = repr(world.records.events)
    assert not any(text in shown for text in (secret.hex(), password_of(secret), repr(secret)[2:-1]))


def test_the_audit_topic_is_changed_by_an_administrator_on_the_machine_alone(world: World) -> None:
    body = topic_apis.DELETE_TOPICS_REQUEST.encode(5, topic_apis.DeleteTopicsRequest(topic_names=("logs", AUDIT_TOPIC)))
    for flags, is_refused in ((0, True), (PRIVILEGED, False)):
        pending = world.trail.begin(world.connection(flags), header(ApiKey.DELETE_TOPICS, 5), body)
        assert pending is not None and (pending.refusal is not None) is is_refused
        if pending.refusal is not None:
            found = topic_apis.DELETE_TOPICS_RESPONSE.decode(pending.refusal, 0, len(pending.refusal), 5)
            assert {each.error_code for each in found.topics} == {ErrorCode.POLICY_VIOLATION}


def test_no_number_and_no_size_of_a_request_ends_the_process(world: World) -> None:
    """A partition below 0 ended the acceptor; 100,000 names held its turn for more than a second."""
    moves = tuple(reassignment_apis.PartitionToReassign(number, (1,)) for number in (-5, -(1 << 31), (1 << 31) - 1))
    topics = (reassignment_apis.TopicToReassign("t", moves),)
    message = reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST
    many = topic_apis.DELETE_TOPICS_REQUEST.encode(5, topic_apis.DeleteTopicsRequest(topic_names=tuple(f"t-{number}" for number in range(20_000))))
    for key, version, body in (
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, message.encode(0, reassignment_apis.AlterPartitionReassignmentsRequest(topics=topics))),
        (ApiKey.DELETE_TOPICS, 5, many),
    ):
        pending = world.trail.begin(world.connection(), header(key, version), body)
        assert pending is not None
        pending.on_answer(None)
        pending.on_answer(b"\x00")
    assert [kind for kind, _outcome, _times in world.told] == ["audit.replicas.reassigned", "audit.unreadable", "audit.large", "audit.large"]
    named = topic_apis.DELETE_TOPICS_REQUEST.encode(5, topic_apis.DeleteTopicsRequest(topic_names=(*(f"t-{number}" for number in range(20_000)), AUDIT_TOPIC)))
    pending = world.trail.begin(world.connection(), header(ApiKey.DELETE_TOPICS, 5), named)
    assert pending is not None and pending.refusal is not None, "a large request does not get past the protection"


def test_a_client_that_calls_itself_a_box_is_audited_and_refused(world: World) -> None:
    body = topic_apis.DELETE_TOPICS_REQUEST.encode(5, topic_apis.DeleteTopicsRequest(topic_names=("logs", AUDIT_TOPIC)))
    named = header(ApiKey.DELETE_TOPICS, 5)._replace(client_id="controller of broker 1")
    pending = world.trail.begin(world.connection(), named, body, is_from_box=True)
    assert pending is not None and pending.refusal is not None
    pending.on_answer(None)
    assert {each["client"] for each in world.records.events} == {"10.0.0.1 (controller of broker 1)"}


def test_another_box_creates_the_audit_topic_as_boxes_do_and_changes_nothing_of_it(world: World) -> None:
    def refusal(key: ApiKey, version: int, body: bytes) -> bool:
        named = header(key, version)._replace(client_id="controller of broker 2")
        pending = world.trail.begin(world.connection_of_box(), named, body, is_from_box=True)
        assert pending is not None
        return pending.refusal is not None

    configs = tuple(topic_apis.TopicConfig(*each) for each in AUDIT_CONFIGS.items())
    own = topic_apis.CreatableTopic(AUDIT_TOPIC, AUDIT_PARTITIONS, 2, (), configs)
    for topic, is_refused in ((own, False), (own._replace(configs=configs[1:]), True), (own._replace(num_partitions=1), True)):
        assert refusal(ApiKey.CREATE_TOPICS, 5, topic_apis.CREATE_TOPICS_REQUEST.encode(5, topic_apis.CreateTopicsRequest((topic,), 1000))) is is_refused
    assert refusal(ApiKey.DELETE_TOPICS, 5, topic_apis.DELETE_TOPICS_REQUEST.encode(5, topic_apis.DeleteTopicsRequest(topic_names=(AUDIT_TOPIC,))))
    change = config_apis.ResourceToAlter(config_apis.ResourceType.TOPIC, AUDIT_TOPIC, (config_apis.ConfigToAlter("retention.ms", 0, "1"),))
    body = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(0, config_apis.IncrementalAlterConfigsRequest((change,)))
    assert refusal(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, body)


def test_no_padding_hides_what_was_changed(world: World) -> None:
    """Long values do not make a request large, and names that do not exist come behind those that do."""
    configs = (*(config_apis.ConfigToAlter("ssl.key.password", 0, "x" * 30_000) for _ in range(4)), config_apis.ConfigToAlter("retention.ms", 0, "9" * 30_000))
    resource = config_apis.ResourceToAlter(config_apis.ResourceType.TOPIC, "logs", configs)
    body = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(0, config_apis.IncrementalAlterConfigsRequest((resource,)))
    pending = world.trail.begin(world.connection(), header(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0), body)
    assert pending is not None
    pending.on_answer(None)
    assert world.told == [("audit.config.altered", "unknown", 1)] and len(orjson.dumps(world.records.events)) < 10_000
    names = (*(f"absent-{number}" for number in range(ITEMS_MAX + 10)), "present")
    body = topic_apis.DELETE_TOPICS_REQUEST.encode(5, topic_apis.DeleteTopicsRequest(topic_names=names))
    pending = world.trail.begin(world.connection(), header(ApiKey.DELETE_TOPICS, 5), body)
    assert pending is not None
    found = [topic_apis.DeletedTopic(name, error_code=ErrorCode.NONE if name == "present" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in names]
    pending.on_answer(topic_apis.encode_delete_topics_body(5, tuple(found)))
    first = world.records.events[1]
    assert (first["resource"], first["outcome"]) == ("topic present", "done") and world.records.events[-1]["times"] == 11


def test_a_large_request_is_recognised_by_its_event_and_shows_no_secret(world: World) -> None:
    users = tuple(sasl_apis.ScramCredentialUpsertion(f"user-{number}", 1, 4096, SALT, SALTED) for number in range(DECODED_ELEMENTS_MAX + 1))
    secret = sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST.encode(0, sasl_apis.AlterUserScramCredentialsRequest((), users))
    many = tuple(f"t-{number}" for number in range(DECODED_ELEMENTS_MAX + 1))
    names = topic_apis.DELETE_TOPICS_REQUEST.encode(5, topic_apis.DeleteTopicsRequest(topic_names=many))
    for key, version, body in ((ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, secret), (ApiKey.DELETE_TOPICS, 5, names)):
        pending = world.trail.begin(world.connection(), header(key, version), body)
        assert pending is not None
        pending.on_answer(None)
    of_users, of_topics = (each["details"] for each in world.records.events)
    assert of_users == {"bytes": len(secret), "sha256": hashlib.sha256(secret).hexdigest()}
    assert of_topics["sha256"] == hashlib.sha256(names).hexdigest() and "t-0" in of_topics["begins"]


def test_a_request_that_cannot_be_audited_is_refused_and_ends_no_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> bytes:
        raise KeyError("what no one thought of")

    monkeypatch.setattr(audited_requests, "read_change", fail)
    body = topic_apis.DELETE_TOPICS_REQUEST.encode(5, topic_apis.DeleteTopicsRequest(topic_names=("logs",)))
    pending = world.trail.begin(world.connection(), header(ApiKey.DELETE_TOPICS, 5), body)
    assert pending is not None and pending.refusal is not None
    answer = topic_apis.DELETE_TOPICS_RESPONSE.decode(pending.refusal, 0, len(pending.refusal), 5)
    assert [(each.name, each.error_code) for each in answer.topics] == [("logs", ErrorCode.UNKNOWN_SERVER_ERROR)]
    pending.on_answer(pending.refusal)
    assert [(each["event"], "what no one thought of" in each["outcome"]) for each in world.records.events] == [("audit.unreadable", True)]


def test_equal_denials_of_a_minute_are_two_events(world: World) -> None:
    authorizer = Authorizer()
    authorizer.on_denied = world.trail.on_denied
    rights = authorizer.rights_of("User:mallory", "10.0.0.9")
    for _ in range(100):
        assert not rights.allows(AclOperation.READ, AclResource.TOPIC, "secrets")
        assert not rights.would_allow(AclOperation.WRITE, AclResource.TOPIC, "secrets")
    assert world.told == [("audit.denied", "denied", 1)]
    world.clock.advance_ms(PERIOD_NS // 1_000_000)
    world.trail.sweep(world.clock.monotonic_ns())
    assert world.told[1:] == [("audit.denied", "denied", 99)]
    assert world.records.events[0]["resource"] == "read topic secrets" and world.records.events[0]["client"] == "10.0.0.9"
    world.clock.advance_ms(PERIOD_NS // 1_000_000)
    world.trail.sweep(world.clock.monotonic_ns())
    assert len(world.told) == 2


def test_a_flood_of_different_logins_is_counted_in_bounded_memory(world: World) -> None:
    for number in range(REMEMBERED_MAX + 500):
        world.trail.login_failed(f"user-{number}", "10.0.0.1", "CLIENTS", "PLAIN", "wrong password")
    assert len(world.told) == REMEMBERED_MAX
    world.clock.advance_ms(PERIOD_NS // 1_000_000)
    world.trail.sweep(world.clock.monotonic_ns())
    assert world.told[-1] == ("audit.login.failed", "various", 500)
    world.trail.login(world.connection(), "PLAIN")
    assert world.told[-1] == ("audit.login", "done", 1), "a flood of one kind hides no other"


def test_a_name_of_a_client_begins_no_line_of_the_log_and_breaks_no_record(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("alice\nERROR acceptor@0: forged", "half of a pair \ud800", "x" * 10_000):
        world.trail.login_failed(name, "10.0.0.1", "CLIENTS", "PLAIN", "wrong password")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("INFO acceptor@0: audit.login.failed: User:") for line in lines)
    assert [each["principal"][:10] for each in world.records.events] == ["User:alice", "User:half ", "User:xxxxx"]
    assert max(map(len, lines)) < 1_000


def test_commits_of_members_are_recognised_without_decoding_them() -> None:
    message = group_offset_apis.OFFSET_COMMIT_REQUEST
    topics = (group_offset_apis.OffsetCommitTopic("t", (group_offset_apis.OffsetCommitPartition(0, 5),)),)
    for version in range(1, 10):
        for name in ("", "g", "ü" * 100):
            of_tool = message.encode(version, group_offset_apis.OffsetCommitRequest(name, topics=topics))
            of_member = message.encode(version, group_offset_apis.OffsetCommitRequest(name, 3, "member", topics=topics))
            assert may_be_without_member(version, of_tool)
            assert not may_be_without_member(version, of_member) or len(name.encode()) > 126
    for hostile in (b"", b"\x00", b"\xff\xff", b"\x7f"):
        for version in (0, 2, 9):
            may_be_without_member(version, hostile)
    with pytest.raises(ProtocolViolation):
        read_change(ApiKey.OFFSET_COMMIT, 2, b"\xff\xff", MetadataImage.empty())


def test_records_that_cannot_be_written_are_dropped_and_counted(world: World) -> None:
    topic = AuditTopic(cast(Any, _View()), world.arena, cast(Any, None), world.clock, world.counters)
    for _ in range(5):
        topic.offer(bytes(WAITING_BYTES_MAX // 4))
    assert topic.do_work(world.clock.monotonic_ns()) == 1, "it waits for an image"
    assert world.counters.counter("acceptor.audit_dropped").value == 1 and topic.has_waiting
