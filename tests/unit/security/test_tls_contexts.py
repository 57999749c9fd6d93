"""TLS contexts of Kafka listeners (`appliance/security/tls_contexts.py`)."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from appliance.base import trusted_files
from appliance.base.logging import Logger
from appliance.base.setting_row import SettingValue
from appliance.base.settings import KafkaListener, default_settings
from appliance.security.tls_contexts import ReloadedContext, TlsSettings, certificate_expiry, file_problems, make_context
from lab.certificates import Authority, Certificate


class Files(NamedTuple):
    directory: Path
    authority: Authority
    keystore: Path

    def settings(self, **chosen: SettingValue) -> TlsSettings:
        given = {f"ssl.{name.replace('_', '.')}": value for name, value in chosen.items()}
        listener = KafkaListener("SSL", "SSL", "::1", 0, "localhost", 0, {"ssl.keystore.location": str(self.keystore), **given})
        return TlsSettings.of(listener, default_settings())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    authority = Authority(tmp_path)
    write_keystore(tmp_path / "keystore.pem", authority.sign("localhost"))
    return Files(tmp_path, authority, tmp_path / "keystore.pem")


def write_keystore(path: Path, made: Certificate) -> None:
    made.write_keystore(path)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Return the server's end. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for end in (theirs, ours):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return ours


def client(files: Files, certificate: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.authority.certificate))
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.private_key)
    return context


def test_a_revoked_certificate_is_refused(files: Files) -> None:
    revoked, other = files.authority.sign("revoked"), files.authority.sign("other")
    authorities = {"truststore_location": str(files.authority.certificate), "crl_location": str(files.authority.revoke(revoked))}
    context = make_context(files.settings(client_auth="required", **authorities))
    assert handshake(context, client(files, other)).getpeercert() is not None
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        handshake(context, client(files, revoked))


def test_a_requested_certificate_may_be_missing_and_a_required_one_may_not(files: Files) -> None:
    authority = str(files.authority.certificate)
    requested = make_context(files.settings(client_auth="requested", truststore_location=authority))
    assert handshake(requested, client(files)).getpeercert() is None
    required = make_context(files.settings(client_auth="required", truststore_location=authority))
    with pytest.raises(ssl.SSLError):
        handshake(required, client(files))


def test_a_version_of_tls_can_be_switched_off(files: Files) -> None:
    old = client(files)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(make_context(files.settings()), old).version() == "TLSv1.2"
    with pytest.raises(ssl.SSLError):
        handshake(make_context(files.settings(enabled_protocols="TLSv1.3")), old)


def test_the_ciphers_of_tls_1_2_can_be_chosen(files: Files) -> None:
    old = client(files)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    context = make_context(files.settings(cipher_suites="ECDHE-ECDSA-AES256-GCM-SHA384"))
    cipher = handshake(context, old).cipher()
    assert cipher is not None and cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"keystore_location": ""}, "ssl.keystore.location is not set"),
        ({"keystore_location": "/nowhere/x.pem"}, "cannot be used: No such file or directory"),
        ({"enabled_protocols": "TLSv1.1"}, "ssl.enabled.protocols is 'TLSv1.1'"),
        ({"cipher_suites": "NONSENSE"}, "names no cipher"),
        ({"client_auth": "required"}, "needs ssl.truststore.location"),
        ({"principal_mapping_rules": "RULE:x"}, "ssl.principal.mapping.rules: rule"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(files: Files, chosen: dict[str, SettingValue], words: str) -> None:
    with pytest.raises(ValueError, match="listener SSL: ") as problem:
        make_context(files.settings(**chosen))
    assert words in str(problem.value)


def test_changed_files_are_loaded_and_broken_ones_leave_the_former_certificate(files: Files) -> None:
    reading, writing = os.pipe()
    context = ReloadedContext(files.settings(), Logger("acceptor", descriptor=writing))
    first = context.current
    context.reload()
    assert context.current is first
    files.keystore.write_text("half")
    context.reload()
    assert context.current is first and b"the previous certificate stays in use" in os.read(reading, 5000)
    new = files.directory / "new.pem"
    write_keystore(new, files.authority.sign("localhost"))
    os.rename(new, files.keystore)
    context.reload()
    assert context.current is not first and b"has loaded its changed certificate files" in os.read(reading, 5000)
    os.close(reading)
    os.close(writing)


def test_the_expiry_of_a_certificate_is_read_as_openssl_prints_it(files: Files) -> None:
    for days in (-1, 30, 40_000):  # beyond 2049 the time is written in another form
        write_keystore(files.keystore, files.authority.sign("localhost", days=days))
        shown = subprocess.run(["openssl", "x509", "-in", files.keystore, "-noout", "-enddate"], check=True, capture_output=True, text=True, timeout=60).stdout
        assert certificate_expiry(str(files.keystore)) == ssl.cert_time_to_seconds(shown.strip().partition("=")[2])
    for broken in ("", "half", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        files.keystore.write_text(broken)
        assert certificate_expiry(str(files.keystore)) is None
    assert certificate_expiry("/nowhere") is None


def test_a_key_that_the_processes_facing_the_network_cannot_read_is_named_before_they_start(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = KafkaListener("SSL", "SSL", "::1", 0, "localhost", 0, {"ssl.keystore.location": str(files.keystore)})
    files.keystore.chmod(0o600)
    assert file_problems([listener], default_settings()) == [], "a box with one user"
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(trusted_files, "box_group", lambda: os.getegid())
    monkeypatch.setattr(trusted_files, "faces_network", lambda: False)
    (problem,) = file_problems([listener], default_settings())
    assert "listener SSL: user millrace-net cannot read" in problem and f"chgrp millrace {files.keystore}" in problem
    files.keystore.chmod(0o640)
    assert file_problems([listener], default_settings()) == []
    monkeypatch.setattr(trusted_files, "box_group", lambda: os.getegid() + 1)
    assert len(file_problems([listener], default_settings())) == 1, "of another group"


def test_root_checks_keys_for_the_group_of_the_installed_box(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(trusted_files, "_system_group", lambda: os.getegid() + 1)
    monkeypatch.setattr(trusted_files, "box_group", lambda: None)
    files.keystore.chmod(0o640)
    assert "user millrace-net cannot read" in (trusted_files.network_user_problem(str(files.keystore)) or "")
    monkeypatch.setattr(trusted_files, "_system_group", os.getegid)
    assert trusted_files.network_user_problem(str(files.keystore)) is None
    monkeypatch.setattr(trusted_files, "_system_group", lambda: None)
    files.keystore.chmod(0o600)
    assert trusted_files.network_user_problem(str(files.keystore)) is None, "no box is installed"


def test_a_password_of_boxes_that_is_not_there_is_named(files: Files, tmp_path: Path) -> None:
    own = {"ssl.keystore.location": str(files.keystore)}
    listeners = [KafkaListener("BOXES", "SASL_SSL", "127.0.0.1", 0, "127.0.0.1", 0, dict(own))]
    settings = {**default_settings(), "inter.broker.password.file": str(tmp_path / "password")}
    (problem,) = file_problems(listeners, settings)
    assert problem.startswith("inter.broker.password.file: there is no file") and str(tmp_path) in problem
    (tmp_path / "password").write_text("of boxes\n")
    assert file_problems(listeners, settings) == []


def test_the_secret_of_tokens_must_be_there_and_closed_to_other_users(tmp_path: Path) -> None:
    key = tmp_path / "key"
    settings = {**default_settings(), "delegation.token.secret.key.file": str(key)}
    (problem,) = file_problems([], settings)
    assert problem.startswith("delegation.token.secret.key.file: there is no file")
    key.write_text("the same on all boxes\n")
    key.chmod(0o644)
    assert file_problems([], settings) == [f"delegation.token.secret.key.file: other users can read or change {key}; run chmod o= {key}"]
    key.chmod(0o640)
    assert file_problems([], settings) == []
