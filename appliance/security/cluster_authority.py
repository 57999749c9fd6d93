"""The authority that signs the certificates of a cluster's boxes, as files of one directory.

`authority.key` and `authority.pem` are the authority, `trusted.pem` is what boxes verify each other with,
`broker-N.pem` the key store of box N (private key, certificate), `broker-N.crt.pem` a certificate for a key
that is elsewhere. While the authority is replaced, `next.*` is the second one, and later `previous.pem` the
former: `trusted.pem` has both, so boxes with certificates of either reach each other. Keys have mode 0600, and
a directory that others may write to is refused. Files are replaced as a whole. Keys are P-256 (RFC 5480),
certificates as RFC 5280 wants them for TLS servers and clients.

Weak: the key of the authority is not encrypted; a directory on a machine without a network protects it more.
Nothing is revoked here: replace the authority instead.
"""

from __future__ import annotations

import datetime
import errno
import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from appliance.base.trusted_files import open_directory, read_file

AUTHORITY_DAYS: Final = 3650
BOX_DAYS: Final = 365
TRUSTED: Final = "trusted.pem"
_AUTHORITY, _NEXT, _PREVIOUS = "authority", "next", "previous"
_BEFORE = datetime.timedelta(hours=1)
"""Clocks of boxes may be behind by so much."""
_FILE_BYTES_MAX = 1 << 20
_HOST = re.compile(r"(?=.{1,253}\Z)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*\Z")
_BOX_FILE = re.compile(r"broker-(\d{1,9})(\.crt)?\.pem\Z")


class AuthorityProblem(Exception):
    """What cannot be done, and why."""


class Shown(NamedTuple):
    """A certificate of the directory."""

    file: str
    names: tuple[str, ...]
    expires: datetime.datetime
    is_trusted: bool
    """its authority is in `trusted.pem`"""


class ClusterAuthority:
    """The authority in `directory`; `now` is the time at which it signs."""

    def __init__(self, directory: str, now: datetime.datetime) -> None:
        """Raises AuthorityProblem if others may write to the directory."""
        self.directory = os.path.abspath(directory)
        self._now = now
        self._descriptor = -1
        """Of the directory that was checked: another user may exchange what its path leads to."""
        if os.path.lexists(self.directory):
            self._open()

    def _open(self) -> None:
        try:
            self._descriptor = open_directory(self.directory, owners=(os.geteuid(), 0))
        except PermissionError as error:
            if error.errno != errno.EPERM:
                raise
            words = f"{self.directory} belongs to another user, or others may write to it; it must be closed to them (chmod 700)"
            raise AuthorityProblem(words) from error
        except (NotADirectoryError, FileNotFoundError) as error:
            raise AuthorityProblem(f"{self.directory} is no directory") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise AuthorityProblem(f"{self.directory} is no directory") from error
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    # --- the authority

    def make(self) -> None:
        """Make the authority. Raises AuthorityProblem if there is one."""
        if self._exists(_AUTHORITY):
            raise AuthorityProblem(f"{self.path('authority.pem')} is there already; `rotate` replaces it without an interruption")
        if self._descriptor < 0:
            os.makedirs(os.path.dirname(self.directory), mode=0o755, exist_ok=True)
            os.mkdir(self.directory, mode=0o700)
            self._open()
        self._make(_AUTHORITY)
        self._write_trusted(_AUTHORITY)

    def begin_rotation(self) -> None:
        """Make a second authority, and trust both."""
        self._load_key(_AUTHORITY)
        if self._exists(_PREVIOUS):
            raise AuthorityProblem("the last replacement has not ended; `rotate end` ends it")
        if not self._exists(_NEXT):
            self._make(_NEXT)
        self._write_trusted(_AUTHORITY, _NEXT)

    def switch(self) -> None:
        """Let the second authority sign from now on; the former stays trusted, without its key."""
        if not self._exists(_NEXT):
            raise AuthorityProblem("there is no second authority; `rotate begin` makes it")
        self._write(f"{_PREVIOUS}.pem", self._read(f"{_AUTHORITY}.pem"), 0o644)
        for suffix in ("key", "pem"):
            if self._is_there(f"{_NEXT}.{suffix}"):  # not, if it was interrupted between the two
                self._replace(f"{_NEXT}.{suffix}", f"{_AUTHORITY}.{suffix}")
        self._write_trusted(_AUTHORITY, _PREVIOUS)

    def end_rotation(self) -> None:
        """Trust the former authority no more. Raises AuthorityProblem if a certificate here is still of it."""
        if not self._exists(_PREVIOUS):
            raise AuthorityProblem("no authority is being replaced, or `rotate switch` comes first")
        current = self._certificate(f"{_AUTHORITY}.pem")
        old = [name for name in self._box_files() if not _is_signed_by(self._certificate(name), current)]
        if old:
            raise AuthorityProblem(f"{', '.join(old)} is still signed by the former authority; `renew` it, and bring it to its box")
        self._write_trusted(_AUTHORITY)
        os.unlink(f"{_PREVIOUS}.pem", dir_fd=self._descriptor)

    # --- boxes

    def issue(self, broker_id: int, names: Sequence[str], days: int = BOX_DAYS, request: bytes | None = None) -> str:
        """Sign a certificate for a box with these host names and addresses; return the file.

        `request`: a CSR in PEM, of which only the key is taken. Raises AuthorityProblem.
        """
        alternatives = [_alternative(name) for name in dict.fromkeys(names)]
        if not alternatives:
            raise AuthorityProblem("name the hosts and addresses by which other boxes and clients connect to this box")
        if request is None:
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = self._sign(broker_id, alternatives, days, key.public_key())
            file = f"broker-{broker_id}.pem"
            self._write(file, _pem_of_key(key) + _pem(certificate), 0o600)
            return self.path(file)
        certificate = self._sign(broker_id, alternatives, days, _key_of_request(request))
        file = f"broker-{broker_id}.crt.pem"
        self._write(file, _pem(certificate), 0o644)
        return self.path(file)

    def renew(self, broker_id: int, days: int = BOX_DAYS, request: bytes | None = None) -> str:
        """As `issue`, with the names of the box's last certificate and a new key. Raises AuthorityProblem."""
        files = (f"broker-{broker_id}.pem", f"broker-{broker_id}.crt.pem")
        for file in files if request is None else files[::-1]:
            if self._is_there(file):
                return self.issue(broker_id, names_of(self._certificate(file)), days, request)
        raise AuthorityProblem(f"{self.directory} has no certificate of box {broker_id}; `issue` makes it")

    def show(self) -> list[Shown]:
        """All certificates of the directory. Raises AuthorityProblem without an authority."""
        trusted = x509.load_pem_x509_certificates(self._read(TRUSTED))
        found = []
        for name in (*(f"{each}.pem" for each in (_AUTHORITY, _NEXT, _PREVIOUS) if self._exists(each)), *self._box_files()):
            certificate = self._certificate(name)
            is_trusted = any(_is_signed_by(certificate, each) for each in trusted)
            found.append(Shown(name, names_of(certificate), certificate.not_valid_after_utc, is_trusted))
        return found

    # --- certificates

    def _make(self, stem: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"millrace cluster authority {self._now:%Y-%m-%d} {os.urandom(4).hex()}")])
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = (
            self._builder(subject, key.public_key(), AUTHORITY_DAYS)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(own, critical=False)
        )
        self._write(f"{stem}.key", _pem_of_key(key), 0o600)
        self._write(f"{stem}.pem", _pem(builder.sign(key, hashes.SHA256())), 0o644)

    def _sign(self, broker_id: int, alternatives: Sequence[x509.GeneralName], days: int, key: CertificatePublicKeyTypes) -> x509.Certificate:
        authority, authority_key = self._certificate(f"{_AUTHORITY}.pem"), self._load_key(_AUTHORITY)
        if authority.public_key() != authority_key.public_key():
            raise AuthorityProblem(f"{self.path('authority.key')} is not the key of authority.pem; if `rotate switch` was interrupted, run it again")
        if authority.not_valid_after_utc < self._now + datetime.timedelta(days=days):
            expires = f"{authority.not_valid_after_utc:%Y-%m-%d}"
            raise AuthorityProblem(f"the authority expires at {expires}, before the certificate would; replace it (`rotate begin`)")
        identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"broker-{broker_id}")]), key, days)
            .issuer_name(authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        )
        return builder.sign(authority_key, hashes.SHA256())

    def _builder(self, subject: x509.Name, key: CertificatePublicKeyTypes, days: int) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).public_key(key).serial_number(x509.random_serial_number())
        return builder.not_valid_before(self._now - _BEFORE).not_valid_after(self._now + datetime.timedelta(days=days))

    # --- files

    def _exists(self, stem: str) -> bool:
        return self._is_there(f"{stem}.pem")

    def _is_there(self, name: str) -> bool:
        return self._descriptor >= 0 and name in os.listdir(self._descriptor)

    def _replace(self, name: str, other: str) -> None:
        os.replace(name, other, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def _box_files(self) -> list[str]:
        found = [(int(match[1]), name) for name in os.listdir(self._descriptor) if (match := _BOX_FILE.match(name)) is not None]
        return [name for _, name in sorted(found)]

    def _write_trusted(self, *stems: str) -> None:
        self._write(TRUSTED, b"".join(self._read(f"{stem}.pem") for stem in stems), 0o644)

    def _load_key(self, stem: str) -> ec.EllipticCurvePrivateKey:
        path = self.path(f"{stem}.key")
        try:
            key = serialization.load_pem_private_key(self._read(f"{stem}.key"), None)
        except (ValueError, TypeError) as error:
            raise AuthorityProblem(f"{path} is no private key: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise AuthorityProblem(f"{path} is no key of an elliptic curve")
        return key

    def _certificate(self, name: str) -> x509.Certificate:
        data = self._read(name)
        try:
            return x509.load_pem_x509_certificates(data)[0]
        except (ValueError, IndexError) as error:
            raise AuthorityProblem(f"{self.path(name)} has no certificate: {error}") from error

    def _read(self, name: str) -> bytes:
        try:
            if self._descriptor < 0:
                raise FileNotFoundError
            return read_file(name, _FILE_BYTES_MAX, self._descriptor)
        except FileNotFoundError as error:
            raise AuthorityProblem(f"there is no {self.path(name)}; `init` makes an authority, --directory names its directory") from error

    def _write(self, name: str, data: bytes, mode: int) -> None:
        """Replace the file as a whole."""
        new = f".{name}.new"
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self._descriptor)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_SYNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600, dir_fd=self._descriptor), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
        self._replace(new, name)


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the alternative names, as `issue` takes them."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(each.value) for each in found if isinstance(each, (x509.DNSName, x509.IPAddress)))


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not _HOST.match(name) or name.replace(".", "").isdigit():
        raise AuthorityProblem(f"{name!r} is no host name and no address; boxes have no wildcards")
    return x509.DNSName(name.lower())


def _key_of_request(request: bytes) -> CertificatePublicKeyTypes:
    try:
        read = x509.load_pem_x509_csr(request)
    except ValueError as error:
        raise AuthorityProblem(f"the request for a certificate cannot be read: {error}") from error
    if not read.is_signature_valid:
        raise AuthorityProblem("the request for a certificate is not signed by its own key")
    return read.public_key()


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):  # another issuer, another kind of key, another key
        return False
    return True


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
