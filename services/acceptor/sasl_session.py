"""The authentication of one connection: which requests it may send, and the state of its mechanism.

Takes frames, yields responses; owns no socket, and no password longer than its check takes. Before authentication
only ApiVersions, SaslHandshake and SaslAuthenticate are served, at most `REQUESTS_MAX` of them; anything else is a
`ProtocolViolation`. After SaslHandshake 0 tokens are frames without headers. A re-authentication (KIP-368) is a
session whose user and mechanism are given; no other request is served until it is done. A bearer token that is
refused is answered as RFC 7628 says, and fails with the client's next message. Processes of the box may also act
for a user (`ACTING`).

Wrong passwords and unknown users get the same answers: an unknown user is asked with a made-up salt. Weak: a user
whose iterations differ from those of most users can be recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.cluster.credential_image import CredentialFollower
from appliance.cluster.token_image import TokenFollower
from appliance.protocol.api_versions import api_versions_problem, decode_api_versions, encode_api_versions_response, encode_unsupported_version
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import RequestHeader, frame, parse_request_header
from appliance.protocol.sasl_apis import (
    SASL_AUTHENTICATE_REQUEST,
    SASL_AUTHENTICATE_RESPONSE,
    SASL_HANDSHAKE_REQUEST,
    SASL_HANDSHAKE_RESPONSE,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from appliance.protocol.wire import Buffer
from appliance.security.listeners import PLAIN
from appliance.security.oauth import INVALID_TOKEN, OAUTHBEARER, TokenRefused, read_bearer
from appliance.security.principals import ACTING, LOCAL_NAMES, ActingFor
from appliance.security.scram import (
    NAME_MAX,
    SCRAM_MECHANISMS,
    ClientFirst,
    ScramCredential,
    ScramFailed,
    ScramMechanism,
    ScramServer,
    read_client_first,
    read_plain,
)

REQUESTS_MAX: Final = 16
FRAME_BYTES_MAX: Final = 8 << 10
"""Before authentication, when no `HeldMemory` counts it; tokens have at most 4 KB."""
WRONG: Final = "wrong password or unknown user"
UNEXPECTED: Final = "unauthenticated-request"
"""A closing reason, as of `closings`."""


class CheckedLogin(NamedTuple):
    """`reason`: why it is refused; '' if it is not. `user` and `lifetime_ms` are those of a token.

    `is_undecided`: it could not be verified now, so the client must try again.
    """

    reason: str = ""
    user: str = ""
    lifetime_ms: int = 0
    is_undecided: bool = False


class PasswordCheck(NamedTuple):
    """What a thread has to verify: the only costly part of a login by PLAIN."""

    mechanism: ScramMechanism
    credential: ScramCredential
    password: str

    def __repr__(self) -> str:
        return f"PasswordCheck({self.mechanism.label}, ***)"

    def result(self) -> CheckedLogin:
        return CheckedLogin("" if self.credential.verifies(self.mechanism, self.password) else WRONG)


class SecretCheck(NamedTuple):
    """As `PasswordCheck`, for the first login with a delegation token: it derives what verifies the secret."""

    tokens: TokenFollower
    mechanism: ScramMechanism
    secret: bytes

    def __repr__(self) -> str:
        return f"SecretCheck({self.mechanism.label}, ***)"

    def result(self) -> CheckedLogin:
        self.tokens.derive(self.mechanism, self.secret)
        return CheckedLogin()


VerifyToken = Callable[[str], CheckedLogin]


class TokenCheck(NamedTuple):
    """As `PasswordCheck`, for OAUTHBEARER. `authorization_id`: the user that the client wants to be, '' for that of the token."""

    verify: VerifyToken
    token: str
    authorization_id: str

    def __repr__(self) -> str:
        return "TokenCheck(***)"

    def result(self) -> CheckedLogin:
        checked = self.verify(self.token)
        if not checked.reason and self.authorization_id not in ("", checked.user):
            return CheckedLogin("another user than that of its token")
        return checked


class SaslAnswer(NamedTuple):
    """A response, and what follows from it; with `check` set the response comes from `on_checked`."""

    response: bytes | None = None
    is_done: bool = False
    failure: str | None = None
    """why it failed, for the log"""
    check: PasswordCheck | TokenCheck | SecretCheck | None = None
    refusal: str = ""
    """why a token is refused, for the log; the failure comes with the client's next message"""


class SaslSession:
    """`on_frame` for each frame, or `on_request` for one whose header was read."""

    __slots__ = (
        "_checked",
        "_client_first",
        "_credentials",
        "_is_raw",
        "_mechanisms",
        "_random",
        "_requests",
        "_scram",
        "_tag",
        "_verify_token",
        "address",
        "began_ns",
        "buffer",
        "by_token",
        "is_login",
        "known",
        "lifetime_ms",
        "mechanism",
        "refusal",
        "user",
    )

    def __init__(
        self,
        mechanisms: tuple[str, ...],
        credentials: CredentialFollower,
        nonce: Callable[[], str],
        began_ns: int,
        lifetime_ms: int = 0,
        known: tuple[str, str] | None = None,
        verify_token: VerifyToken | None = None,
    ) -> None:
        """`known`: user and mechanism of a connection that authenticates again. `verify_token` is called by another thread."""
        self._mechanisms = mechanisms
        self._credentials = credentials
        self._random = nonce
        self._verify_token = verify_token
        self.refusal = ""
        """why its bearer token was refused"""
        self._scram: ScramServer | None = None
        self._client_first: ClientFirst | None = None
        """of a login with a delegation token"""
        self.by_token = False
        """whether it logs in with a delegation token"""
        self._tag = b""
        self.address = ""
        """of the person for whom the client acts"""
        self.is_login = True
        """False: it acts for a person that has logged in before"""
        self._is_raw = False
        self._requests = 0
        self._checked: RequestHeader | None = None
        self.known = known
        self.lifetime_ms = lifetime_ms
        """of what begins when it is done; 0: for ever. With OAUTHBEARER or a delegation token not longer than the token's"""
        self.began_ns = began_ns
        self.buffer = b""
        """received, and no whole frame"""
        self.mechanism = ""
        """chosen by SaslHandshake"""
        self.user = ""
        """as the client says; authenticated when it is done"""

    def on_frame(self, buffer: memoryview, position: int, limit: int) -> SaslAnswer:
        """Take a frame without its size. Raises ProtocolViolation."""
        self._requests += 1
        if self._requests > REQUESTS_MAX:
            raise ProtocolViolation(UNEXPECTED, f"{self._requests} requests, and it has not authenticated")
        if self._is_raw:
            return self._on_token(bytes(buffer[position:limit]), None)
        return self.on_request(parse_request_header(buffer, position, limit), buffer, limit)

    def on_request(self, header: RequestHeader, buffer: Buffer, limit: int) -> SaslAnswer:
        """As `on_frame`."""
        version = header.api_version
        if header.api_key == ApiKey.API_VERSIONS and not self.mechanism and self.known is None:
            return SaslAnswer(_api_versions(header, buffer, limit))
        if header.api_key == ApiKey.SASL_HANDSHAKE and not self.mechanism:
            handshake = SASL_HANDSHAKE_REQUEST.decode(buffer, header.body_position, limit, version)
            return self._on_handshake(header, handshake.mechanism)
        if header.api_key == ApiKey.SASL_AUTHENTICATE and self.mechanism:
            return self._on_token(SASL_AUTHENTICATE_REQUEST.decode(buffer, header.body_position, limit, version).auth_bytes, header)
        name = SERVED_APIS[header.api_key].name
        raise ProtocolViolation(UNEXPECTED, f"{name} {'during' if self.mechanism else 'before'} its authentication")

    def on_checked(self, checked: CheckedLogin) -> SaslAnswer:
        """Return the answer to the token that was verified."""
        header, self._checked = self._checked, None
        if self._client_first is not None:
            return self._on_token_first(header, self._client_first)
        if self.mechanism != OAUTHBEARER:
            return self._failed(header, checked.reason) if checked.reason else self._done(header, self._tag)
        if not checked.reason:
            self.user = checked.user
            if (refused := self._refused_user(header)) is not None:
                return refused
            self.lifetime_ms = min(self.lifetime_ms or checked.lifetime_ms, checked.lifetime_ms)
            return self._done(header, b"")
        self.refusal = checked.reason
        return SaslAnswer(self._response(header, INVALID_TOKEN, 0), refusal=checked.reason)

    def _on_handshake(self, header: RequestHeader, mechanism: str) -> SaslAnswer:
        def response(code: ErrorCode) -> bytes:
            return SASL_HANDSHAKE_RESPONSE.encode_response(header.api_version, header.correlation_id, SaslHandshakeResponse(code, self._mechanisms))

        if mechanism not in self._mechanisms:
            return SaslAnswer(response(ErrorCode.UNSUPPORTED_SASL_MECHANISM), failure=f"mechanism {mechanism[:50]!r} is not enabled")
        if self.known is not None and (header.api_version == 0 or mechanism != self.known[1]):
            return SaslAnswer(response(ErrorCode.ILLEGAL_SASL_STATE), failure="another mechanism than before")
        self.mechanism = mechanism
        self._is_raw = header.api_version == 0
        return SaslAnswer(response(ErrorCode.NONE))

    def _on_token(self, token: bytes, header: RequestHeader | None) -> SaslAnswer:
        try:
            if self._checked is not None:
                raise ProtocolViolation(UNEXPECTED, "a token while the last one is verified")
            if self.mechanism == PLAIN:
                return self._on_plain(token, header)
            if self.mechanism == OAUTHBEARER:
                return self._on_bearer(token, header)
            if self.mechanism == ACTING:
                return self._on_acting(token, header)
            if self._scram is None:
                return self._on_client_first(token, header)
            return self._done(header, self._scram.finish(token))
        except TokenRefused as refused:
            return self._failed(header, str(refused))
        except ScramFailed as failed:
            return self._failed(header, str(failed) if failed.is_malformed else WRONG)

    def _on_plain(self, token: bytes, header: RequestHeader | None) -> SaslAnswer:
        self.user, password = read_plain(token)
        if (refused := self._refused_user(header)) is not None:
            return refused
        mechanism, credential, _is_known = self._credentials.plain_credential(self.user)
        self._checked = header or _RAW
        return SaslAnswer(check=PasswordCheck(mechanism, credential, password))

    def _on_acting(self, token: bytes, header: RequestHeader | None) -> SaslAnswer:
        """The tag is the salt, which is public, and another one after each change of the password."""
        try:
            person = ActingFor.unpack(token)
        except ValueError as problem:
            raise ScramFailed(f"a message that names no person: {problem}", True) from None
        self.user, self.address = person.user, person.address
        if len(person.user) > NAME_MAX:
            raise ScramFailed(f"a user name of {len(person.user)} characters", True)
        if (refused := self._refused_user(header)) is not None:
            return refused
        mechanism, credential, _is_known = self._credentials.plain_credential(person.user)
        self._tag = credential.salt.hex().encode()
        if person.password:
            self._checked = header or _RAW
            return SaslAnswer(check=PasswordCheck(mechanism, credential, person.password))
        self.is_login = False
        if person.tag and person.tag.encode() != self._tag:
            return self._failed(header, "the user was deleted, or has another password")
        return self._done(header, b"")

    def _on_bearer(self, token: bytes, header: RequestHeader | None) -> SaslAnswer:
        if self.refusal:  # the client has read why
            return self._failed(header, self.refusal)
        assert self._verify_token is not None
        message = read_bearer(token)
        self._checked = header or _RAW
        return SaslAnswer(check=TokenCheck(self._verify_token, message.token, message.authorization_id))

    def _on_client_first(self, token: bytes, header: RequestHeader | None) -> SaslAnswer:
        first = read_client_first(token)
        self.user = first.user
        if first.by_token:
            return self._on_token_first(header, first)
        if (refused := self._refused_user(header)) is not None:
            return refused
        mechanism = SCRAM_MECHANISMS[self.mechanism]
        credential, _is_known = self._credentials.credential(mechanism, first.user)
        self._scram = ScramServer(mechanism, first, credential, self._random())
        return SaslAnswer(self._response(header, self._scram.challenge, 0))

    def _on_token_first(self, header: RequestHeader | None, first: ClientFirst) -> SaslAnswer:
        """The user of a client with a delegation token is the token's id, and its owner from here on. Unknown ids need no made-up salt: they are random."""
        tokens, mechanism = self._credentials.tokens, SCRAM_MECHANISMS[self.mechanism]
        login = tokens.login(first.user)
        if login is None:
            return self._failed(header, "a delegation token that is unknown or has expired")
        self.user, self.by_token = login.owner, True
        if (refused := self._refused_user(header)) is not None:
            return refused
        if (credential := tokens.credential(mechanism, login.secret)) is None:
            if self._client_first is not None:  # it was removed while it was derived
                return self._failed(header, "a delegation token that is unknown or has expired")
            self._client_first, self._checked = first, header or _RAW
            return SaslAnswer(check=SecretCheck(tokens, mechanism, login.secret))
        self.lifetime_ms = min(self.lifetime_ms or login.lifetime_ms, login.lifetime_ms)
        self._client_first = None
        self._scram = ScramServer(mechanism, first, credential, self._random())
        return SaslAnswer(self._response(header, self._scram.challenge, 0))

    def _refused_user(self, header: RequestHeader | None) -> SaslAnswer | None:
        if self.user.startswith(LOCAL_NAMES):
            return self._failed(header, f"names with {LOCAL_NAMES!r} are those of users on the Unix socket")
        if self.known is None or self.user == self.known[0]:
            return None
        return self._failed(header, "another user than before")

    def _done(self, header: RequestHeader | None, token: bytes) -> SaslAnswer:
        return SaslAnswer(self._response(header, token, self.lifetime_ms), is_done=True)

    def _response(self, header: RequestHeader | None, token: bytes, lifetime_ms: int) -> bytes:
        if header is None or header is _RAW:
            return frame(token)
        response = SaslAuthenticateResponse(0, None, token, lifetime_ms)
        return SASL_AUTHENTICATE_RESPONSE.encode_response(header.api_version, header.correlation_id, response)

    def _failed(self, header: RequestHeader | None, reason: str) -> SaslAnswer:
        """Clients get one text for all reasons; after SaslHandshake 0 only the end of the connection."""
        if header is None or header is _RAW:
            return SaslAnswer(failure=reason)
        text = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {self.mechanism}"
        if self.refusal:
            text = INVALID_TOKEN.decode()
        response = SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        return SaslAnswer(SASL_AUTHENTICATE_RESPONSE.encode_response(header.api_version, header.correlation_id, response), failure=reason)


_RAW: Final = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, "", 0)
"""Stands for a token without a header."""


def _api_versions(header: RequestHeader, buffer: Buffer, limit: int) -> bytes:
    version = header.api_version
    if not SERVED_APIS[ApiKey.API_VERSIONS].serves(version):
        return encode_unsupported_version(header.correlation_id)
    problem = api_versions_problem(decode_api_versions(buffer, header.body_position, limit, version), version)
    return encode_api_versions_response(version, header.correlation_id, problem or 0)
