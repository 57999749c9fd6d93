"""Fuzzed documents of access control lists and quotas: in ZooKeeper, notifications, images; addresses of clients.

What Kafka's tools and other boxes wrote is read, or refused with DocumentUnreadable; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from appliance.cluster.acl_znodes import STORES, decode_rules, encode_rules
from appliance.cluster.quota_image import QuotaImage
from appliance.cluster.security_image import SECURITY_HEADER, SecurityImage, SecurityImageUnreadable
from appliance.cluster.user_znodes import entity_of_path, entity_path
from appliance.cluster.znodes import DocumentUnreadable, decode_config, encode_config
from appliance.records.crc32c import crc32c
from appliance.security.acl import AccessRule, AclBinding, AclOperation, AclPermission, AclResource, PatternType, ResourcePattern, java_host
from appliance.security.authorizer import Authorizer
from appliance.security.quotas import PRODUCER_BYTE_RATE, ClientQuotas, QuotaEntity, quota_text, quota_values
from tests.fuzz.target import Target, Targets

_RULE = AccessRule("User:a", "*", AclOperation.READ, AclPermission.ALLOW)
_PATTERNS = (ResourcePattern(AclResource.TOPIC, "t", PatternType.LITERAL), ResourcePattern(AclResource.GROUP, "g", PatternType.PREFIXED))


def fuzz_acl_document(data: bytes) -> None:
    """A list is read as it would be written; an authorizer takes each rule that was read."""
    with suppress(DocumentUnreadable):
        rules = decode_rules("/p", data)
        assert decode_rules("/p", encode_rules(rules)) == rules
        authorizer = Authorizer()
        authorizer.replace([AclBinding.of(pattern, rule) for pattern in _PATTERNS for rule in rules])
        for rule in rules:
            authorizer.rights_of(rule.principal, "::1").operations(AclResource.TOPIC, "t")
    for store in STORES:
        with suppress(DocumentUnreadable):
            pattern = store.decode_change("/p", data)
            assert store.decode_change("/p", store.encode_change(pattern)) == pattern
    java_host(data.decode("latin-1"))


def fuzz_quota_document(data: bytes) -> None:
    """Quotas that are read can be written and used; a path that is read is the path of its entity."""
    with suppress(DocumentUnreadable):
        values = quota_values(decode_config("/p", data))
        assert quota_values({key: quota_text(key, value) for key, value in values.items()}).keys() == values.keys()
        ClientQuotas({QuotaEntity("u"): values}).limit(PRODUCER_BYTE_RATE, "u", "c")
    entity = entity_of_path(data.decode("utf-8", "replace"))
    assert entity is None or entity_of_path(entity_path(entity)) == entity


def fuzz_quota_image(data: bytes) -> None:
    with suppress(SecurityImageUnreadable):
        image = QuotaImage.decode(_with_checksum(data))
        assert QuotaImage.decode(image.encode()) == image
        ClientQuotas(image.quotas).limit(PRODUCER_BYTE_RATE, "u", "c")


def fuzz_security_image(data: bytes) -> None:
    with suppress(SecurityImageUnreadable):
        image = SecurityImage.decode(_with_checksum(data))
        assert SecurityImage.decode(image.encode()) == image


def _with_checksum(data: bytes) -> bytes:
    """The checksum is made right, or nothing behind it would be reached."""
    payload = data[SECURITY_HEADER.size :]
    if len(data) >= SECURITY_HEADER.size:
        magic, version, zero, generation, _, _ = SECURITY_HEADER.unpack_from(data)
        checksum = crc32c(payload, crc32c(generation.to_bytes(8, "big")))
        data = SECURITY_HEADER.pack(magic, version, zero, generation, len(payload), checksum) + payload
    return data


def _documents() -> Iterator[bytes]:
    yield encode_rules([_RULE, _RULE._replace(permission=AclPermission.DENY)])
    for store, pattern in zip(STORES, _PATTERNS, strict=True):
        yield store.encode_change(pattern)


def _images() -> Iterator[bytes]:
    yield SecurityImage(3, frozenset(AclBinding.of(pattern, _RULE) for pattern in _PATTERNS)).encode()


def _quota_documents() -> Iterator[bytes]:
    yield encode_config({"producer_byte_rate": "1024", "request_percentage": "12.5", "SCRAM-SHA-256": "x"})
    yield b"users/a%20b/clients/<default>"
    yield b"clients/c"
    yield b'{"version": 1, "config": [1]}'


def _quota_images() -> Iterator[bytes]:
    yield QuotaImage(3, {QuotaEntity("u", ""): {PRODUCER_BYTE_RATE: 5.0}, QuotaEntity(None, "c"): {PRODUCER_BYTE_RATE: 7.5}}).encode()


ACL_TARGETS: Targets = {
    "quota_document": Target(fuzz_quota_document, _quota_documents, 256),
    "quota_image": Target(fuzz_quota_image, _quota_images, 128),
    "acl_document": Target(fuzz_acl_document, _documents, 256),
    "security_image": Target(fuzz_security_image, _images, 128),
}
