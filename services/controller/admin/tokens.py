"""Delegation tokens: follow them in ZooKeeper, publish the token image, answer the four APIs about them, remove expired ones.

Owned by the controller process of each box; any box may change a token, by a write with the version of what it
read, as in Kafka. The controller of the cluster removes expired ones. No secret is logged, or in ZooKeeper. Weak:
boxes with different keys make different secrets of one token, and do not notice.
"""

from __future__ import annotations

import base64
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.settings import Box
from appliance.client.peer_login import read_password
from appliance.cluster.security_image import SecurityImageUnreadable
from appliance.cluster.token_image import (
    TOKEN_CHANGE_PREFIX,
    TOKEN_CHANGES,
    TOKEN_ROOTS,
    TOKENS,
    TokenImage,
    decode_token,
    encode_token,
    read_token_image,
    token_path,
    write_token_image,
)
from appliance.cluster.znodes import DocumentUnreadable
from appliance.protocol import token_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.token_apis import (
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenResponse,
    TokenExpiryResponse,
    TokenPrincipal,
)
from appliance.security.delegation_tokens import TOKENS_MAX, TOKENS_OF_REQUESTER_MAX, DelegationToken, TokenLimits, WantedToken, secret_of
from appliance.security.principals import Principal
from services.controller.admin.published_entities import EntityOperations, PublishedEntities
from services.controller.admin.waiting_requests import ControllerRequest, Key, OnResult, Result, WaitingRequest, WaitingRequests
from services.controller.decisions.cluster import ControllerContext
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.config_changes import AGE_MAX_MS
from services.controller.zookeeper.operation import Operation, OperationOutcome, OwnWrites, all_of
from services.controller.zookeeper.requests import (
    BadVersion,
    Create,
    Delete,
    Get,
    GetChildren,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    Write,
    ZooKeeperFailed,
)

KEY_SETTING: Final = "delegation.token.secret.key.file"
CHANGES_MAX: Final = 5_000
"""Notifications of changed tokens, each a znode for 15 minutes. Expired tokens are removed beyond it."""
CHANGES_OF_ONE_MAX: Final = 500
"""Changes by one principal in 15 minutes."""
PUBLISH_MS: Final = 200
"""The image is written whole, and read whole by each acceptor, so it is written this often at most."""
ATTEMPTS_MAX: Final = 5
"""Attempts of a write when another box writes the same token."""
REMOVED_AT_ONCE: Final = 100
TOKENS_TIMEOUT_MS: Final = 30_000

Tokens = dict[str, DelegationToken]
"""One token by its id; empty: there is none."""
Apply = Callable[[DelegationToken | None], DelegationToken | None]
"""From the token as it is to what it shall be, None for no token. Raises RequestRefused."""


class TokenChange(NamedTuple):
    """A change of one token. `by` None: the box does it."""

    token_id: str
    apply: Apply
    by: Principal | None
    on_result: OnResult
    host: str = ""

    def answer(self, result: Result) -> None:
        self.on_result(result)


def read_tokens(token_ids: Iterable[str]) -> Operation[dict[str, Tokens]]:
    """Read these tokens; one without a node, or with one that cannot be read, is none."""
    wanted = list(token_ids)
    found: list[Any] = yield from all_of([Get(token_path(token_id)) for token_id in wanted])
    tokens: dict[str, Tokens] = {}
    for token_id, node in zip(wanted, found, strict=True):
        tokens[token_id] = {}
        if isinstance(node, NoNode):
            continue
        if isinstance(node, ZooKeeperFailed):
            raise node
        try:
            tokens[token_id] = {token_id: decode_token(token_path(token_id), node.data)}
        except DocumentUnreadable:
            continue
    return tokens


def change_token(change: TokenChange) -> Operation[Tokens]:
    """Apply a change; return the token after it. Raises RequestRefused."""
    path = token_path(change.token_id)
    for _attempt in range(ATTEMPTS_MAX):
        node = yield from broker_registry.read(path)
        try:
            former = decode_token(path, node.data) if node is not None else None
        except DocumentUnreadable:
            former = None
        token = change.apply(former)
        if token == former:
            return {} if token is None else {change.token_id: token}
        write: Write
        if token is None:
            assert node is not None
            write = Delete(path, node.version)
        else:
            write = Create(path, encode_token(token)) if node is None else SetData(path, encode_token(token), node.version)
        notification = Create(f"{TOKEN_CHANGES}/{TOKEN_CHANGE_PREFIX}", change.token_id.encode(), sequence=True)
        try:
            yield from OwnWrites().guard((write, notification))
        except MultiFailed as refused:
            if isinstance(refused.cause, BadVersion | NodeExists | NoNode):
                continue  # another box wrote it between our read and our write: read again
            raise
        return {} if token is None else {change.token_id: token}
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "the token was changed by other boxes at the same time; try again")


class FollowedTokens(NamedTuple):
    """Notifications that are there, and the tokens that new ones named, as they are now."""

    changes: frozenset[str]
    tokens: dict[str, Tokens]


def follow_token_changes(known: frozenset[str], now_ms: int) -> Operation[FollowedTokens]:
    """Watch the notifications again, read the tokens that new ones name, and remove old ones, as Kafka does."""
    names = frozenset((yield GetChildren(TOKEN_CHANGES, True)))
    token_ids = set()
    for name in sorted(names - known):
        node = yield from broker_registry.read(f"{TOKEN_CHANGES}/{name}")
        if node is not None and (token_id := node.data.decode(errors="replace")) and "/" not in token_id and token_id not in (".", ".."):
            token_ids.add(token_id)
    tokens = yield from read_tokens(token_ids)
    left = set(names)
    for name in sorted(names):
        node = yield from broker_registry.read(f"{TOKEN_CHANGES}/{name}")
        if node is not None:
            if now_ms - node.created_ms <= AGE_MAX_MS:
                break
            try:
                yield Delete(f"{TOKEN_CHANGES}/{name}")
            except NoNode:
                pass  # another broker removed it first
        left.discard(name)
    return FollowedTokens(frozenset(left), tokens)


class TokenAdministration(PublishedEntities[str, Tokens, TokenChange]):
    """The tokens as this box knows them, by id. Without a key there are none, and nothing is read."""

    def __init__(self, context: ControllerContext, box: Box, image_path: str, on_published: Callable[[], None]) -> None:
        super().__init__(context, "tokens", EntityOperations(self._load, read_tokens, change_token), on_published)
        self._image_path = image_path
        self._key = _read_key(context, box)
        self.limits = TokenLimits(box.integer("delegation.token.max.lifetime.ms"), box.integer("delegation.token.expiry.time.ms"))
        self._sweep_ms = box.integer("delegation.token.expiry.check.interval.ms")
        self._sweep_at_ms = 0
        self._publish_at_ms = 0
        self._changes_by: Counter[Principal] = Counter()
        self._counts_end_ms = 0
        self._coming: Counter[Principal] = Counter()
        """creations under way"""
        self._known_changes: frozenset[str] = frozenset()
        self._is_changed_again = False
        self._secrets: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}
        self._altered = context.counters.counter("controller.tokens_altered")
        try:
            former = read_token_image(image_path)
        except SecurityImageUnreadable:
            former = None
        self._image = former or TokenImage()
        if not self._key:
            Path(image_path).unlink(missing_ok=True)

    @property
    def is_enabled(self) -> bool:
        return bool(self._key)

    @property
    def tokens(self) -> list[DelegationToken]:
        return [token for tokens in self._entities.values() for token in tokens.values()]

    def secret_of(self, token_id: str) -> bytes:
        return self._secrets.get(token_id) or secret_of(token_id, self._key)

    def with_secret(self, secret: bytes) -> str | None:
        """Return the id of the token with this secret."""
        return self._ids.get(secret)

    def alter(self, change: TokenChange) -> None:
        """Its `on_result` is called when it is refused, or written and published."""
        self._pending.add(token_path(change.token_id), change)

    def create(self, requester: Principal, change: TokenChange) -> None:
        """As `alter`, for a new token."""
        if (full := self._refusal(requester)) is not None:
            change.answer(Result(ErrorCode.POLICY_VIOLATION, full))
            return
        self._coming[requester] += 1

        def on_result(result: Result) -> None:
            self._coming[requester] -= 1
            if not self._coming[requester]:
                del self._coming[requester]
            change.answer(result)

        self.alter(change._replace(on_result=on_result))

    def _refusal(self, requester: Principal) -> str | None:
        if len(self._entities) + len(self._pending) >= TOKENS_MAX:
            return f"there are {TOKENS_MAX} delegation tokens already"
        if self._coming[requester] + sum(token.requester == requester for token in self.tokens) >= TOKENS_OF_REQUESTER_MAX:
            return f"{requester} has {TOKENS_OF_REQUESTER_MAX} delegation tokens already"
        return None

    # --- the tree

    def on_arrived(self) -> None:
        if self._key:
            super().on_arrived()

    def _load(self) -> Operation[dict[str, Tokens]]:
        """Create the roots, watch the notifications, read all tokens."""
        yield from broker_registry.create_missing(TOKEN_ROOTS)
        self._known_changes = frozenset((yield GetChildren(TOKEN_CHANGES, True)))
        return (yield from read_tokens((yield GetChildren(TOKENS))))

    def on_change(self, path: str) -> None:
        """A watch fired."""
        if path != TOKEN_CHANGES or not self._key:
            return
        operation = follow_token_changes(self._known_changes, self._context.clock.wall_ms())
        if not self._is_loaded or not self._context.runner.start("tokens:follow", operation, self._on_followed):
            operation.close()
            self._is_changed_again = True  # a watch fires once, so a change during a reload needs another reload

    def _on_followed(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._context.on_failure(outcome.failure)
            return
        followed: FollowedTokens = outcome.value
        self._known_changes = followed.changes
        for token_id, tokens in followed.tokens.items():
            self._use(token_id, tokens)
        self._follow_again()

    def _follow_again(self) -> None:
        if self._is_changed_again:
            self._is_changed_again = False
            self.on_change(TOKEN_CHANGES)

    def _on_loaded(self, outcome: OperationOutcome) -> None:
        self._publish_at_ms = 0
        super()._on_loaded(outcome)
        if outcome.failure is None:
            self._follow_again()

    def reconsider(self) -> None:
        super().reconsider()
        if (now_ms := self._context.clock.monotonic_ms()) >= self._counts_end_ms:
            self._changes_by.clear()
            self._counts_end_ms = now_ms + AGE_MAX_MS
        self._remove_expired()

    def _remove_expired(self) -> None:
        now_ms = self._context.clock.monotonic_ms()
        if not self._is_loaded or now_ms < self._sweep_at_ms or self._context.cluster.fence is None or len(self._pending):
            return
        wall_ms = self._context.clock.wall_ms()
        expired = [token for token in self.tokens if token.is_expired(wall_ms)]
        for token in expired[:REMOVED_AT_ONCE]:
            self.alter(TokenChange(token.token_id, partial(_unless_expired, wall_ms), None, lambda _result: None))
        if len(expired) <= REMOVED_AT_ONCE:
            self._sweep_at_ms = now_ms + self._sweep_ms

    # --- the image, changes

    def _differs(self) -> bool:
        return not self._image.generation or {token_id: (token, self._secrets[token_id]) for token_id, token in self._all()} != self._image.tokens

    def _all(self) -> Iterable[tuple[str, DelegationToken]]:
        for tokens in self._entities.values():
            yield from tokens.items()

    def publish(self) -> int:
        now_ms = self._context.clock.monotonic_ms()
        if self._is_changed and now_ms < self._publish_at_ms:
            return 0
        if self._is_changed:
            self._publish_at_ms = now_ms + PUBLISH_MS
            self._secrets = {token_id: self.secret_of(token_id) for token_id in self._entities}
            self._ids = {secret: token_id for token_id, secret in self._secrets.items()}
        return super().publish()

    def _write_image(self) -> None:
        self._image = TokenImage(self._image.generation + 1, {token_id: (token, self._secrets[token_id]) for token_id, token in self._all()})
        write_token_image(self._image_path, self._image)

    def _change(self, _path: str, change: TokenChange) -> Operation[Tokens]:
        if change.by is not None:
            if len(self._known_changes) >= CHANGES_MAX or self._changes_by[change.by] >= CHANGES_OF_ONE_MAX:
                self._context.counters.counter('controller.refused{bound="token_changes"}').add()
                raise RequestRefused(ErrorCode.POLICY_VIOLATION, f"{change.by} or all clients have changed too many tokens; try again in 15 minutes")
            self._changes_by[change.by] += 1
        return (yield from change_token(change))

    def _on_altered(self, path: str, change: TokenChange, values: Tokens) -> bool:
        token = values.get(change.token_id)
        self._use(change.token_id, values)
        self._altered.add()
        what = "removed" if token is None else f"set the expiry to {token.expires_ms} of"
        by = "because it has expired" if change.by is None else f"by {change.by} from {change.host or 'this box'}"
        self._log.info(f"{what} delegation token {change.token_id}, {by}")
        self._written.append(change)
        return True


def _unless_expired(now_ms: int, token: DelegationToken | None) -> DelegationToken | None:
    return None if token is None or token.is_expired(now_ms) else token


def _read_key(context: ControllerContext, box: Box) -> str:
    path = box.text(KEY_SETTING)
    if not path:
        return ""
    try:
        return read_password(path, KEY_SETTING, "a secret")
    except ValueError as problem:
        context.log.error(f"{problem}; until the controller restarts there are no delegation tokens")
        return ""


class TokenRequests:
    """The four APIs. Acceptors have refused clients that may not ask, and filter what a client may see."""

    def __init__(self, administration: TokenAdministration, context: ControllerContext, requests: WaitingRequests) -> None:
        self._administration = administration
        self._clock = context.clock
        self._requests = requests
        self.by_api: dict[int, Callable[[ControllerRequest], None]] = {
            ApiKey.CREATE_DELEGATION_TOKEN: self._on_create,
            ApiKey.RENEW_DELEGATION_TOKEN: self._on_renew,
            ApiKey.EXPIRE_DELEGATION_TOKEN: self._on_expire,
            ApiKey.DESCRIBE_DELEGATION_TOKEN: self._on_describe,
        }

    def _wait(self, begin: Callable[[OnResult], None], finish: Callable[[Result], None]) -> None:
        """`begin` gets what takes the result, and `finish` the result."""
        if not self._administration.is_enabled:
            finish(Result(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED))
            return

        def when_begun(waiting: WaitingRequest) -> None:
            self._administration.when_loaded(lambda: begin(partial(waiting.record, 0)))

        def when_done(results: dict[Key, Result]) -> None:
            finish(results[0])

        self._requests.wait([0], TOKENS_TIMEOUT_MS, when_begun, when_done)

    # --- CreateDelegationToken

    def _on_create(self, request: ControllerRequest) -> None:
        decoded = token_apis.CREATE_DELEGATION_TOKEN_REQUEST.decode(request.body, 0, len(request.body), request.version)
        requester = request.origin.principal
        owner = Principal(decoded.owner_principal_type or "", decoded.owner_principal_name) if decoded.owner_principal_name else requester
        renewers = tuple(Principal(each.principal_type, each.principal_name) for each in decoded.renewers)
        wanted = WantedToken(owner, requester, renewers, decoded.max_lifetime_ms)
        token_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        made: list[DelegationToken] = []

        def apply(former: DelegationToken | None) -> DelegationToken:
            if former is None or not made:
                made[:] = [wanted.issued(token_id, self._clock.wall_ms(), self._administration.limits)]
            return made[0]

        def begin(on_result: OnResult) -> None:
            try:
                wanted.check()
            except RequestRefused as refused:
                on_result(Result.of(refused))
                return
            self._administration.create(requester, TokenChange(token_id, apply, requester, on_result, request.client_host))

        def finish(result: Result) -> None:
            response = CreateDelegationTokenResponse(result.code, *owner, *requester)
            if result.code is ErrorCode.NONE:
                token = made[0]
                secret = self._administration.secret_of(token_id)
                response = CreateDelegationTokenResponse(0, *owner, *requester, token.issued_ms, token.expires_ms, token.max_ms, token_id, secret)
            self._requests.answer(request, token_apis.CREATE_DELEGATION_TOKEN_RESPONSE.encode(request.version, response))

        self._wait(begin, finish)

    # --- RenewDelegationToken, ExpireDelegationToken

    def _on_renew(self, request: ControllerRequest) -> None:
        decoded = token_apis.RENEW_DELEGATION_TOKEN_REQUEST.decode(request.body, 0, len(request.body), request.version)
        by, limits = request.origin.principal, self._administration.limits

        def renew(token: DelegationToken) -> DelegationToken:
            return token.renewed(by, decoded.renew_period_ms, self._clock.wall_ms(), limits)

        self._alter(request, decoded.hmac, renew)

    def _on_expire(self, request: ControllerRequest) -> None:
        decoded = token_apis.EXPIRE_DELEGATION_TOKEN_REQUEST.decode(request.body, 0, len(request.body), request.version)
        by = request.origin.principal
        self._alter(request, decoded.hmac, lambda token: token.expired(by, decoded.expiry_time_period_ms, self._clock.wall_ms()))

    def _alter(self, request: ControllerRequest, secret: bytes, change: Callable[[DelegationToken], DelegationToken | None]) -> None:
        expires_ms = token_apis.NO_TIMESTAMP

        def apply(former: DelegationToken | None) -> DelegationToken | None:
            nonlocal expires_ms
            if former is None:
                raise RequestRefused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no such token")
            token = change(former)
            expires_ms = self._clock.wall_ms() if token is None else token.expires_ms
            return token

        def begin(on_result: OnResult) -> None:
            token_id = self._administration.with_secret(secret)
            if token_id is None:
                on_result(Result(ErrorCode.DELEGATION_TOKEN_NOT_FOUND))
            else:
                self._administration.alter(TokenChange(token_id, apply, request.origin.principal, on_result, request.client_host))

        def finish(result: Result) -> None:
            response = TokenExpiryResponse(result.code, expires_ms if result.code is ErrorCode.NONE else token_apis.NO_TIMESTAMP)
            self._requests.answer(request, token_apis.RENEW_DELEGATION_TOKEN_RESPONSE.encode(request.version, response))

        self._wait(begin, finish)

    # --- DescribeDelegationToken

    def _on_describe(self, request: ControllerRequest) -> None:
        decoded = token_apis.DESCRIBE_DELEGATION_TOKEN_REQUEST.decode(request.body, 0, len(request.body), request.version)
        owners = None if decoded.owners is None else [Principal(each.principal_type, each.principal_name) for each in decoded.owners]

        def finish(result: Result) -> None:
            tokens = self._administration.tokens if result.code is ErrorCode.NONE else []
            wanted = [token for token in tokens if owners is None or any(map(token.concerns, owners))]
            described = tuple(_described(token, self._administration.secret_of(token.token_id)) for token in wanted)
            response = DescribeDelegationTokenResponse(result.code, described)
            self._requests.answer(request, token_apis.DESCRIBE_DELEGATION_TOKEN_RESPONSE.encode(request.version, response))

        self._wait(lambda on_result: on_result(Result(ErrorCode.NONE)), finish)


def _described(token: DelegationToken, secret: bytes) -> DescribedDelegationToken:
    renewers = tuple(TokenPrincipal(*each) for each in token.renewers)
    return DescribedDelegationToken(*token.owner, *token.requester, token.issued_ms, token.expires_ms, token.max_ms, token.token_id, secret, renewers)
