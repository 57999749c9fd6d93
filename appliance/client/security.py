"""How a client of ours authenticates and encrypts: Kafka's options, from a properties file (`--command-config`) or of a Spark job.

Understood are `security.protocol`, `sasl.mechanism` (SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER),
`sasl.jaas.config` (or `sasl.username` and `sasl.password`), `sasl.oauthbearer.token.endpoint.url` (a file),
`ssl.truststore.location` (or `ssl.ca.location`), `ssl.keystore.location` (PEM files) and
`ssl.endpoint.identification.algorithm`. Other `sasl.` and `ssl.` options are refused, because to ignore one
may send in clear text what the user wants to protect; all others are ignored. Weak: the file is read once.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.settings import Box
from appliance.client.address import Address
from appliance.client.errors import BrokerUnreachable, ClientFailed
from appliance.client.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, ClientApi
from appliance.client.peer_login import PeerLogin
from appliance.protocol.sasl_apis import SaslAuthenticateRequest, SaslHandshakeRequest
from appliance.security.listeners import MECHANISMS, PLAIN, PROTOCOLS, SSL, boxes_use_tls, is_encrypted, uses_sasl
from appliance.security.oauth import OAUTHBEARER
from appliance.security.principals import ACTING, ActingFor
from appliance.security.scram import ScramFailed

_NAMES: Final = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.login.callback.handler.class",  # Java needs it for OAUTHBEARER
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.ca.location",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.endpoint.identification.algorithm",
}
_JAAS_OPTION: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')


class AuthenticationFailed(ClientFailed):
    """The broker refused the user or the mechanism, or did not prove that it knows the password."""


class ClientSecurity(NamedTuple):
    """What one client uses for all its connections."""

    protocol: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    authorities: str = ""
    keystore: str = ""
    checks_host: bool = True
    token_file: str = ""
    """of OAUTHBEARER, read at each login"""
    acting: ActingFor | None = None
    """the person for whom the console acts, by the Unix socket and between boxes with certificates"""
    acts_elsewhere: bool = True
    """False: boxes in clear text are asked as the box, because without an authorizer all may do all"""
    by_token: bool = False
    """whether `user` is the id of a delegation token"""

    def __repr__(self) -> str:
        return f"ClientSecurity({self.protocol!r}, {self.mechanism!r}, {self.user!r}, ***)"

    @property
    def is_encrypted(self) -> bool:
        return is_encrypted(self.protocol)

    @property
    def options(self) -> dict[str, str]:
        """Kafka's options for TLS without a login, as `client_security` reads them."""
        named = {"ssl.truststore.location": self.authorities, "ssl.keystore.location": self.keystore}
        return {"security.protocol": self.protocol, **{name: path for name, path in named.items() if path}}

    def encrypt(self, connected: socket.socket, host: str, timeout_ms: int) -> socket.socket:
        """Return the socket behind TLS if the protocol has it. Raises BrokerUnreachable."""
        if not self.is_encrypted:
            return connected
        try:
            context = ssl.create_default_context(cafile=self.authorities or None)
            context.check_hostname = self.checks_host
            if self.keystore:
                context.load_cert_chain(self.keystore)
            connected.settimeout(timeout_ms / 1000)
            return context.wrap_socket(connected, server_hostname=host)
        except PermissionError as error:
            connected.close()
            advice = "run it as root or as a member of the group millrace, or name other files by --command-config"
            raise BrokerUnreachable(f"no TLS connection to {host}: {self.keystore or self.authorities} may not be read; {advice}") from error
        except (OSError, ValueError) as error:
            connected.close()
            raise BrokerUnreachable(f"no TLS connection to {host}: {error}") from error

    def authenticate(self, request: Callable[[ClientApi[Any, Any], Any], Any], address: Address) -> None:
        """Authenticate a new connection if the protocol has SASL. `request` sends one and waits. Raises AuthenticationFailed."""
        if self.acting is not None and (address.is_unix or self.protocol == SSL):
            act_for(request, self.acting, address)
            return
        if self.acting is not None and self.acts_elsewhere:
            how = "log in to each other" if uses_sasl(self.protocol) else "connect in clear text"
            words = f"boxes {how} here, so that it cannot name its users to another one; use the console there, or certificates between boxes"
            raise RequestRefused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"the console cannot ask the box at {address} for user {self.acting.user!r}: {words}")
        if not uses_sasl(self.protocol) or address.is_unix:
            return
        handshake = request(SASL_HANDSHAKE, SaslHandshakeRequest(self.mechanism))
        if handshake.error_code != ErrorCode.NONE:
            offered = ", ".join(handshake.mechanisms) or "no SASL"
            raise AuthenticationFailed(f"the broker at {address} has {offered}, not {self.mechanism}; change sasl.mechanism")

        def exchange(token: bytes) -> bytes:
            answered = request(SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
            if answered.error_code != ErrorCode.NONE:
                whom = f"user {self.user!r}" if self.user else f"the token in {self.token_file}"
                raise AuthenticationFailed(f"the broker at {address} refused {whom}: {answered.error_message}")
            return bytes(answered.auth_bytes)

        if self.mechanism == OAUTHBEARER:
            if exchange(b"n,,\x01auth=Bearer " + _token(self.token_file) + b"\x01\x01"):
                exchange(b"\x01")  # which is answered by the reason
            return
        tokens = PeerLogin(self.mechanism, self.user, self.password, self.by_token).tokens()
        try:
            answer = exchange(next(tokens))
            while True:
                answer = exchange(tokens.send(answer))
        except StopIteration:
            return
        except ScramFailed as failed:
            raise AuthenticationFailed(f"the broker at {address} cannot be trusted: {failed}") from failed


def act_for(request: Callable[[ClientApi[Any, Any], Any], Any], person: ActingFor, address: Address) -> str:
    """Become a person; return the tag of a login by password. Raises AuthenticationFailed, ValueError."""
    handshake = request(SASL_HANDSHAKE, SaslHandshakeRequest(ACTING))
    if handshake.error_code != ErrorCode.NONE:
        raise BrokerUnreachable(f"the box at {address} lets the console act for no user; its settings http.role must have users, too")
    answered = request(SASL_AUTHENTICATE, SaslAuthenticateRequest(person.pack()))
    if answered.error_code != ErrorCode.NONE:
        raise AuthenticationFailed(f"the box at {address} refused user {person.user!r}: {answered.error_message}")
    return bytes(answered.auth_bytes).decode()


def box_security(box: Box) -> ClientSecurity | None:
    """Return how a program of this machine connects to the inter-broker listener of its box, with the
    certificate or the login of the box; None: in clear text. Raises AuthenticationFailed if its password cannot be read."""
    listener = box.kafka_listeners[0]
    if not boxes_use_tls(listener.protocol, box.text("inter.broker.listener.name")):
        return None
    authorities, keystore = (str(listener.settings.get(name, box.setting(name))) for name in ("ssl.truststore.location", "ssl.keystore.location"))
    try:
        login = PeerLogin.of(box)
    except ValueError as problem:
        raise AuthenticationFailed(f"{problem}; run it as root or as a member of the group millrace, or name other files by --command-config") from problem
    if login is not None:
        return ClientSecurity(listener.protocol, *login[:3], authorities=authorities)
    return ClientSecurity(listener.protocol, authorities=authorities, keystore=keystore)


def _token(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read().strip()
    except OSError as error:
        raise AuthenticationFailed(f"could not read the token in {path}: {error.strerror}") from None


def read_properties(text: str) -> dict[str, str]:
    """Return the options of a properties file."""
    options = {}
    for line in text.replace("\\\n", "").splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", "!")):
            options[name.strip()] = value.strip()
    return options


def client_security(options: Mapping[str, str], source: str) -> ClientSecurity:
    """Return what options say. Raises ValueError that names option and `source`, never a value of `sasl.`."""
    unknown = sorted(name for name in options if name.startswith(("sasl.", "ssl.")) and name not in _NAMES)
    if unknown:
        raise ValueError(f"{source}: {', '.join(unknown)} is not supported; supported are {', '.join(sorted(_NAMES))}")
    protocol = options.get("security.protocol", PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"{source}: security.protocol is {protocol!r}; it can be {', '.join(PROTOCOLS)}")
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if options.get(name, "PEM").upper() != "PEM":
            raise ValueError(f"{source}: {name} is {options[name]!r}; only PEM is supported")
    security = ClientSecurity(
        protocol,
        authorities=options.get("ssl.truststore.location") or options.get("ssl.ca.location", ""),
        keystore=options.get("ssl.keystore.location", ""),
        checks_host=options.get("ssl.endpoint.identification.algorithm", "https").lower() not in ("", "none"),
    )
    return security if not uses_sasl(protocol) else _with_user(security, options, source)


def _with_user(security: ClientSecurity, options: Mapping[str, str], source: str) -> ClientSecurity:
    mechanism = options.get("sasl.mechanism", "").upper()
    if mechanism not in MECHANISMS:
        raise ValueError(f"{source}: sasl.mechanism is {mechanism!r}; it can be {', '.join(MECHANISMS)}")
    if mechanism in (PLAIN, OAUTHBEARER) and not is_encrypted(security.protocol):
        raise ValueError(f"{source}: {mechanism} sends password or token in clear text over {security.protocol}; use SASL_SSL, or a SCRAM mechanism")
    if mechanism == OAUTHBEARER:
        url = options.get("sasl.oauthbearer.token.endpoint.url", "")
        if not url.startswith("file:///"):
            raise ValueError(f"{source}: sasl.oauthbearer.token.endpoint.url is {url!r}; name a file with the token, file:///PATH")
        return security._replace(mechanism=mechanism, token_file=url.removeprefix("file://"))
    jaas = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS_OPTION.findall(options.get("sasl.jaas.config", ""))}
    user, password = options.get("sasl.username") or jaas.get("username", ""), options.get("sasl.password") or jaas.get("password", "")
    if not user or not password:
        raise ValueError(f'{source}: sasl.jaas.config has no username="…" and password="…"; set them, or sasl.username and sasl.password')
    by_token = mechanism != PLAIN and jaas.get("tokenauth", "").lower() == "true"
    return security._replace(mechanism=mechanism, user=user, password=password, by_token=by_token)
