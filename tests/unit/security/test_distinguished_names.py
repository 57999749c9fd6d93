"""Distinguished names as Java writes them, and mapping rules (`appliance/security/distinguished_names.py`)."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.security.distinguished_names import CertificateUnreadable, PrincipalMapping, subject_of

MANY_NAMES = """[req]
distinguished_name=dn
prompt=no
string_mask=utf8only
utf8=yes
[dn]
C=DE
ST=Bayern
O="A, B + <x>\\; y=z \\#1"
OU="\\# lead "
emailAddress=a@b.example
serialNumber=42
CN=Åsa 日本
UID=u1
DC=example
title=Dr
"""
BY_JAVA = (
    "2.5.4.12=#0c024472,DC=example,UID=u1,CN=Åsa 日本,2.5.4.5=#13023432,1.2.840.113549.1.9.1=#160b6140622e6578616d706c65,"
    r"OU=\# lead\ ,O=A\, B \+ \<x\>\; y\=z \#1,ST=Bayern,C=DE"
)
"""`X500Principal.getName()` of Java 17 for MANY_NAMES."""


def certificate(directory: Path, *subject: str) -> bytes:
    """A self-signed certificate in DER."""
    file = directory / "made.pem"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", directory / "made.key")
    subprocess.run(["openssl", "req", "-x509", *key, "-out", file, "-days", "3", *subject], check=True, capture_output=True, timeout=60)
    return ssl.PEM_cert_to_DER_cert(file.read_text())


def test_a_subject_is_written_as_java_writes_it(tmp_path: Path) -> None:
    (tmp_path / "names.cnf").write_text(MANY_NAMES)
    assert subject_of(certificate(tmp_path, "-config", str(tmp_path / "names.cnf"))) == BY_JAVA


def test_a_part_with_two_values_and_outer_spaces_is_written_as_java_writes_it(tmp_path: Path) -> None:
    made = certificate(tmp_path, "-utf8", "-multivalue-rdn", "-subj", "/C=DE/CN=a+UID=7/OU=  x ")
    assert subject_of(made) == r"OU=\ \ x\ ,CN=a+UID=7,C=DE"


def test_a_cut_certificate_has_no_subject(tmp_path: Path) -> None:
    made = certificate(tmp_path, "-subj", "/CN=a")
    for size_bytes in range(0, 120, 7):
        with pytest.raises(CertificateUnreadable):
            subject_of(made[:size_bytes])


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_in_words(data: bytes) -> None:
    for wrapped in (data, b"\x30\x82" + len(data).to_bytes(2, "big") + data):
        with pytest.raises(CertificateUnreadable):
            subject_of(wrapped)


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka1,OU=ServiceUsers,C=DE", "kafka1"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=other,C=DE", "CN=other,C=DE"),
        ("RULE:^CN=(.*?), ?O=(.*?)$/$1@$2/L", "CN=Alice,O=Example", "alice@example"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "CN=web1.example", "WEB1.EXAMPLE"),
        ("RULE:^CN=(.*?),.*$/$1/", "OU=x", None),
        (r"RULE:^CN=(.*?)\/(.*)$/$1\/$2/", "CN=a/b", "a/b"),
    ],
)
def test_the_first_rule_that_matches_makes_the_principal(rules: str, name: str, expected: str | None) -> None:
    assert PrincipalMapping(rules).name_of(name) == expected


@pytest.mark.parametrize("rules", ["RULE:a", "DEFAULT,x", "RULE:(/$1/", "RULE:a/$1/", "RULE:a/b/X", "RULE:a/b/L DEFAULT", "RULE:a{99999999999}/b/"])
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match="rule"):
        PrincipalMapping(rules)
