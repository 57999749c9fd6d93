"""A listener of ingest: its address, its protocol, and the options that its sessions read.

Immutable values, made once: the built-in ones from the box's settings, the others from the tables
of senders (`sender_tables`). Certificates are files; TLS code watches them. Weak: one class has the
options of all protocols; the reader of the tables refuses what a protocol does not use.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from appliance.base.http_hosts import box_names
from appliance.base.settings import Box

SYSLOG_TCP, SYSLOG_UDP, HTTP = "syslog-tcp", "syslog-udp", "http"
"""The names of the built-in listeners."""
FRAME_BYTES_MAX = 16 << 20
DECOMPRESSED_BYTES_MAX = 16 << 20
IDLE_MS_MAX = 60_000


class Protocol(StrEnum):
    """The protocol of a listener."""

    SYSLOG = "syslog"
    RELP = "relp"
    FLUENT = "fluent"
    LUMBERJACK = "lumberjack"
    GELF = "gelf"
    HTTP = "http"


class ListenerTransport(StrEnum):
    """What the protocol runs over."""

    TCP = "tcp"
    UDP = "udp"
    TLS = "tls"


class ProxyMode(StrEnum):
    """Which PROXY header may come first on a connection."""

    NO = "no"
    V1 = "v1"
    V2 = "v2"
    YES = "yes"
    """Either version, or none."""
    REQUIRED = "required"
    """Either version; a connection without one is closed."""


class KeyKind(StrEnum):
    """What a record's key is taken from."""

    HOST = "host"
    APP = "app"
    TAG = "tag"
    NONE = "none"
    LABEL = "label"
    FIELD = "field"


class KeyRule(NamedTuple):
    """`name` is the label's name, or the path of the field (`a.b`)."""

    kind: KeyKind = KeyKind.HOST
    name: str = ""

    @property
    def text(self) -> str:
        return f"{self.kind}.{self.name}" if self.name else str(self.kind)


class Token(NamedTuple):
    """A token of an HTTP listener.

    `topics`, `principal`: as those of the listener, which count if they are empty. `paths`: the only
    paths that it opens, in which * matches any characters; empty: all.
    """

    value: str
    topics: tuple[str, ...] = ()
    principal: str = ""
    paths: tuple[str, ...] = ()


class Listener(NamedTuple):
    """One listener. Options that are not set are empty."""

    name: str
    protocol: Protocol
    transport: ListenerTransport
    port: int
    address: str = ""
    """Empty: the address of the box."""
    topic: str = ""
    """Topic for records that match no route. Empty: the default topic."""
    principal: str = ""
    """`User:NAME`, which needs WRITE on the topics of its records. Empty: no right is needed."""
    key: KeyRule = KeyRule()
    is_key_required: bool = False
    """Whether a record without its key is a dead letter; otherwise it goes to any partition."""
    acks: int = -1
    """When a record is acknowledged. -1: all in-sync replicas have it; 1: the leader has it; 0: it
    was received.
    """
    raw: bool = False
    """Whether the record's value is what the sender wrote, not the JSON document."""
    time_zone: str = "UTC"
    message_bytes_max: int = 65536
    """A longer syslog message is cut and marked."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """A larger frame or request body is refused before memory is allocated."""
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    """The largest content of a compressed frame or request."""
    proxy: ProxyMode = ProxyMode.NO
    proxy_from: tuple[str, ...] = ()
    """Networks (CIDR) whose PROXY headers set the sender's address. Empty: a header is only
    recorded.
    """
    certificate: str = ""
    private_key: str = ""
    client_ca: str = ""
    """Senders must present a certificate of these authorities."""
    client_names: tuple[str, ...] = ()
    """Names of which the sender's certificate must contain one; `*.example.com` matches one label.
    """
    tokens: tuple[Token, ...] = ()
    """HTTP: a request must present one of these (bearer, Splunk, or the password of basic)."""
    topics: tuple[str, ...] = ()
    """HTTP: topics, or patterns with `*`, that a request may name, and to which the routes may take
    its records. Empty: a request may name the topics that the tables have for this listener."""
    allow_origin: tuple[str, ...] = ()
    """HTTP: origins (`https://app.example.com`, or `*`) whose web pages may send here."""
    host_names: frozenset[str] = frozenset(("localhost",))
    """HTTP: names that a request may address, beside IP addresses; those of the box."""
    shared_key: str = ""
    """The shared key of Fluent's forward protocol."""
    sender_bytes_per_second: int = 0
    sender_records_per_second: int = 0
    """What one address may send (`ingest.sender.bytes.per.second`); 0: no limit."""
    bytes_per_second: int = 0
    records_per_second: int = 0
    """What all addresses may send together."""
    tls_handshakes_per_second: int = 0
    """What one address may begin (`tls.handshakes.per.second`); 0: no limit."""
    idle_ms_max: int = IDLE_MS_MAX
    """How long an incomplete frame, request or handshake may make no progress."""

    @property
    def is_built_in(self) -> bool:
        return self.name in (SYSLOG_TCP, SYSLOG_UDP, HTTP)

    @property
    def fd_name(self) -> str:
        """The name of its socket in LISTEN_FDNAMES."""
        return self.name if self.name in (SYSLOG_TCP, SYSLOG_UDP) else f"ingest-{self.name}"

    @property
    def is_datagram(self) -> bool:
        return self.transport is ListenerTransport.UDP


def parse_key(text: str) -> KeyRule | None:
    """Parse `host`, `app`, `tag`, `none`, `label.X` or `field.a.b`; None for anything else."""
    kind, dot, name = text.partition(".")
    if kind in (KeyKind.LABEL, KeyKind.FIELD):
        return KeyRule(KeyKind(kind), name) if name else None
    return KeyRule(KeyKind(kind)) if kind in KeyKind.__members__.values() and not dot else None


def listener_defaults(box: Box) -> Listener:
    """Return the options that a listener has if its table does not set them."""
    return Listener(
        name="",
        protocol=Protocol.SYSLOG,
        transport=ListenerTransport.TCP,
        port=0,
        key=parse_key(box.text("ingest.syslog.key")) or KeyRule(),
        time_zone=box.text("ingest.syslog.time.zone"),
        message_bytes_max=box.integer("ingest.syslog.max.message.bytes"),
        decompressed_bytes_max=box.integer("ingest.decompressed.bytes.max"),
        sender_bytes_per_second=box.integer("ingest.sender.bytes.per.second"),
        sender_records_per_second=box.integer("ingest.sender.records.per.second"),
        tls_handshakes_per_second=box.integer("tls.handshakes.per.second"),
        bytes_per_second=box.integer("ingest.listener.bytes.per.second"),
        records_per_second=box.integer("ingest.listener.records.per.second"),
        host_names=box_names(box),
    )


def built_in_listeners(box: Box) -> tuple[Listener, ...]:
    """Return the built-in listeners: syslog over TCP and UDP on one port, and HTTP."""
    defaults = listener_defaults(box)
    return (
        defaults._replace(name=SYSLOG_TCP, port=box.syslog_port),
        defaults._replace(name=SYSLOG_UDP, transport=ListenerTransport.UDP, port=box.syslog_port),
        defaults._replace(name=HTTP, protocol=Protocol.HTTP, port=box.ingest_port),
    )
