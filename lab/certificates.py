"""Certificates for tests, made by openssl when they are wanted: an authority, a server's and clients'. Elliptic curves, because an RSA key takes a second."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """The files of one certificate."""

    certificate: Path
    private_key: Path

    def write_keystore(self, path: Path) -> Path:
        """Write key and certificate to one file, as `ssl.keystore.location` takes it; return its path."""
        path.write_text(self.private_key.read_text() + self.certificate.read_text())
        return path


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)


class Authority:
    """Signs certificates in `directory`; `certificate` is its own, for those who check."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = directory / f"{name}.key"
        self.certificate = directory / f"{name}.pem"
        subject = ("-subj", f"/CN=test {name}", "-days", "30", "-nodes")
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", self._key, "-out", self.certificate, *subject)

    def revoke(self, made: Certificate) -> Path:
        """The list of revoked certificates of this authority, with this one."""
        revoked, database, config = (self._directory / f"{self.certificate.stem}-{name}" for name in ("crl.pem", "index.txt", "ca.cnf"))
        database.touch()
        config.write_text(f"[ca]\ndefault_ca=c\n[c]\ndatabase={database}\ndefault_md=sha256\ndefault_crl_days=3\n")
        own = ("-config", config, "-cert", self.certificate, "-keyfile", self._key)
        for action in (("-revoke", made.certificate), ("-gencrl", "-out", revoked)):
            _openssl("ca", *own, *action)
        return revoked

    def sign(self, name: str, *alternatives: str, days: int = 30) -> Certificate:
        """A certificate for `name` (common name), with alternative names as openssl writes them: `DNS:localhost`, `IP:127.0.0.1`. `days` below 0: expired."""
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request = self._directory / f"{name}.csr"
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        _openssl("req", *new_key, "-keyout", made.private_key, "-out", request, "-subj", f"/CN={name}")
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(alternatives or (f'DNS:{name}',))}\n")
        authority = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", str(days))
        _openssl("x509", "-req", "-in", request, "-out", made.certificate, *authority, "-extfile", extensions)
        return made
