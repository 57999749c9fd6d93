"""The file of one mirror (TOML): one target, one or several sources. Everything wrong in it is reported at once.

Options of clients have Kafka's names (`client/security.py` has those that are understood); the keys of a
mirror itself are those of the tables below. docs/mirroring.md describes them. Pure except for reading.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any, Final, NamedTuple

from appliance.base.errors import ConfigurationProblems
from appliance.base.model import topic_name_problem
from appliance.client.address import Address, parse_addresses
from appliance.client.groups import MIRROR_PREFIX
from appliance.client.security import ClientSecurity, client_security

BOOTSTRAP: Final = "bootstrap.servers"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_CLIENT_OPTIONS: Final = ("security.", "sasl.", "ssl.")
EARLIEST, LATEST = "earliest", "latest"
CONTINUE, STOP = "continue", "stop"


class ClusterOptions(NamedTuple):
    bootstrap: list[Address]
    security: ClientSecurity | None


class MirroredSource(NamedTuple):
    name: str
    cluster: ClusterOptions
    topics: list[re.Pattern[str]]
    exclude: list[re.Pattern[str]]
    prefix: str
    start: str
    """EARLIEST or LATEST: where a partition without a position begins"""
    on_source_change: str
    """CONTINUE or STOP: what a partition does whose records at the position are gone, or are of another topic"""
    groups: list[re.Pattern[str]]
    """whose committed offsets are translated"""


class MirrorOptions(NamedTuple):
    name: str
    target: ClusterOptions
    sources: list[MirroredSource]
    replication_factor: int | None
    copies_settings: bool
    round_ms: int
    topics_ms: int
    groups_ms: int
    status_ms: int
    status_file: str

    @property
    def transactional_id(self) -> str:
        return f"{MIRROR_PREFIX}{self.name}"

    def group_of(self, source: MirroredSource) -> str:
        """Return the group whose offsets on the target are the positions in this source."""
        return f"{MIRROR_PREFIX}{self.name}.{source.name}"


_MIRROR_KEYS: Final = {"target", "source", "round-ms", "topics-seconds", "groups-seconds", "status-seconds", "status-file", "copy-settings"}
_SOURCE_KEYS: Final = {"name", "topics", "exclude", "prefix", "start", "on-source-change", "groups"}
_TARGET_KEYS: Final = {"replication-factor"}


def mirror_name(path: str) -> str:
    return os.path.basename(path).removesuffix(".toml")


def read_mirror_file(path: str, runtime_directory: str | None = None) -> MirrorOptions:
    """Return what the file says. `runtime_directory`: where the status is written unless the file names a place.

    Raises ConfigurationProblems with all problems.
    """
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise ConfigurationProblems([f"could not read {path}: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationProblems([f"{path} is no TOML: {error}"]) from None
    reader = _MirrorFileReader(path)
    options = reader.mirror(document, runtime_directory)
    if reader.has_password and mode & stat.S_IROTH:
        reader.problems.append(f"{path} has a password, and all users may read it; take that right away: chmod o-r {path}")
    if reader.problems or options is None:
        raise ConfigurationProblems(reader.problems)
    return options


class _MirrorFileReader:
    """Collects problems while it reads; a value that cannot be read is replaced by a harmless one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[str] = []
        self.has_password = False

    def mirror(self, document: dict[str, Any], runtime_directory: str | None) -> MirrorOptions | None:
        name = mirror_name(self.path)
        if not _NAME.match(name):
            self._problem("", f"the name of a mirror is its file's name, and {name!r} has other characters than letters, digits, '_' and '-', or more than 64")
        self._unknown("", document, _MIRROR_KEYS, ())
        target, sources = document.get("target"), document.get("source")
        if not isinstance(target, dict):
            self._problem("", f"[target] is missing; write it with {BOOTSTRAP}")
            target = {BOOTSTRAP: "localhost"}
        if not isinstance(sources, list) or not sources or not all(isinstance(source, dict) for source in sources):
            self._problem("", f"[[source]] is missing; write one for each cluster, with name, {BOOTSTRAP} and topics")
            sources = []
        target = _flattened(target)
        self._unknown("[target]", target, _TARGET_KEYS, _CLIENT_OPTIONS)
        read = [self._source(number, _flattened(source)) for number, source in enumerate(sources, 1)]
        names = [source.name for source in read]
        for repeated in sorted({each for each in names if names.count(each) > 1}):
            self._problem("", f"two sources have the name {repeated!r}; positions are kept by it")
        default_file = os.path.join(runtime_directory, "status.json") if runtime_directory else f"{self.path}.status.json"
        return MirrorOptions(
            name,
            self._cluster("[target]", target),
            read,
            self._optional_number("[target]", target, "replication-factor", 1, 100),
            self._boolean(document, "copy-settings"),
            self._number("", document, "round-ms", 200, 0, 60_000),
            1000 * self._number("", document, "topics-seconds", 30, 1, 86_400),
            1000 * self._number("", document, "groups-seconds", 60, 1, 86_400),
            1000 * self._number("", document, "status-seconds", 5, 1, 3_600),
            self._text("", document, "status-file", default_file),
        )

    def _source(self, number: int, table: dict[str, Any]) -> MirroredSource:
        name = table.get("name")
        where = f"[[source]] {name if isinstance(name, str) else number}"
        if not isinstance(name, str) or not _NAME.match(name):
            self._problem(where, "name is missing, or has other characters than letters, digits, '_' and '-', or more than 64")
            name = f"source-{number}"
        self._unknown(where, table, _SOURCE_KEYS, _CLIENT_OPTIONS)
        prefix = self._text(where, table, "prefix", f"{name}.")
        if prefix and (problem := topic_name_problem(f"{prefix}x")) is not None:
            self._problem(where, f"prefix {prefix!r}: {problem}")
        topics = self._patterns(where, table, "topics")
        if not table.get("topics"):
            self._problem(where, 'topics is missing; list regular expressions for whole names, as in topics = ["syslog", "app-.*"]')
        return MirroredSource(
            name,
            self._cluster(where, table),
            topics,
            self._patterns(where, table, "exclude"),
            prefix,
            self._choice(where, table, "start", (EARLIEST, LATEST)),
            self._choice(where, table, "on-source-change", (CONTINUE, STOP)),
            self._patterns(where, table, "groups"),
        )

    def _cluster(self, where: str, table: dict[str, Any]) -> ClusterOptions:
        bootstrap: list[Address] = []
        try:
            bootstrap = parse_addresses(str(table.get(BOOTSTRAP, "")))
        except ValueError as error:
            self._problem(where, f"{BOOTSTRAP}: {error}")
        given = {key: value for key, value in table.items() if key.startswith(_CLIENT_OPTIONS)}
        self.has_password |= any(key in ("sasl.password", "sasl.jaas.config") for key in given)
        wrong = [key for key, value in given.items() if not isinstance(value, str) or "\n" in value]
        for key in wrong:
            self._problem(where, f"{key} must be a text of one line")
        if wrong:
            return ClusterOptions(bootstrap, None)
        try:
            security = client_security({key: str(value) for key, value in given.items()}, "it") if given else None
        except ValueError as error:
            self._problem(where, str(error).removeprefix("it: "))
            security = None
        for path in (security.authorities, security.keystore, security.token_file) if security is not None else ():
            if path and not os.access(path, os.R_OK):
                self._problem(where, f"{path} cannot be read")
        return ClusterOptions(bootstrap, security)

    # --- values

    def _problem(self, where: str, text: str) -> None:
        self.problems.append(f"{self.path}: {where + ': ' if where else ''}{text}")

    def _unknown(self, where: str, table: dict[str, Any], known: set[str], prefixes: tuple[str, ...]) -> None:
        for key in sorted(table):
            if key not in known and not (prefixes and (key == BOOTSTRAP or key.startswith(prefixes))):
                self._problem(where, f"{key} is no key; keys are {', '.join(sorted(known))}")

    def _number(self, where: str, table: dict[str, Any], key: str, default: int, least: int, most: int) -> int:
        value = table.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self._problem(where, f"{key} is {value!r}; it is a number from {least} to {most}")
            return default
        return int(value)

    def _optional_number(self, where: str, table: dict[str, Any], key: str, least: int, most: int) -> int | None:
        return self._number(where, table, key, least, least, most) if key in table else None

    def _boolean(self, table: dict[str, Any], key: str) -> bool:
        value = table.get(key, True)
        if not isinstance(value, bool):
            self._problem("", f"{key} is {value!r}; it is true or false")
        return bool(value)

    def _text(self, where: str, table: dict[str, Any], key: str, default: str) -> str:
        value = table.get(key, default)
        if not isinstance(value, str):
            self._problem(where, f"{key} is {value!r}; it is a text")
            return default
        return value

    def _choice(self, where: str, table: dict[str, Any], key: str, choices: tuple[str, ...]) -> str:
        value = table.get(key, choices[0])
        if value not in choices:
            self._problem(where, f"{key} is {value!r}; it can be {', '.join(choices)}")
            return choices[0]
        return str(value)

    def _patterns(self, where: str, table: dict[str, Any], key: str) -> list[re.Pattern[str]]:
        texts = table.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self._problem(where, f"{key} must be a list of regular expressions")
            return []
        found = []
        for text in texts:
            try:
                found.append(re.compile(text))
            except re.error as error:
                self._problem(where, f"{key}: {text!r} is no regular expression: {error}")
        return found


def _flattened(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`security.protocol = …` of TOML is a table in a table; names of options are whole."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found.update(_flattened(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
