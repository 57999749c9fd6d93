"""TLS contexts of Kafka listeners and of connections to other boxes, from PEM files: certificate,
authorities and revoked certificates.

Imported on demand, because OpenSSL takes 4 MB. Files are loaded at the start, and again when they
change; open connections keep the context that they were made with. If changed files cannot be used
(half written, a key that does not match), that is logged once and the previous context stays in
use. Weak: changes are found by time, size and inode, not by content.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Mapping
from typing import Final, NamedTuple

from appliance.base.logging import Logger
from appliance.base.setting_row import SettingValue
from appliance.base.settings import Box, KafkaListener
from appliance.base.trusted_files import network_user_problem, storage_user_problem
from appliance.security.distinguished_names import PrincipalMapping, expiry_of
from appliance.security.listeners import KEYS_URL, TLS_SETTINGS, is_encrypted, uses_sasl
from appliance.security.tls_transport import TlsTransport

_VERIFICATION: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsSettings(NamedTuple):
    """The settings `ssl.*` of one listener."""

    listener: str
    keystore: str
    truststore: str
    revoked: str
    client_auth: str
    protocols: tuple[str, ...]
    ciphers: str
    mapping_rules: str

    @classmethod
    def of(cls, listener: KafkaListener, settings: Mapping[str, SettingValue]) -> TlsSettings:
        def text(name: str) -> str:
            return str(listener.settings.get(name, settings[name]))

        protocols = tuple(part.strip() for part in text("ssl.enabled.protocols").split(",") if part.strip())
        return cls(
            listener.name,
            text("ssl.keystore.location"),
            text("ssl.truststore.location"),
            text("ssl.crl.location"),
            text("ssl.client.auth"),
            protocols,
            text("ssl.cipher.suites"),
            text("ssl.principal.mapping.rules"),
        )

    @property
    def files(self) -> list[str]:
        return [path for path in (self.keystore, self.truststore, self.revoked) if path]


def make_context(settings: TlsSettings, *, connects: bool = False) -> ssl.SSLContext:
    """Return the context of a listener; `connects`: of connections to such listeners of other boxes,
    which must have the name that is connected to in their certificate. Raises ValueError that names
    the setting.
    """
    where = f"listener {settings.listener}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if connects else ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    unknown = [name for name in settings.protocols if name not in _VERSIONS]
    if unknown or not settings.protocols:
        raise ValueError(f"{where}: ssl.enabled.protocols is {','.join(settings.protocols)!r}; it has one or both of {', '.join(_VERSIONS)}")
    wanted = sorted(_VERSIONS[name] for name in settings.protocols)
    context.minimum_version, context.maximum_version = wanted[0], wanted[-1]
    if not settings.keystore:
        raise ValueError(f"{where}: ssl.keystore.location is not set; name a PEM file with its private key and certificate chain")
    try:
        context.load_cert_chain(settings.keystore, password=_no_password)
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: ssl.keystore.location {settings.keystore} cannot be used: {_reason_of(error)}") from error
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError as error:
            raise ValueError(f"{where}: ssl.cipher.suites {settings.ciphers!r} names no cipher that OpenSSL has") from error
    if not connects:
        context.verify_mode = _VERIFICATION[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE and not settings.truststore:
        raise ValueError(f"{where}: ssl.client.auth is {settings.client_auth}, which needs ssl.truststore.location, a PEM file with the authorities")
    for name, path in (("ssl.truststore.location", settings.truststore), ("ssl.crl.location", settings.revoked)):
        if path:
            try:
                context.load_verify_locations(path)
            except (OSError, ValueError) as error:
                raise ValueError(f"{where}: {name} {path} cannot be used: {_reason_of(error)}") from error
    if settings.revoked:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    try:
        PrincipalMapping(settings.mapping_rules)
    except ValueError as error:
        raise ValueError(f"{where}: ssl.principal.mapping.rules: {error}") from error
    return context


def file_problems(listeners: list[KafkaListener], settings: Mapping[str, SettingValue]) -> list[str]:
    """Return why listeners cannot use their settings `ssl.*`."""
    problems = []
    for listener in listeners:
        if is_encrypted(listener.protocol):
            own = TlsSettings.of(listener, settings)
            try:
                make_context(own)
            except ValueError as error:
                problems.append(str(error))
            url = str(listener.settings.get(KEYS_URL, settings.get(KEYS_URL, "")))
            files = (*own.files, url.removeprefix("file://") if url.startswith("file://") else "")
            problems += [f"listener {own.listener}: {problem}" for path in files if path and (problem := network_user_problem(path)) is not None]
    password = str(settings.get("inter.broker.password.file", ""))
    if password and listeners and uses_sasl(listeners[0].protocol):
        if not os.path.isfile(password):
            problems.append(f"inter.broker.password.file: there is no file {password}; write the password of inter.broker.user into it, mode 0640")
        elif (problem := network_user_problem(password)) is not None:
            problems.append(f"inter.broker.password.file: {problem}")
    key = str(settings.get("delegation.token.secret.key.file", ""))
    if key and not os.path.isfile(key):
        problems.append(f"delegation.token.secret.key.file: there is no file {key}; write random characters into it, mode 0600, the same on all boxes")
    elif key and os.stat(key).st_mode & stat.S_IRWXO:
        problems.append(f"delegation.token.secret.key.file: other users can read or change {key}; run chmod o= {key}")
    elif key and (problem := storage_user_problem(key)) is not None:
        problems.append(f"delegation.token.secret.key.file: {problem}")
    return problems


def certificate_expiry(keystore: str) -> int | None:
    """Return until when the first certificate of a PEM file is valid, in seconds since 1970; None if it cannot be read."""
    try:
        with open(keystore, encoding="ascii", errors="replace") as file:
            _, mark, rest = file.read().partition("-----BEGIN CERTIFICATE-----")
        body, end, _ = rest.partition("-----END CERTIFICATE-----")
        return expiry_of(ssl.PEM_cert_to_DER_cert(f"{mark}{body}{end}"))
    except (OSError, ValueError):  # CertificateUnreadable too
        return None


class ReloadedContext:
    """The context of one listener. `current` is None until its files can be used."""

    connects = False

    def __init__(self, settings: TlsSettings, log: Logger) -> None:
        self._settings = settings
        self._log = log
        self._seen: tuple[object, ...] = ()
        self.mapping = PrincipalMapping(settings.mapping_rules)
        self.current: ssl.SSLContext | None = None
        self.expires_s: int | None = None
        """until when its certificate is valid, since 1970; None: not known"""
        self.reload()

    def reload(self) -> None:
        """Load the files if they changed."""
        seen = tuple(_stamp(path) for path in self._settings.files)
        if seen == self._seen:
            return
        is_first = not self._seen
        self._seen = seen
        listener = self._settings.listener
        try:
            self.current = make_context(self._settings, connects=self.connects)
            self.expires_s = certificate_expiry(self._settings.keystore)
        except ValueError as error:
            without = "other boxes cannot be reached" if self.connects else "its clients are refused"
            consequence = "the previous certificate stays in use" if self.current else f"{without} until the file is replaced"
            self._log.error(f"{error}; {consequence}", listener=listener)
            return
        if not is_first and not self.connects:
            self._log.notice(f"listener {listener} has loaded its changed certificate files; new connections use them", listener=listener)


class PeerContext(ReloadedContext):
    """The context of connections to other boxes: certificate and authorities of the inter-broker listener."""

    connects = True
    logs_in: Box | None = None
    """the box, if boxes log in to each other"""

    @classmethod
    def of(cls, box: Box, log: Logger) -> PeerContext:
        made = cls(TlsSettings.of(box.kafka_listeners[0], {name: box.setting(name) for name in TLS_SETTINGS}), log)
        made.logs_in = box if uses_sasl(box.kafka_listeners[0].protocol) else None
        return made

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection, from changed files if they did. Raises ValueError."""
        self.reload()
        if self.current is None:
            raise ValueError("the certificate of this box cannot be used")
        return self.current

    def wrap(self, sock: socket.socket, host: str) -> TlsTransport:
        """Return the transport of a connected socket, which it owns. Raises ValueError and OSError."""
        return TlsTransport(self.context().wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False))


def _no_password() -> str:
    raise ValueError("the key is encrypted; use one without a password")


def _reason_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "not a certificate or key"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)
