"""The credentials with which a box opens its ZooKeeper session, and the secret file that they come
from.

A server that a box runs (alone, or as a member of the boxes' ensemble) takes the secret in
`STATE/zookeeper.secret` (one line, mode 0600). A box alone makes its own at the first start; boxes
that share an ensemble share one, which `millrace cluster secret` distributes. An ensemble elsewhere
takes what `zookeeper.digest.file` holds. The file is read by the preflight, by the process that
starts the server, and by the controller; it stands in no command line, no `box.json` and no log. On
servers of our own the user is ZooKeeper's superuser.

With `zookeeper.ssl.client.enable` the session is encrypted (`ZooKeeperTls`). Weak spots: without
it, what a session says after its login is not, and an ensemble elsewhere is sent the password in
clear text. A changed secret takes effect when the box starts again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from appliance.base.errors import ConfigurationProblems
from appliance.base.setting_row import SettingValue
from appliance.base.settings import Box

if TYPE_CHECKING:
    import ssl

SECRET_FILE = "zookeeper.secret"  # noqa: S105  a name
USER = "millrace"
CONSUMER_USER = "consumer"
"""User name of high-level consumers of Kafka 0.8 to 0.10 that log in by SASL."""
SECRET_BYTES = 32
SECRET_LENGTH_MIN = 16
_FILE_BYTES_MAX = 4096


class ZooKeeperAccess(NamedTuple):
    """`guards`: nodes are created with ACLs (`zookeeper.auth.required`). `is_own`: the servers are
    the boxes' own and know the consumers' user."""

    user: str
    password: str
    guards: bool
    is_own: bool

    def __repr__(self) -> str:
        return f"ZooKeeperAccess({self.user!r}, ***, guards={self.guards}, is_own={self.is_own})"


class ZooKeeperTls(NamedTuple):
    """PEM files of connections to ZooKeeper with TLS: key and certificate of this box ('': none),
    and the authorities of the servers."""

    keystore: str
    authorities: str

    def context(self) -> ssl.SSLContext:
        """Return what connections are made with; the server's certificate must have the name that is
        connected to. Raises OSError if a file cannot be used."""
        import ssl  # 4 MB that most boxes do not need in the supervisor

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(self.authorities)
        if self.keystore:
            context.load_cert_chain(self.keystore, password="")
        return context


def zookeeper_tls(settings: Mapping[str, SettingValue]) -> ZooKeeperTls | None:
    """Return how this box connects to ZooKeeper; None: in clear text."""
    if not settings.get("zookeeper.ssl.client.enable"):
        return None
    return ZooKeeperTls(*_files(settings))


def _files(settings: Mapping[str, SettingValue]) -> tuple[str, str]:
    return str(settings.get("zookeeper.ssl.keystore.location", "")), str(settings.get("zookeeper.ssl.truststore.location", ""))


def tls_file_problems(settings: Mapping[str, SettingValue]) -> list[str]:
    """Return why the files for TLS with ZooKeeper cannot be used."""
    if not settings.get("zookeeper.ssl.client.enable") and settings.get("zookeeper.server.tls", "off") == "off":
        return []
    keystore, authorities = _files(settings)
    try:
        if authorities:
            ZooKeeperTls(keystore, authorities).context()
    except (OSError, ValueError) as error:
        return [f"zookeeper.ssl.keystore.location or zookeeper.ssl.truststore.location ({keystore or '-'}, {authorities}) cannot be used: {error}"]
    return []


def secret_path(state_directory: str) -> str:
    return f"{os.path.abspath(state_directory)}/{SECRET_FILE}"


def open_tree_mark(state_directory: str) -> str:
    """Return a file that exists if the server of the box has run without a secret since the tree
    was protected.

    Created when the server starts, removed by the controller.
    """
    return f"{os.path.abspath(state_directory)}/zookeeper/ran-open"


def digest_id(user: str, password: str) -> str:
    """Return the id of a user in ZooKeeper's digest scheme: `user:base64(sha1(user:password))`."""
    import base64  # loads OpenSSL, which the supervisor must not hold
    import hashlib

    digest = hashlib.sha1(f"{user}:{password}".encode()).digest()  # noqa: S324  ZooKeeper's scheme
    return f"{user}:{base64.b64encode(digest).decode()}"


def consumer_password(secret: str) -> str:
    """Return the password of the old consumers' user. It is derived from the secret, so that each
    member knows it, and does not reveal it."""
    import hashlib
    import hmac

    return hmac.new(secret.encode(), b"zookeeper consumers", hashlib.sha256).hexdigest()[:32]


def secret_problem(secret: str) -> str | None:
    """Return why a text cannot be the secret, or None."""
    if len(secret) < SECRET_LENGTH_MIN:
        return f"has {len(secret)} characters; a secret needs at least {SECRET_LENGTH_MIN}"
    if not secret.isascii() or any(character in '"\\' or not "!" <= character <= "~" for character in secret):
        return "has a blank, a quote, a backslash or a character that is not ASCII; use letters and digits, such as the output of `openssl rand -hex 32`"
    return None


def read_secret(path: str) -> str | None:
    """Return the secret in a file of one line; None if the file does not exist.

    Raises ConfigurationProblems if the file is invalid or other users may read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationProblems([f"{path}: cannot read the ZooKeeper secret: {error.strerror}"]) from error
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ConfigurationProblems([f"{path}: the ZooKeeper secret must be a regular file"])
        if state.st_mode & 0o077:
            raise ConfigurationProblems([f"{path}: other users may read the ZooKeeper secret (mode {state.st_mode & 0o777:04o}); run chmod 600 {path}"])
        text = file.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
    return text


def _checked_secret(path: str) -> str | None:
    secret = read_secret(path)
    if secret is not None and (problem := secret_problem(secret)) is not None:
        raise ConfigurationProblems([f"{path}: the ZooKeeper secret {problem}"])
    return secret


def ensure_secret(state_directory: str) -> str:
    """Return the secret of a state directory; a random one is created if there is none. Two
    processes that create it at once get the same."""
    path = secret_path(state_directory)
    secret = _checked_secret(path)
    if secret is not None:
        return secret
    made = _write(path, new_secret())
    try:
        os.link(made, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(made)
    secret = _checked_secret(path)
    assert secret is not None
    return secret


def replace_secret(state_directory: str, secret: str) -> None:
    """Store a secret in a state directory; the file belongs to the owner of the directory."""
    path = secret_path(state_directory)
    made = _write(path, secret)
    owner = os.stat(os.path.dirname(path))
    if os.geteuid() == 0:
        os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=False)
    os.rename(made, path)


def new_secret() -> str:
    return os.urandom(SECRET_BYTES).hex()


def _write(path: str, secret: str) -> str:
    """Write a synced file beside `path` with the secret; returns its path."""
    made = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_SYNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, secret.encode() + b"\n")
    finally:
        os.close(descriptor)
    return made


def server_secret(box: Box) -> str | None:
    """Return the secret of the servers that the boxes run; a box with its own server creates one.

    None if there is none and `zookeeper.auth.required` is false. Raises ConfigurationProblems if
    there must be one.
    """
    secret = _checked_secret(secret_path(box.state_directory))
    if secret is not None or not box.flag("zookeeper.auth.required"):
        return secret
    if makes_own_secret(box.zookeeper_members, box.broker_id):
        return ensure_secret(box.state_directory)
    raise ConfigurationProblems([missing_secret_problem(box.state_directory)])


def makes_own_secret(members: list[str], broker_id: int) -> bool:
    """Return whether no other box runs a member, which would have to know the secret."""
    return not members or (len(members) == 1 and members[0].partition("=")[0] == str(broker_id))


def missing_secret_problem(state_directory: str) -> str:
    return (
        f"there is no {secret_path(state_directory)}: the boxes of a ZooKeeper ensemble share a secret; make one on one "
        "box with `millrace cluster secret new`, show it with `millrace cluster secret show`, and give it to every other "
        "box with `millrace cluster secret set` before that box starts (zookeeper.auth.required = false runs the "
        "ensemble open, as releases before 0.2 did)"
    )


def zookeeper_access(box: Box) -> ZooKeeperAccess | None:
    """Return the credentials of this box; None if it has none, and ZooKeeper is open to all
    clients."""
    is_own = box.embedded_zookeeper or bool(box.zookeeper_members)
    guards = box.flag("zookeeper.auth.required")
    if is_own:
        secret = server_secret(box)
        return None if secret is None else ZooKeeperAccess(USER, secret, guards, True)
    return external_access(box.text("zookeeper.digest.file"))


def access_problems(box: Box) -> list[str]:
    """Return why the credentials of this box cannot be used, before a start. Creates nothing."""
    secret = secret_path(box.state_directory)
    is_own = box.embedded_zookeeper or bool(box.zookeeper_members)
    try:
        if is_own and makes_own_secret(box.zookeeper_members, box.broker_id):
            _checked_secret(secret)
        else:
            zookeeper_access(box)
    except ConfigurationProblems as found:
        return found.problems
    return []


def external_access(path: str) -> ZooKeeperAccess | None:
    """Return the credentials in `zookeeper.digest.file`, one line: USER:PASSWORD, or a password.
    None without a file."""
    if not path:
        return None
    text = read_secret(path)
    if not text:
        raise ConfigurationProblems([f"zookeeper.digest.file: {path} {'is empty' if text == '' else 'does not exist'}; write USER:PASSWORD into it, mode 0600"])
    user, colon, password = text.partition(":")
    if not colon:
        user, password = USER, text
    if not user or not password or "\n" in text:
        raise ConfigurationProblems([f"zookeeper.digest.file: {path} must hold one line, USER:PASSWORD"])
    return ZooKeeperAccess(user, password, True, False)
