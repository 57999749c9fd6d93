"""A `listen` or `options` line of the ingest table: from words to a listener, or to everything that is wrong with it. Pure.

An option is a row: the field of `Listener` that it sets, how its text is read, and who has a use for it. Weak: whether files and time zones exist is not
looked at here (`table_checks`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from appliance.base.model import topic_name_problem
from appliance.senders.listener import KeyKind, KeyRule, Listener, Protocol, ProxyMode, Transport, parse_key
from appliance.senders.table_words import nearest

TRANSPORTS: dict[Protocol, tuple[Transport, ...]] = {
    Protocol.SYSLOG: (Transport.TCP, Transport.UDP, Transport.TLS),
    Protocol.RELP: (Transport.TCP, Transport.TLS),
    Protocol.FLUENT: (Transport.TCP, Transport.TLS),
    Protocol.LUMBERJACK: (Transport.TCP, Transport.TLS),
    Protocol.GELF: (Transport.TCP, Transport.UDP, Transport.TLS),
    Protocol.HTTP: (Transport.TCP, Transport.TLS),
}
NEEDS_NO_KEY = "key=none gives no record a key, and key-required=yes would make each a dead letter; name a key, or leave key-required out"
KEY_WORDS = "host, app, tag, none, label.NAME or field.PATH"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}\Z")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z.\-]*|\*):(\d{1,5})\Z")
MESSAGE_BYTES, FRAME_BYTES, IDLE_SECONDS = (480, 8 << 20), (1024, 256 << 20), (1, 86_400)


class BadValue(Exception):
    """What is allowed instead."""


def topic_problem(name: str) -> str | None:
    """Why records of senders cannot go to a topic of this name."""
    return topic_name_problem(name) or (f"topic {name} is the box's own, as all that begin with __; choose another name" if name.startswith("__") else None)


def _topic(text: str) -> str:
    if problem := topic_problem(text):
        raise BadValue(problem)
    return text


def read_key(text: str) -> KeyRule:
    """Raises BadValue."""
    key = parse_key(text)
    if key is None:
        raise BadValue(f"a key is {KEY_WORDS}")
    return key


def read_flag(text: str) -> bool:
    """Raises BadValue."""
    if text not in ("yes", "no"):
        raise BadValue("it is yes or no")
    return text == "yes"


def _acks(text: str) -> int:
    if text not in ("all", "-1", "1", "0"):
        raise BadValue("it is all (every in-sync replica has it), 1 (the leader has it) or 0 (it was received)")
    return -1 if text == "all" else int(text)


def _proxy(text: str) -> ProxyMode:
    if text not in ProxyMode.__members__.values():
        raise BadValue(f"it is one of {', '.join(ProxyMode)}")
    return ProxyMode(text)


def _text(text: str) -> str:
    if not text:
        raise BadValue("it is empty")
    return text


def _texts(text: str) -> tuple[str, ...]:
    return tuple(_text(part) for part in text.split(","))


def _networks(text: str) -> tuple[str, ...]:
    import ipaddress  # only whoever names networks pays for it

    networks = []
    for part in _texts(text):
        try:
            networks.append(str(ipaddress.ip_network(part)))
        except ValueError as error:
            raise BadValue(f"{error}; write networks as 10.1.0.0/16, or single addresses") from None
    return tuple(networks)


def _number(bounds: tuple[int, int], factor: int = 1) -> Callable[[str], int]:
    low, high = bounds

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise BadValue(f"it is a whole number from {low} to {high}")
        return int(text) * factor

    return read


class Option(NamedTuple):
    """One option of a line. `protocols` and `transports`: who has a use for it; empty: all."""

    field: str
    read: Callable[[str], Any]
    protocols: tuple[Protocol, ...] = ()
    transports: tuple[Transport, ...] = ()


_STREAMS = (Transport.TCP, Transport.TLS)
_SYSLOG = (Protocol.SYSLOG, Protocol.RELP)
OPTIONS: dict[str, Option] = {
    "topic": Option("topic", _topic),
    "key": Option("key", read_key),
    "key-required": Option("is_key_required", read_flag),
    "acks": Option("acks", _acks),
    "raw": Option("raw", read_flag),
    "time-zone": Option("time_zone", _text, (*_SYSLOG, Protocol.GELF)),
    "max-message-bytes": Option("message_bytes_max", _number(MESSAGE_BYTES), _SYSLOG),
    "max-frame-bytes": Option("frame_bytes_max", _number(FRAME_BYTES), (), _STREAMS),
    "proxy": Option("proxy", _proxy, (), _STREAMS),
    "proxy-from": Option("proxy_from", _networks, (), _STREAMS),
    "certificate": Option("certificate", _text, (), (Transport.TLS,)),
    "private-key": Option("private_key", _text, (), (Transport.TLS,)),
    "client-ca": Option("client_ca", _text, (), (Transport.TLS,)),
    "client-names": Option("client_names", _texts, (), (Transport.TLS,)),
    "token": Option("tokens", _texts, (Protocol.HTTP,)),
    "shared-key": Option("shared_key", _text, (Protocol.FLUENT,)),
    "idle-seconds": Option("idle_ms_max", _number(IDLE_SECONDS, 1000), (), _STREAMS),
}


def read_listen(words: list[str], defaults: Listener) -> tuple[Listener | None, list[str]]:
    """`NAME PROTOCOL TRANSPORT [ADDRESS]:PORT option=value …`. The listener is None where it cannot even be named."""
    if len(words) < 4 or any("=" in word for word in words[:4]):
        return None, ["a listener needs a name, a protocol, a transport and a port; write: listen NAME PROTOCOL TRANSPORT [ADDRESS]:PORT option=value …"]
    name, protocol_text, transport_text, place = words[:4]
    problems = []
    if not _NAME.match(name):
        problems.append(f"{name!r} cannot be a listener's name; use at most 32 small letters, digits, '.', '_' and '-'")
    protocol = Protocol(protocol_text) if protocol_text in Protocol.__members__.values() else None
    if protocol is None:
        problems.append(f"there is no protocol {protocol_text!r}; choose one of {', '.join(Protocol)}{nearest(protocol_text, list(Protocol))}")
    transport = Transport(transport_text) if transport_text in Transport.__members__.values() else None
    if transport is None:
        problems.append(f"there is no transport {transport_text!r}; choose one of {', '.join(Transport)}")
    elif protocol is not None and transport not in TRANSPORTS[protocol]:
        problems.append(f"{protocol} is not spoken over {transport}; choose one of {', '.join(TRANSPORTS[protocol])}")
    match = _ADDRESS.match(place)
    port = int(match[2]) if match else 0
    if match is None or port > 65535:
        problems.append(f"{place!r} is no place to listen at; write :PORT, ADDRESS:PORT or [IPV6]:PORT")
    if protocol is None or transport is None or match is None:
        return None, problems
    address = {"*": "0.0.0.0"}.get(match[1], match[1].strip("[]"))
    listener = defaults._replace(name=name, protocol=protocol, transport=transport, address=address, port=port)
    listener, option_problems = read_options(words[4:], listener)
    return listener, problems + option_problems


def read_options(words: list[str], listener: Listener) -> tuple[Listener, list[str]]:
    """`option=value …` over what `listener` says."""
    problems = []
    values: dict[str, Any] = {}
    seen: set[str] = set()
    for word in words:
        name, equals, text = word.partition("=")
        option = OPTIONS.get(name)
        if not equals:
            problems.append(f"{word!r} is no option; write option=value, in quotes where the value has blanks")
        elif option is None:
            problems.append(f"there is no option {name!r}; there are {', '.join(OPTIONS)}{nearest(name, list(OPTIONS))}")
        elif name in seen:
            problems.append(f"{name} is said twice; say it once" + (", with commas between values" if option.read in (_texts, _networks) else ""))
        elif option.protocols and listener.protocol not in option.protocols:
            problems.append(f"{name} is for {' and '.join(option.protocols)}, and this listener speaks {listener.protocol}; leave it out")
        elif option.transports and listener.transport not in option.transports:
            problems.append(f"{name} is for {' and '.join(option.transports)}, and this listener is on {listener.transport}; leave it out")
        else:
            try:
                values[option.field] = option.read(text)
            except BadValue as error:
                problems.append(f"{name} is {_shown(name, text)}: {error}")
        seen.add(name)
    return listener._replace(**values), problems + _relation_problems(listener._replace(**values), seen)


def _relation_problems(listener: Listener, said: set[str]) -> list[str]:
    """What is wrong between options that are each fine alone."""
    problems = []
    if listener.transport is Transport.TLS and not {"certificate", "private-key"} <= said:
        problems.append("a listener with TLS needs certificate=FILE and private-key=FILE; add them")
    if "client-names" in said and "client-ca" not in said:
        problems.append("client-names needs client-ca=FILE, by which certificates are checked; add it")
    if listener.is_key_required and listener.key.kind is KeyKind.NONE:
        problems.append(NEEDS_NO_KEY)
    if listener.proxy_from and listener.proxy is ProxyMode.NO:
        problems.append("proxy-from says whose headers are believed, and no header is read; add proxy=yes or proxy=required")
    return problems


def _shown(name: str, text: str) -> str:
    """A value as a message may show it: nobody's secret."""
    return "not good" if OPTIONS[name].field in ("tokens", "shared_key") else repr(text)
