"""Users: follow their SCRAM credentials in ZooKeeper, publish the credential image, answer the two APIs about them.

Owned by the controller process of each box; any box may change a user, by a write with the version of what it
read, as in Kafka. No key, salt or password is logged. Weak: users of boxes without a SASL listener are followed,
too, because they are created before the listener.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.credential_image import CredentialImage, read_credential_image, write_credential_image
from appliance.cluster.security_image import SecurityImageUnreadable
from appliance.cluster.user_znodes import CONFIG_USERS, scram_texts, user_entity, user_of_node, user_path
from appliance.cluster.znodes import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES,
    DocumentUnreadable,
    decode_config,
    encode_config,
    encode_config_change,
)
from appliance.protocol import sasl_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.sasl_apis import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribedScramUser,
    DescribeUserScramCredentialsResponse,
    ScramCredentialInfo,
    altered_users,
)
from appliance.security.principals import LOCAL_NAMES
from appliance.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, NAME_MAX, SCRAM_MECHANISMS, ScramCredential, ScramMechanism
from services.controller.admin.published_entities import EntityOperations, PublishedEntities
from services.controller.admin.waiting_requests import ControllerRequest, Key, OnResult, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.cluster import ControllerContext
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.operation import Operation, OwnWrites, all_of
from services.controller.zookeeper.requests import BadVersion, Create, GetChildren, MultiFailed, NodeExists, NoNode, SetData, ZooKeeperFailed
from services.controller.zookeeper.requests import Get as GetNode

USERS_MAX = 10_000
"""Each takes about 1 KB in ZooKeeper and in each process that reads the image."""
ALTERED_MAX = 1_000
"""Users of one request: each is an operation in ZooKeeper."""
SALT_BYTES_MAX = 256
ATTEMPTS_MAX = 5
"""Attempts of a write when another box or tool writes the same user."""
USERS_TIMEOUT_MS = 30_000

Texts = dict[str, str]
"""Credentials of a user by mechanism, as in ZooKeeper."""


class UserChange(NamedTuple):
    """New credentials of one user by mechanism, None to remove one; `by` is for the log."""

    name: str
    changes: Mapping[str, str | None]
    by: str
    on_result: OnResult

    def answer(self, result: Result) -> None:
        self.on_result(result)


def load_users() -> Operation[dict[str, Texts]]:
    """Read all users with credentials."""
    names = yield GetChildren(CONFIG_USERS)
    return (yield from read_users(name for name in map(user_of_node, names) if name is not None))


def read_users(names: Iterable[str]) -> Operation[dict[str, Texts]]:
    """Read these users; one without a node, or with one that cannot be read, has no credentials."""
    wanted = list(names)
    found: list[Any] = yield from all_of([GetNode(user_path(name)) for name in wanted])
    users: dict[str, Texts] = {}
    for name, node in zip(wanted, found, strict=True):
        if isinstance(node, NoNode):
            users[name] = {}
        elif isinstance(node, ZooKeeperFailed):
            raise node
        else:
            try:
                users[name] = scram_texts(decode_config(user_path(name), node.data)) if node.data else {}
            except DocumentUnreadable:
                users[name] = {}
    return users


def change_user(change: UserChange) -> Operation[Texts]:
    """Apply a change to the config of a user, whose quotas stay; return the credentials after it. Raises RequestRefused."""
    path = user_path(change.name)
    for _attempt in range(ATTEMPTS_MAX):
        node = yield from broker_registry.read(path)
        try:
            config = decode_config(path, node.data) if node is not None and node.data else {}
        except DocumentUnreadable as unreadable:
            raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{unreadable}; repair or remove the znode first") from unreadable
        for label, text in change.changes.items():
            if text is not None:
                config[label] = text
            elif config.pop(label, None) is None:
                raise RequestRefused(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        data = encode_config(config)
        write = Create(path, data) if node is None else SetData(path, data, node.version)
        notification = Create(f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}", encode_config_change(user_entity(change.name)), sequence=True)
        try:
            yield from OwnWrites().guard((write, notification))
        except MultiFailed as refused:
            if isinstance(refused.cause, BadVersion | NodeExists | NoNode):
                continue  # another box wrote it between our read and our write: read again
            raise
        return scram_texts(config)
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "the user was changed by others at the same time; try again")


class UserAdministration(PublishedEntities[str, Texts, UserChange]):
    """The users as this box knows them, by name."""

    def __init__(self, context: ControllerContext, image_path: str, make_secret: Callable[[], bytes], on_published: Callable[[], None]) -> None:
        """`make_secret` makes one for the credentials of unknown users, if no former image has it."""
        super().__init__(context, "users", EntityOperations(load_users, read_users, change_user), on_published)
        self._image_path = image_path
        self._coming: Counter[str] = Counter()
        """changes under way that make a user"""
        self._altered = context.counters.counter("controller.users_altered")
        try:
            former = read_credential_image(image_path)
        except SecurityImageUnreadable:
            former = None
        self._image = former or CredentialImage(0, make_secret())

    @property
    def users(self) -> Mapping[str, Texts]:
        return self._entities

    def alter(self, change: UserChange) -> None:
        """Its `on_result` is called when it is refused, or written and published."""
        if change.name not in self.users and any(change.changes.values()):
            if change.name not in self._coming and len(self.users) + len(self._coming) >= USERS_MAX:
                change.answer(Result(ErrorCode.POLICY_VIOLATION, f"There are {USERS_MAX} users already; delete some"))
                return
            self._coming[change.name] += 1
            change = change._replace(on_result=partial(self._on_came, change))
        self._pending.add(user_path(change.name), change)

    def _on_came(self, change: UserChange, result: Result) -> None:
        self._coming[change.name] -= 1
        if not self._coming[change.name]:
            del self._coming[change.name]
        change.answer(result)

    def _differs(self) -> bool:
        return self.users != self._image.users or not self._image.generation

    def _write_image(self) -> None:
        self._image = self._image._replace(generation=self._image.generation + 1, users={name: dict(texts) for name, texts in self.users.items()})
        write_credential_image(self._image_path, self._image)

    def _on_altered(self, path: str, change: UserChange, values: Texts) -> bool:
        self._use(change.name, values)
        for label, text in change.changes.items():
            self._altered.add()
            self._log.info(f"{'removed' if text is None else 'set'} the {label} credential of user {change.name!r}, by {change.by}")
        self._written.append(change)
        return True


class UserRequests:
    """DescribeUserScramCredentials and AlterUserScramCredentials."""

    def __init__(self, administration: UserAdministration, requests: WaitingRequests) -> None:
        self._administration = administration
        self._requests = requests
        self.by_api: dict[int, Callable[[ControllerRequest], None]] = {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self._on_describe,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self._on_alter,
        }

    def _wait(self, keys: Iterable[Key], begin: Callable[[WaitingRequest], None], finish: Callable[[dict[Key, Result]], None]) -> None:
        self._requests.wait(keys, USERS_TIMEOUT_MS, lambda waiting: self._administration.when_loaded(lambda: begin(waiting)), finish)

    def _on_describe(self, request: ControllerRequest) -> None:
        decoded = sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST.decode(request.body, 0, len(request.body), request.version)

        def finish(results: dict[Key, Result]) -> None:
            users = self._administration.users
            if results[0].code is not ErrorCode.NONE:
                response = DescribeUserScramCredentialsResponse(0, results[0].code, results[0].message)
            else:
                counts = Counter(each.name for each in decoded.users) if decoded.users else Counter(sorted(users))
                described = tuple(_described(name, users.get(name), count) for name, count in counts.items())
                response = DescribeUserScramCredentialsResponse(0, results=described)
            self._requests.answer(request, sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE.encode(request.version, response))

        self._wait([0], lambda waiting: waiting.record(0, Result(ErrorCode.NONE)), finish)

    def _on_alter(self, request: ControllerRequest) -> None:
        decoded = sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        names = altered_users(decoded)
        if len(names) > ALTERED_MAX:
            refused = tuple(AlteredScramUser(name, ErrorCode.INVALID_REQUEST, f"A request alters at most {ALTERED_MAX} users") for name in names)
            response = AlterUserScramCredentialsResponse(0, refused)
            self._requests.answer(request, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE.encode(request.version, response))
            return
        by = f"{request.origin.principal} from {request.client_host or 'this box'}"

        def begin(waiting: WaitingRequest) -> None:
            problems = _problems(decoded)
            for name, problem in problems.items():
                waiting.record(name, problem)
            changes = _changes(decoded, problems)
            for name, of_user in changes.items():
                self._administration.alter(UserChange(name, of_user, by, partial(waiting.record, name)))

        def finish(results: dict[Key, Result]) -> None:
            altered = tuple(AlteredScramUser(name, results[name].code, truncated(results[name].message or "")) for name in names)
            response = AlterUserScramCredentialsResponse(0, altered)
            self._requests.answer(request, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE.encode(request.version, response))

        self._wait(names, begin, finish)


def _described(name: str, texts: Texts | None, count: int) -> DescribedScramUser:
    if count > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return DescribedScramUser(name, ErrorCode.DUPLICATE_RESOURCE, truncated(message))
    if not texts:
        return DescribedScramUser(name, ErrorCode.RESOURCE_NOT_FOUND, truncated(f"Attempt to describe a user credential that does not exist: {name}"))
    infos = tuple(ScramCredentialInfo(SCRAM_MECHANISMS[label], ScramCredential.decode(text).iterations) for label, text in sorted(texts.items()))
    return DescribedScramUser(name, ErrorCode.NONE, "", infos)


def _changes(request: AlterUserScramCredentialsRequest, refused: Container[str]) -> dict[str, dict[str, str | None]]:
    """Return what to change, by user and mechanism, in one pass: a request may have 100,000 elements."""
    changes: dict[str, dict[str, str | None]] = {}
    for deletion in request.deletions:
        if deletion.name not in refused:
            changes.setdefault(deletion.name, {})[ScramMechanism(deletion.mechanism).label] = None
    for each in request.upsertions:
        if each.name not in refused:
            mechanism = ScramMechanism(each.mechanism)
            credential = ScramCredential.of_salted_password(mechanism, each.salt, each.salted_password, each.iterations)
            changes.setdefault(each.name, {})[mechanism.label] = credential.encode()
    return changes


def _problems(request: AlterUserScramCredentialsRequest) -> dict[str, Result]:
    """Return why users are refused, with Kafka's codes and texts."""
    problems: dict[str, Result] = {}
    counts = Counter([*((each.name, each.mechanism) for each in request.deletions), *((each.name, each.mechanism) for each in request.upsertions)])

    def refuse(name: str, code: ErrorCode, message: str) -> None:
        problems.setdefault(name, Result(code, message))

    for (name, mechanism), count in counts.items():
        if not name:
            refuse(name, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        elif len(name) > NAME_MAX or name in (".", ".."):
            refuse(name, ErrorCode.UNACCEPTABLE_CREDENTIAL, f"A user name has at most {NAME_MAX} characters, and is neither '.' nor '..'")
        elif mechanism not in SCRAM_MECHANISMS.values():
            refuse(name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        elif count > 1:
            refuse(name, ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
    for each in request.upsertions:
        if each.name in problems:
            continue
        if each.name.startswith(LOCAL_NAMES):
            refuse(each.name, ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Names with {LOCAL_NAMES!r} are those of users on the Unix socket")
        elif each.iterations < ITERATIONS_MIN:
            refuse(each.name, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        elif each.iterations > ITERATIONS_MAX:
            refuse(each.name, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        elif not 0 < len(each.salt) <= SALT_BYTES_MAX or len(each.salted_password) != ScramMechanism(each.mechanism).key_bytes:
            refuse(each.name, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt or salted password has a wrong size")
    return problems
