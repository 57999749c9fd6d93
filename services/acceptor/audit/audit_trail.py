"""The audit of one acceptor: logins, denials and administrative changes, as log events and as records of `__millrace_audit`.

Each event has a kind (`audit.topic.deleted`), principal, address, listener, resource, outcome and details. The
log gets all of them; with an authorizer, so does the topic (`audit_topic.py`), as JSON. Equal logins, failed
logins and denials are one event at once, and one with their number at the end of each minute. Owned by one
acceptor. Weak: the log shortens a flood of lines (`base/logging.py`), the topic does not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.base.logging import Logger
from appliance.base.model import AUDIT_TOPIC
from appliance.cluster.metadata_cache import MetadataCache
from appliance.ipc.request_frames import pack_kafka_request
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.protocol.wire import TOO_MANY_ELEMENTS
from appliance.security.acl import AclOperation, AclResource
from appliance.security.authorizer import Rights
from appliance.shm.counters import Counters
from services.acceptor.connection import Connection

if TYPE_CHECKING:
    from appliance.cluster.credential_image import CredentialFollower
    from appliance.cluster.quota_image import QuotaFollower
    from services.acceptor.audit.audit_topic import AuditTopic
    from services.acceptor.audit.audited_requests import AuditedChange

AUDITED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DELETE_RECORDS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.OFFSET_COMMIT,
    }
)
"""Requests that change something for others. Of OffsetCommit only those without a member, as tools send them."""
PERIOD_NS: Final = 60_000_000_000
REMEMBERED_MAX: Final = 1_000
"""Different events of a kind in a minute; more are counted together. A flood of one kind hides no other."""
DECODED_ELEMENTS_MAX: Final = 5_000
"""A request with more is one event: decoding 100,000 names would hold the acceptor's turn for a second."""
SHOWN_BYTES_MAX: Final = 1_000
"""What is shown of such a request, without passwords."""
WITH_SECRETS: Final = frozenset(
    {
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.CREATE_TOPICS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
    }
)
_ABOUT_CREDENTIALS: Final = frozenset({ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN})
ITEMS_MAX: Final = 1_000
"""Events of one request, those that succeeded first; more are counted in one."""
TEXT_MAX: Final = 300
"""Characters of a name. Those of topics have 249 at most."""
DETAILS_MAX: Final = 8 << 10
DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
"""Items with these codes are denials, which are events of their own."""
PROTECTED: Final = f"{AUDIT_TOPIC} is written by the box alone; only root changes or deletes it, by the Unix socket of the controller's box."
UNAUDITED: Final = "The box cannot audit this request, and refused it; its log has the reason."
LOGIN, LOGIN_FAILED, DENIAL, LARGE, UNREADABLE = "audit.login", "audit.login.failed", "audit.denied", "audit.large", "audit.unreadable"


class AuditEvent(NamedTuple):
    """One event, or with `times` that many equal ones."""

    event: str
    principal: str
    client: str
    listener: str
    resource: str
    outcome: str
    times: int = 1


class PendingChange:
    """A request whose response is awaited."""

    __slots__ = ("_api_key", "_change", "_client", "_large", "_listener", "_principal", "_trail", "refusal")

    def __init__(self, trail: AuditTrail, api_key: int, change: AuditedChange | None, connection: Connection, client: str) -> None:
        """`change` None: there is an event without it."""
        self._trail = trail
        self._api_key = api_key
        self._change = change
        self._large: dict[str, Any] = {}
        self._principal = str(connection.principal)
        self._client, self._listener = client, connection.way
        self.refusal: bytes | None = None
        """the response to a request that is not carried out, because it would change the audit itself, or cannot be audited"""

    @property
    def resource(self) -> str:
        return f"request {ApiKey(self._api_key).name}"

    def mark_large(self, body: bytes) -> None:
        """Its event has no item, but what recognises the request."""
        self._large = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        if self._api_key not in WITH_SECRETS:
            self._large["begins"] = re.sub(rb"[^ -~]+", b" ", body[:SHOWN_BYTES_MAX]).decode()

    def refuse_unread(self, header: RequestHeader, body: bytes, error: Exception) -> None:
        """What a client named must not end the process of all clients, and does not get past the audit either."""
        from appliance.protocol.forwarded_apis import error_answer  # rarely needed

        self.add(UNREADABLE, self.resource, f"unreadable: {error!r}")
        self.refusal = b""  # closes the connection
        payload = pack_kafka_request(header.api_key, header.api_version, "", "", body)
        with suppress(Exception):  # it decodes the request, too
            self.refusal = error_answer(payload, ErrorCode.UNKNOWN_SERVER_ERROR, UNAUDITED) or b""

    def on_answer(self, body: bytes | None) -> None:
        """`body`: of the response to the client; None: it is not known what was carried out."""
        outcome = "unknown" if body is None else ""
        if self._large:
            self.add(LARGE, self.resource, outcome or "answered", self._large)
        elif self._change is not None and not self._change.is_dry_run:
            try:
                self._add_items(self._change, body, outcome)
            except Exception as error:  # what a client named must not end the process of all clients
                self.add(UNREADABLE, self.resource, f"{outcome or 'answered'}: {error!r}")

    def _add_items(self, change: AuditedChange, body: bytes | None, outcome: str) -> None:
        from services.acceptor.audit.audited_requests import outcome_of

        try:
            found = change.items(body)
        except ProtocolViolation as violation:
            if violation.reason != TOO_MANY_ELEMENTS:
                raise
            found, outcome = change.items(None), "answered"
        items = sorted((item for item in found if item.error_code not in DENIED), key=lambda item: item.error_code != 0)
        for item in items[:ITEMS_MAX]:
            self.add(item.event, item.resource, outcome or outcome_of(item), item.details)
        if len(items) > ITEMS_MAX:
            self.add(items[-1].event, "others", "various", times=len(items) - ITEMS_MAX)

    def add(self, kind: str, resource: str, outcome: str, details: dict[str, Any] | None = None, times: int = 1) -> None:
        """Write an event of this request."""
        event = AuditEvent(kind, self._principal, self._client, self._listener, resource, outcome, times)
        if self._api_key == ApiKey.OFFSET_COMMIT:  # consumers outside of groups send them, too
            self._trail.add_repeated(event, details)
        else:
            self._trail.add(event, details or {})


class _Repeated:
    """Equal events since the last one that was written."""

    __slots__ = ("count", "ends_ns")

    def __init__(self, ends_ns: int) -> None:
        self.ends_ns = ends_ns
        self.count = 0


class AuditTrail:
    """`begin` for each request of `AUDITED`; `sweep` once a second."""

    def __init__(self, view: MetadataCache, clock: Clock, log: Logger, counters: Counters, topic: AuditTopic | None) -> None:
        """`topic` None: the log alone."""
        self._view = view
        self._clock = clock
        self._log = log
        self.topic = topic
        self._events = counters.counter("acceptor.audit_events")
        self._repeated: dict[AuditEvent, _Repeated] = {}
        self._kinds: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self._others_due_ns = 0
        self._quotas: QuotaFollower | None = None
        self._find_credentials: Callable[[], CredentialFollower] | None = None

    def follow_access(self, quotas: QuotaFollower, find_credentials: Callable[[], CredentialFollower]) -> None:
        """Have events about quotas and users say what was before. `find_credentials` is called for the first such event."""
        self._quotas, self._find_credentials = quotas, cache(find_credentials)

    # --- what happens

    def login(self, connection: Connection, how: str) -> None:
        self.add_repeated(AuditEvent(LOGIN, str(connection.principal), connection.address, connection.way, how, "done"))

    def login_failed(self, user: str, address: str, listener: str, how: str, reason: str) -> None:
        """`user`: as the client claims, or as the kernel says."""
        self.add_repeated(AuditEvent(LOGIN_FAILED, f"User:{user[:TEXT_MAX]}", address, listener, how, reason[:TEXT_MAX]))

    def on_denied(self, rights: Rights, operation: AclOperation, resource: AclResource, name: str) -> None:
        """For `Authorizer.on_denied`."""
        what = f"{operation.name.lower()} {resource.name.lower()} {name[:TEXT_MAX]}"
        self.add_repeated(AuditEvent(DENIAL, rights.principal, rights.host, "", what, "denied"))

    def topics_created(self, connection: Connection, codes: dict[str, int]) -> None:
        """Automatic creation, by a request for metadata."""
        for name, code in codes.items():
            if not code:
                event = AuditEvent("audit.topic.created", str(connection.principal), connection.address, connection.way, f"topic {name}", "done")
                self.add(event, {"automatic": True})

    def begin(self, connection: Connection, header: RequestHeader, body: bytes, is_from_box: bool = False) -> PendingChange | None:
        """Return what takes the response to an administrative request; None if it is no such request, or cannot be decoded.

        `is_from_box`: address and client id are those of a box that passes the request on. It has audited it, but
        other programs on its machine look the same, so that it is audited here, too.
        """
        client = f"{connection.address} ({header.client_id[:TEXT_MAX]})" if is_from_box else connection.address
        if header.api_key == ApiKey.OFFSET_COMMIT and not may_be_without_member(header.api_version, body):
            return None
        try:
            return self._begin(connection, header, body, client, is_from_box)
        except ProtocolViolation:
            return None
        except Exception as error:
            pending = PendingChange(self, header.api_key, None, connection, client)
            pending.refuse_unread(header, body, error)
            return pending

    def _begin(self, connection: Connection, header: RequestHeader, body: bytes, client: str, is_from_box: bool) -> PendingChange | None:
        from services.acceptor.audit.audited_requests import read_change

        change, is_large = None, False
        try:
            change = read_change(header.api_key, header.api_version, body, self._view.image, DECODED_ELEMENTS_MAX)
        except ProtocolViolation as violation:
            if violation.reason != TOO_MANY_ELEMENTS:
                raise
            is_large = True
            if self._may_name_audit_topic(body):  # only to know that
                change = read_change(header.api_key, header.api_version, body, self._view.image)
        if header.api_key == ApiKey.OFFSET_COMMIT and change is not None and (change.request.generation_id >= 0 or change.request.member_id):
            return None
        if change is not None and not is_large:
            change = self._with_former(change)
        pending = PendingChange(self, header.api_key, change, connection, client)
        if is_large:
            pending.mark_large(body)
        if change is not None and change.names_audit_topic and not connection.origin.is_privileged:
            # Other boxes only create it. Also root's requests on another box than the controller's come from there, but so may those of others.
            if not (is_from_box and self._is_box(connection) and change.is_automatic_creation):
                pending.refusal = change.refused(ErrorCode.POLICY_VIOLATION, PROTECTED)
        return pending

    def _with_former(self, change: AuditedChange) -> AuditedChange:
        from services.acceptor.audit.audited_requests import former_quotas, former_token, former_users

        if change.api_key == ApiKey.ALTER_CLIENT_QUOTAS and self._quotas is not None:
            return change._replace(former=former_quotas(change.request, self._quotas.quotas))
        if change.api_key in _ABOUT_CREDENTIALS and self._find_credentials is not None:
            credentials = self._find_credentials()
            credentials.load()
            former = former_users if change.api_key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS else former_token
            return change._replace(former=former(change.request, credentials))
        return change

    def _is_box(self, connection: Connection) -> bool:
        """Whether the request may be one that another box has admitted."""
        may = connection.rights is not None and connection.rights.would_allow_on_cluster(AclOperation.CLUSTER_ACTION)
        return may and connection.listening.is_inter_broker and len(self._view.image.brokers) > 1

    def _may_name_audit_topic(self, body: bytes) -> bool:
        topic = self._view.image.topics.get(AUDIT_TOPIC)
        return AUDIT_TOPIC.encode() in body or (topic is not None and bytes(topic.topic_id) in body)

    # --- events

    def add(self, event: AuditEvent, details: dict[str, Any]) -> None:
        """Write an event now."""
        self._events.add()
        event = event._replace(principal=event.principal[:TEXT_MAX], resource=event.resource[:TEXT_MAX])
        shown = _json(details)[:DETAILS_MAX].decode("utf-8", "replace") if details else ""
        times = f" ({event.times} times)" if event.times > 1 else ""
        where = f"{event.client} (listener {event.listener})" if event.listener else event.client
        words = f"{event.event}: {event.principal} from {where}: {event.resource}: {event.outcome}{times} {shown}".rstrip()
        self._log.info(_printable(words), audit=event.event, principal=event.principal, client=event.client)
        if self.topic is not None:
            document = {"time_ms": self._clock.wall_ms(), "broker": self._view.broker_id, **event._asdict(), "details": details}
            value = _json(document)
            self.topic.offer(value if len(value) <= DETAILS_MAX else _json({**document, "details": {"shortened": shown}}))

    def add_repeated(self, event: AuditEvent, details: dict[str, Any] | None = None) -> None:
        """Write an event now, and equal ones of the next minute as one."""
        event = event._replace(resource=event.resource[:TEXT_MAX])
        repeated = self._repeated.get(event)
        if repeated is not None:
            repeated.count += 1
        elif self._kinds[event.event] >= REMEMBERED_MAX:
            self._others[event.event] += 1
        else:
            self._kinds[event.event] += 1
            self._repeated[event] = _Repeated(self._clock.monotonic_ns() + PERIOD_NS)
            self.add(event, details or {})

    def sweep(self, now_ns: int) -> None:
        """Write the numbers of repeated events whose minute is over."""
        for event, repeated in [(event, repeated) for event, repeated in self._repeated.items() if now_ns >= repeated.ends_ns]:
            if repeated.count:
                self.add(event._replace(times=repeated.count), {})
                repeated.count, repeated.ends_ns = 0, now_ns + PERIOD_NS
            else:
                del self._repeated[event]
                self._kinds[event.event] -= 1
        if self._others and now_ns >= self._others_due_ns:
            self._others_due_ns = now_ns + PERIOD_NS
            for kind, times in self._others.items():
                self.add(AuditEvent(kind, "various", "various", "", "more of this kind, not named one by one", "various", times), {})
            self._others.clear()

    def close(self) -> None:
        """Write what is counted, because the process ends."""
        for event, repeated in self._repeated.items():
            if repeated.count:
                self.add(event._replace(times=repeated.count), {})
        self._repeated.clear()


def _json(value: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a name with half of a surrogate pair
        return json.dumps(value, default=str, ensure_ascii=False).encode("utf-8", "replace")


def _printable(words: str) -> str:
    """Names are those of clients: none of them begins a line of the log."""
    return words if words.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in words)


def may_be_without_member(version: int, body: bytes) -> bool:
    """Return whether an OffsetCommit may come from no member of its group: a look at its first fields, because each
    consumer sends some."""
    if version < 1:
        return True
    if version >= FLEXIBLE_COMMITS_SINCE:
        length, position = body[0] if body else 0, 1
        if length > 127:
            return True  # a long name: decode it
        position += length - 1
    else:
        position = 2 + int.from_bytes(body[:2], "big")
    return body[position : position + 4] == b"\xff\xff\xff\xff"


FLEXIBLE_COMMITS_SINCE: Final = 8
