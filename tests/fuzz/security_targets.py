"""Fuzzed parsers of security: certificates of clients, and the rules that make principals of their subjects.

Certificates were verified before their subject is read; the walk must refuse everything else in words all the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress

from appliance.security.distinguished_names import CertificateUnreadable, PrincipalMapping, subject_of
from tests.fuzz.target import Target, Targets


def fuzz_certificate(data: bytes) -> None:
    """A subject, or CertificateUnreadable."""
    with suppress(CertificateUnreadable):
        assert isinstance(subject_of(data), str)


def fuzz_mapping_rules(data: bytes) -> None:
    """Rules, or ValueError. They are not applied: an expression of the operator may take any time."""
    with warnings.catch_warnings(), suppress(ValueError):
        warnings.simplefilter("ignore")  # of Python, about expressions that look like sets of sets
        PrincipalMapping(data.decode("latin-1"))


_RULES = PrincipalMapping("RULE:^CN=(.*?),OU=Users.*$/$1/L,DEFAULT")


def fuzz_mapped_subject(data: bytes) -> None:
    """A subject of any form has a principal under rules that end with DEFAULT."""
    assert _RULES.name_of(data.decode("latin-1")) is not None


def _value(tag: int, content: bytes) -> bytes:
    return bytes((tag, len(content))) + content if len(content) < 128 else bytes((tag, 0x82)) + len(content).to_bytes(2, "big") + content


def _certificates() -> Iterator[bytes]:
    name = _value(0x31, _value(0x30, _value(0x06, b"\x55\x04\x03") + _value(0x0C, b" a,b=#c ")))
    other = _value(0x31, _value(0x30, _value(0x06, b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x01") + _value(0x16, b"a@b")))
    wide = _value(0x31, _value(0x30, _value(0x06, b"\x55\x04\x0a") + _value(0x1E, "ü".encode("utf-16-be"))) * 2)
    fields = _value(0xA0, b"\x02\x01\x02") + _value(0x02, b"\x01") + _value(0x30, b"") * 3 + _value(0x30, name + other + wide) + _value(0x30, b"")
    yield _value(0x30, _value(0x30, fields) + _value(0x30, b"") + _value(0x03, b"\0"))


def _rules() -> Iterator[bytes]:
    yield b"RULE:^CN=(.*?),OU=Users.*$/$1/L,DEFAULT"
    yield b"RULE:^CN=(a|b)\\/x$/$1\\/$1/U"


SECURITY_TARGETS: Targets = {
    "certificate": Target(fuzz_certificate, _certificates, 256),
    "mapping_rules": Target(fuzz_mapping_rules, _rules, 64),
    "mapped_subject": Target(fuzz_mapped_subject, lambda: iter((b"CN=Alice,OU=Users,C=DE",)), 128),
}
