"""A listener of the ingestion endpoint: where it listens, what it speaks, and the settings that every session of it reads.

Pure values, made once: the built-in ones from the box's settings, the others from the lines of the table (`ingest_table`). Nothing changes while the process
lives; certificates are files, and looked at by who uses them. Weak: one value holds the settings of all protocols; what a protocol has no use for is
refused when the table is read, not here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from appliance.base.settings import Box

SYSLOG_TCP, SYSLOG_UDP, HTTP = "syslog-tcp", "syslog-udp", "http"
"""The names of the built-in listeners."""
FRAME_BYTES_MAX = 16 << 20
DECOMPRESSED_BYTES_MAX = 64 << 20
IDLE_MS_MAX = 60_000


class Protocol(StrEnum):
    """What a listener speaks."""

    SYSLOG = "syslog"
    RELP = "relp"
    FLUENT = "fluent"
    LUMBERJACK = "lumberjack"
    GELF = "gelf"
    HTTP = "http"


class ListenerTransport(StrEnum):
    """What it is spoken over."""

    TCP = "tcp"
    UDP = "udp"
    TLS = "tls"


class ProxyMode(StrEnum):
    """Which header of a proxy in front may stand at the beginning of a connection."""

    NO = "no"
    V1 = "v1"
    V2 = "v2"
    YES = "yes"
    """Either version, or none."""
    REQUIRED = "required"
    """Either version; a connection without one is closed."""


class KeyKind(StrEnum):
    """What of a record its key is."""

    HOST = "host"
    APP = "app"
    TAG = "tag"
    NONE = "none"
    LABEL = "label"
    FIELD = "field"


class KeyRule(NamedTuple):
    """`name` is the label's, or the path of the field (`a.b`)."""

    kind: KeyKind = KeyKind.HOST
    name: str = ""

    @property
    def text(self) -> str:
        return f"{self.kind}.{self.name}" if self.name else str(self.kind)


class Listener(NamedTuple):
    """One listener. Texts are "" and tuples empty where nothing was said."""

    name: str
    protocol: Protocol
    transport: ListenerTransport
    port: int
    address: str = ""
    """"": the address that the box listens on."""
    topic: str = ""
    """Where records go that no route takes; "": to the default topic."""
    key: KeyRule = KeyRule()
    is_key_required: bool = False
    """Whether a record without its key is a dead letter (else it goes to any partition)."""
    acks: int = -1
    """-1: acknowledged when all in-sync replicas have it, 1: when the leader has, 0: when it was received."""
    raw: bool = False
    """Whether the record's value is what the sender wrote, not the document."""
    time_zone: str = "UTC"
    message_bytes_max: int = 65536
    """A longer syslog message is cut and marked."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """A larger frame, or body of a request, is refused before memory is taken."""
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    """What a compressed one may hold."""
    proxy: ProxyMode = ProxyMode.NO
    proxy_from: tuple[str, ...] = ()
    """Networks (CIDR) whose proxy headers name the sender; empty: a header is recorded, and names nobody."""
    certificate: str = ""
    private_key: str = ""
    client_ca: str = ""
    """Senders must show a certificate of these authorities."""
    client_names: tuple[str, ...] = ()
    """Names of which a sender's certificate must hold one; `*.example.com` stands for one label."""
    tokens: tuple[str, ...] = ()
    """HTTP: a request must show one of them (bearer, Splunk, or the password of basic)."""
    shared_key: str = ""
    """Fluent forward."""
    idle_ms_max: int = IDLE_MS_MAX
    """How long an unfinished frame, request or handshake may stand still."""

    @property
    def is_built_in(self) -> bool:
        return self.name in (SYSLOG_TCP, SYSLOG_UDP, HTTP)

    @property
    def fd_name(self) -> str:
        """The name of its socket among LISTEN_FDNAMES."""
        return self.name if self.name in (SYSLOG_TCP, SYSLOG_UDP) else f"ingest-{self.name}"

    @property
    def is_datagram(self) -> bool:
        return self.transport is ListenerTransport.UDP


def parse_key(text: str) -> KeyRule | None:
    """`host`, `app`, `tag`, `none`, `label.X`, `field.a.b`; None for anything else."""
    kind, dot, name = text.partition(".")
    if kind in (KeyKind.LABEL, KeyKind.FIELD):
        return KeyRule(KeyKind(kind), name) if name else None
    return KeyRule(KeyKind(kind)) if kind in KeyKind.__members__.values() and not dot else None


def listener_defaults(box: Box) -> Listener:
    """What holds for every listener as long as its line does not say otherwise."""
    return Listener(
        name="",
        protocol=Protocol.SYSLOG,
        transport=ListenerTransport.TCP,
        port=0,
        key=parse_key(box.text("ingest.syslog.key")) or KeyRule(),
        time_zone=box.text("ingest.syslog.time.zone"),
        message_bytes_max=box.integer("ingest.syslog.max.message.bytes"),
        decompressed_bytes_max=box.integer("ingest.decompressed.bytes.max"),
    )


def built_in_listeners(box: Box) -> tuple[Listener, ...]:
    """Syslog over TCP and UDP on one port, and HTTP."""
    defaults = listener_defaults(box)
    return (
        defaults._replace(name=SYSLOG_TCP, port=box.syslog_port, proxy=ProxyMode.V1),
        defaults._replace(name=SYSLOG_UDP, transport=ListenerTransport.UDP, port=box.syslog_port),
        defaults._replace(name=HTTP, protocol=Protocol.HTTP, port=box.ingest_port),
    )
