"""The settings file, the resolved settings, and `Box`, the content of `box.json`.

The supervisor writes `box.json` before any other process starts; the others only read it. Problems
are collected, not raised one at a time; each names its path, the value and what is allowed. `Box`
is a NamedTuple read with the standard library's json, because msgspec would cost 4 MB in each
process. A change of the file takes effect at a reload (`runtime/settings_watch.py`) or the next start.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from appliance.base.config_numbers import parse_double
from appliance.base.io_class import io_class_problems
from appliance.base.layout import BoxLayout, Disk
from appliance.base.model import topic_name_problem
from appliance.base.networks import is_network, read_networks, split_networks
from appliance.base.setting_row import INT64_MAX, SettingRow, SettingValue
from appliance.base.setting_rows import SETTING_ROWS
from appliance.base.zookeeper_member import ZooKeeperMember, parse_member

BOX_TABLE = "box"
SENDER_TABLES = ("listener", "route", "default", "dead-letter")
"""Names below `ingest` that are tables of senders (`appliance/senders/sender_tables.py`), not
settings."""
OLD_TABLE_SETTING = "ingest.table.file"
"""Release 0.1 had the tables of senders in a file of its own, which this named
(`appliance/senders/old_table.py`)."""
TOML_HINT = 'write names in quotes where one continues another, as in "max.connections" = 100'


class SenderSocket(NamedTuple):
    """A listening socket for senders: its name in LISTEN_FDNAMES, its address ("": that of the
    box), and the table that asks for it (FILE: TABLE).
    """

    name: str
    is_datagram: bool
    address: str
    port: int
    where: str = ""


class KafkaListener(NamedTuple):
    """A listening socket for Kafka clients. Port 0: any free one; advertised port 0: the real one.
    `settings`: those that it has for itself.
    """

    name: str
    protocol: str
    address: str
    port: int
    advertised_host: str
    advertised_port: int = 0
    settings: dict[str, SettingValue] = {}  # noqa: RUF012  never changed

    @property
    def endpoint(self) -> tuple[str, str, int]:
        """Name, host and port, as clients connect to it."""
        return self.name, self.advertised_host, self.advertised_port or self.port


class Box(NamedTuple):
    """One box as its processes see it. Ports are the real ones; `zookeeper` is a connect string."""

    box: str
    broker_id: int
    disks: list[Disk]
    state_directory: str
    listen: str
    advertise: str
    kafka_port: int
    syslog_port: int
    http_port: int
    acceptors: int = 1
    ingests: int = 1
    zookeeper: str = ""
    embedded_zookeeper: bool = True
    """Whether this box runs a ZooKeeper server: its own, or its member of the ensemble."""
    zookeeper_members: list[str] = []  # noqa: RUF012  never changed
    """The ensemble that the boxes run together; empty if the server of this box is its own, or
    ZooKeeper is elsewhere."""
    cluster_id: str = ""
    """The cluster id if known without ZooKeeper: always with an embedded server, otherwise ''."""
    pid: int = 0
    started_wall_ms: int = 0
    ingest_port: int = 0
    sender_tables: dict[str, Any] = {}  # noqa: RUF012  never changed
    """The tables `SENDER_TABLES` of the settings file, as they were when the box started."""
    sender_sockets: list[SenderSocket] = []  # noqa: RUF012  never changed
    """The sockets of their listeners."""
    listeners: list[KafkaListener] = []  # noqa: RUF012  never changed
    """The listeners for Kafka clients if the setting has them, the inter-broker listener first."""
    managed_by: str = "millrace run"
    """What starts and stops the processes: `millrace run`, or systemd."""
    settings: dict[str, SettingValue] = {}  # noqa: RUF012  only a reload changes it; `setting` falls back to the row's default
    reloads: int = 0
    """How often settings were reloaded since the box started."""

    def setting(self, name: str) -> SettingValue:
        """Return the value of a setting. KeyError for an unknown name is a defect."""
        value = self.settings.get(name)
        return SETTING_ROWS[name].default if value is None else value

    def integer(self, name: str) -> int:
        """Return the value of a setting with a number."""
        value = self.setting(name)
        if not isinstance(value, int):
            raise TypeError(f"setting {name} is {value!r}, not a number")
        return value

    def integer_of(self, listener: KafkaListener, name: str) -> int:
        """Return the value of a setting with a number as a listener has it."""
        value = listener.settings.get(name)
        return value if isinstance(value, int) else self.integer(name)

    def text(self, name: str) -> str:
        """Return the value of a setting with a text."""
        value = self.setting(name)
        if not isinstance(value, str):
            raise TypeError(f"setting {name} is {value!r}, not a text")
        return value

    def flag(self, name: str) -> bool:
        """Return the value of a setting that is true or false."""
        value = self.setting(name)
        if not isinstance(value, bool):
            raise TypeError(f"setting {name} is {value!r}, not true or false")
        return value

    @property
    def kafka_listeners(self) -> list[KafkaListener]:
        """The listeners for Kafka clients; the first is the inter-broker listener."""
        return self.listeners or [KafkaListener("PLAINTEXT", "PLAINTEXT", self.listen, self.kafka_port, self.advertise)]

    @property
    def local_kafka(self) -> tuple[str, int]:
        """Host and port by which processes of this machine reach the inter-broker listener: with TLS
        those that it advertises, which its certificate has."""
        listener = self.kafka_listeners[0]
        if listener.protocol != "PLAINTEXT":
            _, host, port = listener.endpoint
            return host, port
        anywhere = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
        return anywhere.get(listener.address, listener.address), listener.port

    @property
    def rack(self) -> str | None:
        """The rack of the box, from the setting broker.rack; None if it is not set."""
        return self.text("broker.rack") or None

    @property
    def ensemble(self) -> list[ZooKeeperMember]:
        return [parse_member(text) for text in self.zookeeper_members]

    @property
    def own_zookeeper(self) -> str:
        """HOST:PORT of the server that this box runs."""
        return self.zookeeper.partition("/")[0].partition(",")[0]

    @property
    def table_locations(self) -> list[str]:
        """The directories at or below which topics may be tables."""
        return table_locations(self.text("tables.locations"))

    @property
    def tables_need_network(self) -> bool:
        """Whether a table is in an object store, or the catalog of tables may be on another machine."""
        return bool(self.text("tables.properties.file")) or any("://" in each for each in self.table_locations)

    @property
    def may_have_neighbours(self) -> bool:
        """Whether the cluster can have other boxes: not if the ZooKeeper server of this box is its
        own."""
        return not self.embedded_zookeeper or bool(self.zookeeper_members)

    @property
    def replica_arena_bytes(self) -> int:
        """Arena of the replica-fetcher in bytes. It must hold the largest batch that a client can
        produce."""
        return max(self.integer("replica.fetcher.arena.bytes"), 2 * self.integer("socket.request.max.bytes"))

    def disk(self, name: str) -> Disk:
        return next(disk for disk in self.disks if disk.name == name)

    def process_names(self) -> list[str]:
        """Return the names of all processes of this box except the supervisor, in the usual order
        of display."""
        names = ["zookeeper"] if self.embedded_zookeeper else []
        names += ["controller", "coordinator", "replica-fetcher"]
        names += [f"log-writer@{disk.name}" for disk in self.disks]
        names += [f"log-reader@{disk.name}" for disk in self.disks]
        names += [f"acceptor@{index}" for index in range(self.acceptors)]
        names += [f"ingest@{index}" for index in range(self.ingests)]
        names += ["tabler"] if self.table_locations else []
        return [*names, "console"]

    def to_json(self) -> bytes:
        document = {**self._asdict(), "disks": [disk._asdict() for disk in self.disks], "sender_sockets": [sock._asdict() for sock in self.sender_sockets]}
        document["listeners"] = [listener._asdict() for listener in self.listeners]
        return json.dumps(document, indent=1).encode()

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Box:
        """Inverse of `to_json`. Raises TypeError for a field of another release: one release runs
        on a box at a time."""
        sockets = [SenderSocket(**sock) for sock in document.get("sender_sockets", [])]
        listeners = [KafkaListener(**listener) for listener in document.get("listeners", [])]
        return cls(**{**document, "disks": [Disk(**disk) for disk in document["disks"]], "sender_sockets": sockets, "listeners": listeners})


def load_box(layout: BoxLayout) -> Box:
    """Return the box of a runtime directory. Raises OSError, ValueError or TypeError."""
    return Box.from_document(layout.read_box())


def default_settings() -> dict[str, SettingValue]:
    return {name: row.default for name, row in SETTING_ROWS.items()}


def setting_problem(row: SettingRow, value: object) -> str | None:
    """Return why `value` is not allowed for `row`, or None."""
    default = row.default
    fits = type(value) is type(default)
    if fits and isinstance(value, int) and not isinstance(value, bool):
        fits = row.low <= value <= row.high
    if fits and isinstance(value, str):
        fits = value in row.choices if row.choices else bool(value) or not default
    return None if fits else f"{row.name} is {value!r}; allowed is {row.allowed}"


_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,100}")
_FITS_UNIT_FILE = re.compile(r"/[^/\s%\"'\\][^\s%\"'\\]*")


S3_LOCATION = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/(?!\.\.?(/|$))[A-Za-z0-9._=-]{1,200}){0,20}")
"""Where a table in an object store may be."""


def table_locations(setting: str) -> list[str]:
    """Return the directories of the setting `tables.locations`."""
    return [part.strip() for part in setting.split(",") if part.strip()]


AUTHORIZERS = ("", "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "kafka.security.authorizer.AclAuthorizer")
"""Values of `authorizer.class.name`; the last two mean the same."""


def _zookeeper_tls_problems(settings: dict[str, SettingValue]) -> list[str]:
    connects, server = bool(settings["zookeeper.ssl.client.enable"]), settings["zookeeper.server.tls"]
    problems = []
    if server == "required" and not connects:
        problems.append("zookeeper.server.tls is required, which needs zookeeper.ssl.client.enable = true: this box connects to its own server, too")
    for name, needs in (("keystore", server != "off"), ("truststore", server != "off" or connects)):
        if needs and not settings[f"zookeeper.ssl.{name}.location"]:
            problems.append(f"zookeeper.ssl.{name}.location is not set, and TLS with ZooKeeper needs it; millrace cluster certificate makes the file")
    return problems


def relation_problems(settings: dict[str, SettingValue]) -> list[str]:
    """Return the problems between settings that are valid one by one."""
    problems = []

    def number(name: str) -> int:
        return int(settings[name])

    if number("channel.ring.entries") & (number("channel.ring.entries") - 1):
        problems.append(f"channel.ring.entries is {number('channel.ring.entries')}; it must be a power of two, such as 1024")
    for arena in ("acceptor.arena.bytes", "ingest.arena.bytes"):
        if number("disk.budget.bytes") > number(arena):
            problems.append(f"disk.budget.bytes ({number('disk.budget.bytes')}) is more than {arena} ({number(arena)}); make it at most that")
    if number("socket.request.max.bytes") * 2 > number("acceptor.arena.bytes"):
        problems.append(
            f"socket.request.max.bytes ({number('socket.request.max.bytes')}) must be at most half of acceptor.arena.bytes ({number('acceptor.arena.bytes')})"
        )
    if number("message.max.bytes") > number("socket.request.max.bytes"):
        problems.append(f"message.max.bytes ({number('message.max.bytes')}) is more than socket.request.max.bytes ({number('socket.request.max.bytes')})")
    if number("ingest.batch.bytes") > number("message.max.bytes"):
        problems.append(f"ingest.batch.bytes ({number('ingest.batch.bytes')}) is more than message.max.bytes ({number('message.max.bytes')})")
    if not any(number(f"log.retention.{unit}") for unit in ("ms", "minutes", "hours")):
        problems.append("log.retention.hours is 0, and neither log.retention.ms nor log.retention.minutes is set; -1 keeps records for ever")
    problems += _flush_problems(str(settings["log.flush.policy"]), number("log.flush.interval.messages"), number("log.flush.interval.ms"))
    ratio = str(settings["log.cleaner.min.cleanable.ratio"])
    if not _is_share(ratio):
        problems.append(f"log.cleaner.min.cleanable.ratio is {ratio!r}; it must be a number from 0 to 1, in quotes")
    if number("log.cleaner.min.compaction.lag.ms") > number("log.cleaner.max.compaction.lag.ms"):
        problems.append("log.cleaner.min.compaction.lag.ms is more than log.cleaner.max.compaction.lag.ms")
    for name in ("replica.lag.time.max.ms", "replica.socket.timeout.ms"):
        if number("replica.fetch.wait.max.ms") > number(name):
            problems.append(f"replica.fetch.wait.max.ms ({number('replica.fetch.wait.max.ms')}) is more than {name} ({number(name)}); make it at most that")
    problems += io_class_problems(settings)
    for name in ("inter.broker.allowed.networks", "http.details.allowed.networks"):
        try:
            read_networks(str(settings[name]))
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if (problem := _url_problem(str(settings["alerts.url"]))) is not None:
        problems.append(f"alerts.url {problem}; write http://HOST:PORT/PATH or https://…")
    if settings["authorizer.class.name"] not in AUTHORIZERS:
        problems.append(f"authorizer.class.name is {settings['authorizer.class.name']!r}; it must be empty or {AUTHORIZERS[1]}")
    problems += _zookeeper_tls_problems(settings)
    roles = ("http.role.viewer", "http.role.operator", "http.role.admin")
    for name in ("super.users", *roles):
        for user in str(settings[name]).split(";"):
            if user.strip() and ":" not in user:
                problems.append(f"{name} has {user.strip()!r}; principals have the form User:NAME, and semicolons between them")
    problems += _proxy_problems(str(settings["http.proxy.networks"]), str(settings["http.proxy.user.header"]), any(settings[name] for name in roles))
    for name in ("zookeeper.allowed.addresses", "cluster.networks"):
        for part in split_networks(str(settings[name])):
            if not is_network(part):
                problems.append(f"{name} has {part!r}; it must be an address, or a network as in 10.0.0.0/24")
    for part in table_locations(str(settings["tables.locations"])):
        if not S3_LOCATION.fullmatch(part) and (posixpath.normpath(part) != part or not _FITS_UNIT_FILE.fullmatch(part)):
            problems.append(
                f"tables.locations has {part!r}; write whole paths of directories, from / on, without .., blanks, quotes, \\ and % in them, or s3://BUCKET/PATH"
            )
    for name in ("ingest.syslog.topic", "host.figures.topic"):
        if (problem := topic_name_problem(str(settings[name]))) is not None:
            problems.append(f"{name}: {problem}")
    if 0 < number("host.figures.interval.ms") < 1000:
        problems.append(f"host.figures.interval.ms is {number('host.figures.interval.ms')}; it must be 0 (never) or at least 1000")
    return problems


def _proxy_problems(networks: str, header: str, has_users: bool) -> list[str]:
    problems = []
    try:
        read_networks(networks) if networks else ()
    except ValueError as error:
        problems.append(f"http.proxy.networks: {error}")
    if header and not _HEADER_NAME.fullmatch(header):
        problems.append(f"http.proxy.user.header is {header!r}; it must be the name of a header, such as X-Forwarded-User")
    if header and not networks:
        problems.append("http.proxy.user.header is set, and http.proxy.networks is not; say which addresses the proxy has")
    if (header or networks) and not has_users:
        problems.append("http.proxy.networks is set, and no http.role setting has users; set http.role.viewer, http.role.operator or http.role.admin")
    return problems


def _flush_problems(policy: str, interval_messages: int, interval_ms: int) -> list[str]:
    has_interval = min(interval_messages, interval_ms) < INT64_MAX
    if policy == "interval" and not has_interval:
        return ['log.flush.policy is "interval", and neither log.flush.interval.messages nor log.flush.interval.ms says which; set one of them']
    if policy != "interval" and has_interval:
        return [f'log.flush.interval.messages or log.flush.interval.ms is set, which needs log.flush.policy = "interval"; it is "{policy}"']
    return []


def _url_problem(url: str) -> str | None:
    """Return why nothing could be sent to a URL; it may have a password, which is not repeated."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "has no valid host and port"
    if url and (parts.scheme not in ("http", "https") or not has_host):
        return "does not begin with http:// or https:// and a host"
    return "has characters that no URL has" if not url.isascii() or not url.isprintable() or " " in url else None


def _is_share(text: str) -> bool:
    share = parse_double(text)
    return share is not None and 0 <= share <= 1


def resolve_settings(chosen: dict[str, object], source: str) -> tuple[dict[str, SettingValue], list[str]]:
    """Return all settings, the `chosen` ones in place of defaults, and all problems; `source` says
    where they were read."""
    settings = default_settings()
    problems: list[str] = []
    wrong: set[str] = set()
    for name, value in chosen.items():
        row = SETTING_ROWS.get(name)
        if row is None:
            problems.append(f"{source}: there is no setting {name}{_nearest(name)}")
        elif (problem := setting_problem(row, value)) is not None:
            problems.append(f"{source}: {problem}")
            wrong.add(name)
        else:
            assert isinstance(value, str | int | bool)
            settings[name] = value
    between = [problem for problem in relation_problems(settings) if not any(name in problem for name in wrong)]  # a wrong one has its default here
    return settings, problems + [f"{source}: {problem}" for problem in between]


def _nearest(name: str) -> str:
    """Return the setting with the most equal words, of several the one that is spelled most alike."""
    import difflib  # only where a name is wrong

    words = set(name.replace("_", ".").replace("-", ".").split("."))

    def likeness(other: str) -> tuple[int, float]:
        return len(words & set(other.split("."))), difflib.SequenceMatcher(None, name, other).ratio()

    best = max(SETTING_ROWS, key=likeness)
    return f"; did you mean {best}?" if words & set(best.split(".")) else ""


class SettingsFile(NamedTuple):
    """A settings file: options of the box (table `[box]`), settings by their dotted names,
    problems, and the tables of senders.
    """

    box: dict[str, object]
    settings: dict[str, object]
    problems: list[str]
    senders: dict[str, Any] = {}  # noqa: RUF012  never changed
    """By the names in `SENDER_TABLES`."""
    old_table: str = ""
    """The value of `OLD_TABLE_SETTING`."""


def read_settings_file(path: str) -> SettingsFile:
    """Read a TOML settings file: a table `[box]` (data, state, listen, advertise, kafka-port, …)
    and broker settings by their dotted names."""
    import tomllib  # 1 MB, so only imported where a file is read

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        return SettingsFile({}, {}, [f"{path}: cannot read the settings file: {error.strerror}; give another with --config"])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return SettingsFile({}, {}, [f"{path}: not valid TOML: {error}; {TOML_HINT}"])
    table = document.pop(BOX_TABLE, {})
    if not isinstance(table, dict):
        return SettingsFile({}, {}, [f"{path}: {BOX_TABLE} must be a table, [box]"])
    ingest = document.get("ingest")
    senders = {name: ingest.pop(name) for name in SENDER_TABLES if name in ingest} if isinstance(ingest, dict) else {}
    settings = _flatten(document, "")
    old_table = settings.pop(OLD_TABLE_SETTING, "")
    problems = [] if isinstance(old_table, str) else [f"{path}: {OLD_TABLE_SETTING} is {old_table!r}; allowed is a text"]
    return SettingsFile(table, settings, problems, senders, str(old_table))


def _flatten(document: dict[str, object], prefix: str) -> dict[str, object]:
    """Flatten nested tables: `log.segment.bytes = 1` is a table in a table for TOML, and one name
    here."""
    flat: dict[str, object] = {}
    for key, value in document.items():
        if value == {} and not any(name.startswith(f"{prefix}{key}.") for name in SETTING_ROWS):
            flat[f"{prefix}{key}"] = value  # an unknown table is reported even if it is empty
        elif isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
