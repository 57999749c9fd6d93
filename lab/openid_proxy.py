"""A real reverse proxy that logs its users in by OpenID Connect: Debian's Apache with mod_auth_openidc, and a provider for it.

The proxy is reached by HTTPS and connects from an address of its own. Its part that concerns the console is that of docs/security.md.
Weak spot: the provider asks for no password and no secret of its client; it lets in whom `user` names.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from appliance.runtime.spawning import die_with_parent
from lab.certificates import Authority
from lab.real_zookeeper import free_port
from lab.running_box import ROOT, Address, eventually
from lab.token_issuer import TokenIssuer, key_set

MODULES = Path(sys.prefix) / "peers/usr/lib/apache2/modules"
WANTED = ("mpm_event", "authn_core", "authz_core", "authz_user", "headers", "proxy", "proxy_http", "socache_shmcb", "ssl", "auth_openidc")
CLIENT, SECRET = "console", "of-the-proxy"


def missing_proxy() -> str | None:
    """Why there is no Apache with mod_auth_openidc here; None if there is."""
    is_there = shutil.which("apache2") is not None and (MODULES / "mod_auth_openidc.so").exists()
    return None if is_there else "there is no Apache with mod_auth_openidc; ./install.sh test unpacks it under .venv/peers"


class Provider(BaseHTTPRequestHandler):
    """An OpenID provider: authorization codes, and identity tokens that `issuer` signs."""

    issuer: TokenIssuer
    user: str
    codes: dict[str, tuple[str, str]]
    """User and nonce by code."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/authorize":
            code = f"code-{len(self.codes)}"
            self.codes[code] = type(self).user, asked["nonce"]
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif parts.path == "/keys":
            self._answer(key_set(self.issuer.public_key()))
        else:
            described = {f"{name}_endpoint": f"{self.address}/{path}" for name, path in (("authorization", "authorize"), ("token", "token"))}
            supported = {"response_types_supported": ["code"], "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["RS256"]}
            self._answer(json.dumps({"issuer": self.address, "jwks_uri": f"{self.address}/keys", **described, **supported}).encode())

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        user, nonce = self.codes.pop(asked["code"][0])
        token = self.issuer.token(user, iss=self.address, aud=CLIENT, nonce=nonce, preferred_username="another")
        self._answer(json.dumps({"access_token": "none", "token_type": "Bearer", "id_token": token}).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class OpenIdProxy(NamedTuple):
    """`origin`: of the console behind it. `authority`: of its certificate."""

    origin: str
    authority: Path
    provider: type[Provider]

    def authenticate(self, user: str) -> None:
        """From now on the provider lets in this user."""
        self.provider.user = user


def _documented() -> str:
    (found,) = re.findall(r"```apache\n(.*?)```", (ROOT / "docs" / "security.md").read_text(), re.DOTALL)
    return str(found)


def _configuration(directory: Path, port: int, source: str, console: Address, provider: str, keystore: Path) -> str:
    other = pwd.getpwuid(65534)  # Apache's workers do not run as root
    user = "" if os.geteuid() else f"User #{other.pw_uid}\nGroup #{other.pw_gid}\n"
    modules = "".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so\n" for name in WANTED)
    return f"""{modules}{user}ServerRoot {directory}
DefaultRuntimeDir {directory}
PidFile {directory}/apache.pid
ErrorLog {directory}/apache.log
ServerName localhost
ServerLimit 1
ThreadsPerChild 25
StartServers 1
MaxRequestWorkers 25
MinSpareThreads 1
MaxSpareThreads 25
Listen 127.0.0.1:{port} https
SSLEngine on
SSLCertificateFile {keystore}
OIDCProviderMetadataURL {provider}/.well-known/openid-configuration
OIDCClientID {CLIENT}
OIDCClientSecret {SECRET}
OIDCCryptoPassphrase {SECRET}
OIDCRedirectURI https://localhost:{port}/oidc
ProxySourceAddress {source}
ProxyPass /oidc !
{_documented().replace("http://127.0.0.1:8080", f"http://{console}")}"""


def _start(file: Path, log: Path) -> subprocess.Popen[bytes] | None:
    """None: another process has taken its port."""
    command = ["apache2", "-D", "FOREGROUND", "-f", str(file)]
    apache = subprocess.Popen(command, preexec_fn=partial(die_with_parent, os.getpid()), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def outcome() -> str:
        if apache.poll() is not None:
            _, said = apache.communicate()
            assert b"Address already in use" in said, (said, log.read_text() if log.exists() else "")
            return "taken"
        return "serves" if log.exists() and "resuming normal operations" in log.read_text() else ""

    return apache if eventually(outcome, "Apache serves") == "serves" else None


@contextmanager
def openid_proxy(directory: Path, console: Address, source: str) -> Iterator[OpenIdProxy]:
    """A proxy before a console, which it connects to from `source`."""
    directory.mkdir()
    authority = Authority(directory)
    keystore = authority.sign("localhost", "DNS:localhost").write_keystore(directory / "keystore.pem")
    handler: Any = type("Provider", (Provider,), {"issuer": TokenIssuer(directory), "codes": {}, "user": ""})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    apache = None
    try:
        while apache is None:
            port, file = free_port(), directory / "apache.conf"
            file.write_text(_configuration(directory, port, source, console, f"http://127.0.0.1:{server.server_port}", keystore))
            apache = _start(file, directory / "apache.log")
        yield OpenIdProxy(f"https://localhost:{port}", authority.certificate, handler)
    finally:
        if apache is not None:
            apache.send_signal(signal.SIGTERM)
            apache.communicate()
        server.shutdown()
        server.server_close()
        thread.join()
