"""The listeners for Kafka clients, from the settings `listeners`, `advertised.listeners`,
`listener.security.protocol.map`, `inter.broker.listener.name` and `listener.name.*`.

Pure. Reports all problems at once. The first listener of a plan is the inter-broker listener:
followers and other boxes connect to it. It is a PLAINTEXT one, an SSL one whose clients must have a
certificate, or a SASL_SSL one, where boxes log in as `inter.broker.user`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from appliance.base.setting_row import SettingValue
from appliance.base.setting_rows import SETTING_ROWS
from appliance.base.settings import Box, KafkaListener, setting_problem
from appliance.security.authorizer import super_users_of
from appliance.security.oauth import OAUTHBEARER, TokenRules

OVERRIDE_PREFIX: Final = "listener.name."
TLS_SETTINGS: Final = (
    "ssl.keystore.location",
    "ssl.truststore.location",
    "ssl.crl.location",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.principal.mapping.rules",
)
SASL_SETTINGS: Final = ("sasl.enabled.mechanisms", "sasl.plain.without.tls", "connections.max.reauth.ms")
KEYS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
TOKEN_SETTINGS: Final = tuple(name for name in SETTING_ROWS if name.startswith("sasl.oauthbearer."))
_LIMITS: Final = ("max.connections", "max.connections.per.ip", "max.connection.creation.rate", "connections.max.idle.ms")
OVERRIDABLE: Final = (*_LIMITS, *TLS_SETTINGS, *SASL_SETTINGS, *TOKEN_SETTINGS)
"""Settings that a listener may have for itself, as `listener.name.NAME.SETTING`."""
PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""Security protocols that a listener can have."""
ROLE_SETTINGS: Final = ("http.role.viewer", "http.role.operator", "http.role.admin")
"""The users of the console, by what they may do, with the least first."""
PLAIN: Final = "PLAIN"
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", PLAIN, OAUTHBEARER)
"""SASL mechanisms that a listener can have."""
ANY_ADDRESS: Final = ("0.0.0.0", "::")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z")
_KEYS_URL = re.compile(r"(https://[^/?#@\s]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?)(/[!-~]*)?\Z|file:///[^\x00-\x1f]+\Z")
_ENDPOINT = re.compile(r"([^:/]*)://(\[[0-9A-Fa-f:.%\w]*\]|[^:\[\]/\s]*):(\d{1,5})\Z")


def plan_listeners(
    settings: Mapping[str, SettingValue], overrides: Mapping[str, object], default: KafkaListener, is_alone: bool = False
) -> tuple[list[KafkaListener], list[str]]:
    """Return the listeners and all problems. `is_alone`: no other box connects, so none must be PLAINTEXT.

    `overrides`: `listener.name.*` as the settings file has them. `default`: the only listener if
    `listeners` is not set; its advertised host is also that of listeners on all addresses.
    """
    problems: list[str] = []
    texts = {name: str(settings[name]) for name in ("listeners", "advertised.listeners", "inter.broker.listener.name")}
    found = _endpoints("listeners", texts["listeners"], problems)
    if not texts["listeners"]:
        problems += [f"{name} is set, and listeners is not; set it too" for name in ("advertised.listeners", "inter.broker.listener.name") if texts[name]]
        found = {default.name: (default.address, default.port)}
    protocols = _protocols(str(settings["listener.security.protocol.map"]), problems)
    advertised = _endpoints("advertised.listeners", texts["advertised.listeners"], problems)
    for name, (host, _) in advertised.items():
        if name not in found:
            problems.append(f"advertised.listeners has {name}, which listeners does not have; it has {_words(found)}")
        if host in ("", *ANY_ADDRESS):
            problems.append(f"advertised.listeners has {name} with the host {host!r}, which no client can connect to; name this machine as clients see it")
    by_listener = _overrides(overrides, found, problems)
    listeners = []
    for name, (host, port) in found.items():
        protocol = protocols.get(name, name)
        if protocol not in PROTOCOLS:
            known = f"its security protocol is {protocol!r}" if name in protocols else "listener.security.protocol.map does not have it"
            problems.append(f"listeners has {name}, but {known}; a listener can have {_words(PROTOCOLS)}")
        address = "0.0.0.0" if not host else host
        to_clients = advertised.get(name, (default.advertised_host if address in ANY_ADDRESS or not texts["listeners"] else address, 0))
        listeners.append(KafkaListener(name, protocol, address, port, *to_clients, by_listener.get(name.lower(), {})))
    problems += [problem for each in listeners for problem in _sasl_problems(each, settings)]
    ports = [(each.port, each.address, each.name) for each in listeners if each.port]
    for index, (port, address, name) in enumerate(ports):
        for other_port, other_address, other in ports[:index]:
            if port == other_port and (address == other_address or address in ANY_ADDRESS or other_address in ANY_ADDRESS):
                problems.append(f"listeners has {other} and {name} on port {port}; give each its own")
    if is_alone and not texts["inter.broker.listener.name"] and all(each.protocol != PLAINTEXT for each in listeners):
        return listeners, problems
    ordered = _inter_broker_first(listeners, texts["inter.broker.listener.name"].upper(), problems)
    if ordered and ordered[0].protocol == SSL and (auth := ordered[0].settings.get("ssl.client.auth", settings["ssl.client.auth"])) != "required":
        name = ordered[0].name
        problems.append(
            f"inter.broker.listener.name is {name}, and its ssl.client.auth is {auth}; set listener.name.{name.lower()}.ssl.client.auth to required, "
            "because boxes know each other by their certificates"
        )
    if ordered and uses_sasl(ordered[0].protocol) and ordered[0].name == texts["inter.broker.listener.name"].upper():
        problems += _login_problems(ordered[0], settings)
    return ordered, problems


def has_console_users(box: Box) -> bool:
    """Whether the console asks for a login."""
    return any(box.text(name) for name in ROLE_SETTINGS)


def may_use_console(box: Box, user: str) -> bool:
    """Whether a user has a role in the console, as every user does if one names `User:*`."""
    return any(not super_users_of(box.text(name)).isdisjoint((f"User:{user}", "User:*")) for name in ROLE_SETTINGS)


def boxes_use_tls(first_protocol: str, inter_broker_name: str) -> bool:
    """Whether boxes connect to each other with TLS: the inter-broker listener is named, and an SSL or SASL_SSL one.
    A box alone may have encrypted listeners only, without a name and without authorities."""
    return is_encrypted(first_protocol) and bool(inter_broker_name)


def inter_broker_mechanism(text: Callable[[str], str]) -> str:
    """Return the SASL mechanism by which boxes log in to each other. `text`: of a setting."""
    return text("sasl.mechanism.inter.broker.protocol").upper()


def _login_problems(listener: KafkaListener, settings: Mapping[str, SettingValue]) -> list[str]:
    """Return why boxes could not log in to each other."""
    where = f"inter.broker.listener.name is {listener.name}, which is {listener.protocol}"
    if not is_encrypted(listener.protocol):
        return [f"{where}; boxes log in with TLS only: name a SASL_SSL, SSL or PLAINTEXT one"]
    names = ("inter.broker.user", "inter.broker.password.file", "ssl.truststore.location", "authorizer.class.name")
    problems = [f"{where}, and {name} is empty; set it" for name in names if not str(listener.settings.get(name, settings[name]))]
    if listener.settings.get("connections.max.reauth.ms", settings["connections.max.reauth.ms"]):
        problems.append(f"{where}; boxes log in once: set listener.name.{listener.name.lower()}.connections.max.reauth.ms to 0")
    mechanism = inter_broker_mechanism(lambda name: str(settings[name]))
    if mechanism not in mechanisms_of(listener, settings):
        problems.append(f"{where}, and its sasl.enabled.mechanisms does not have {mechanism} (sasl.mechanism.inter.broker.protocol)")
    return problems


def is_encrypted(protocol: str) -> bool:
    return protocol in (SSL, SASL_SSL)


def uses_sasl(protocol: str) -> bool:
    return protocol in (SASL_PLAINTEXT, SASL_SSL)


def mechanisms_of(listener: KafkaListener, settings: Mapping[str, SettingValue]) -> tuple[str, ...]:
    """Return the SASL mechanisms of a listener; none for one without SASL."""
    if not uses_sasl(listener.protocol):
        return ()
    return tuple(dict.fromkeys(word.upper() for word in words_of(str(listener.settings.get("sasl.enabled.mechanisms", settings["sasl.enabled.mechanisms"])))))


def words_of(text: str) -> tuple[str, ...]:
    """Return the parts of a list with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _sasl_problems(listener: KafkaListener, settings: Mapping[str, SettingValue]) -> list[str]:
    if not uses_sasl(listener.protocol):
        return []
    mechanisms = mechanisms_of(listener, settings)
    where = f"listener {listener.name}: sasl.enabled.mechanisms"
    if not mechanisms:
        return [f"{where} is empty; name one or more of {_words(MECHANISMS)}"]
    problems = [f"{where} has {name}; it can have {_words(MECHANISMS)}" for name in mechanisms if name not in MECHANISMS]
    is_allowed = listener.settings.get("sasl.plain.without.tls", settings["sasl.plain.without.tls"])
    for name, what in ((PLAIN, "passwords"), (OAUTHBEARER, "tokens")):
        if name in mechanisms and not is_encrypted(listener.protocol) and not is_allowed:
            problems.append(f"{where} has {name}, which sends {what} in clear text over {listener.protocol}; use SASL_SSL, or set sasl.plain.without.tls")
    return problems + (_token_problems(listener, settings) if OAUTHBEARER in mechanisms else [])


class TokenSettings(NamedTuple):
    """How a listener verifies the tokens of OAUTHBEARER; `url`: of the issuer's keys."""

    url: str
    refresh_ms: int
    rules: TokenRules

    @classmethod
    def of(cls, listener: KafkaListener, box: Box) -> TokenSettings | None:
        """None for a listener without OAUTHBEARER."""
        if OAUTHBEARER not in mechanisms_of(listener, {name: box.setting(name) for name in SASL_SETTINGS}):
            return None

        def text(name: str) -> str:
            return str(listener.settings.get(f"sasl.oauthbearer.{name}", box.setting(f"sasl.oauthbearer.{name}")))

        rules = TokenRules(
            text("expected.issuer"),
            words_of(text("expected.audience")),
            text("sub.claim.name"),
            text("scope.claim.name"),
            text("expected.scope"),
            box.integer_of(listener, "sasl.oauthbearer.clock.skew.seconds"),
        )
        return cls(text("jwks.endpoint.url"), box.integer_of(listener, "sasl.oauthbearer.jwks.endpoint.refresh.ms"), rules)

    @property
    def needs_network(self) -> bool:
        return not self.url.startswith("file:")


def _token_problems(listener: KafkaListener, settings: Mapping[str, SettingValue]) -> list[str]:
    """Without issuer and audience, a token for any other service would be taken."""
    texts = {name: str(listener.settings.get(name, settings[name])) for name in TOKEN_SETTINGS}
    required = (KEYS_URL, "sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.expected.audience")
    problems = [f"listener {listener.name} has OAUTHBEARER, and {name} is empty; set it" for name in required if not words_of(texts[name])]
    url = texts[KEYS_URL]
    if url and not _KEYS_URL.match(url):
        problems.append(f"{KEYS_URL} is {url!r}; it must be https://HOST/PATH or file:///PATH (http:// only to 127.0.0.1, [::1] or localhost)")
    return problems


def _inter_broker_first(listeners: list[KafkaListener], wanted: str, problems: list[str]) -> list[KafkaListener]:
    plain = [each for each in listeners if each.protocol == PLAINTEXT]
    chosen = next((each for each in listeners if each.name == wanted), None)
    if wanted and chosen is None:
        problems.append(f"inter.broker.listener.name is {wanted}, which listeners does not have; it has {_words([each.name for each in listeners])}")
    elif chosen is None and listeners:
        chosen = next((each for each in plain if each.name == PLAINTEXT), plain[0] if len(plain) == 1 else None)
        if chosen is None and plain:
            problems.append(f"inter.broker.listener.name is not set; name one of {_words([each.name for each in plain])}, through which boxes connect")
        elif chosen is None and not problems:
            problems.append(
                "listeners has no PLAINTEXT listener, through which the boxes of a cluster connect; add one, or set inter.broker.listener.name to an SSL one"
            )
    return sorted(listeners, key=lambda each: each is not chosen)


def _endpoints(setting: str, text: str, problems: list[str]) -> dict[str, tuple[str, int]]:
    """Return host and port by listener name."""
    found: dict[str, tuple[str, int]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _ENDPOINT.match(part)
        if match is None or not _NAME.match(match[1]) or int(match[3]) > 65535:
            problems.append(f"{setting} has {part!r}; it must look like NAME://HOST:PORT, with a name of letters, digits, '_' and '-'")
        elif match[1].upper() in found:
            problems.append(f"{setting} has {match[1].upper()} twice; a listener's name must be unique")
        else:
            found[match[1].upper()] = match[2].strip("[]"), int(match[3])
    return found


def _protocols(text: str, problems: list[str]) -> dict[str, str]:
    protocols = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = part.partition(":")
        if not colon or not _NAME.match(name):
            problems.append(f"listener.security.protocol.map has {part!r}; it must look like NAME:PROTOCOL")
        else:
            protocols[name.upper()] = protocol.strip().upper()
    return protocols


def _overrides(overrides: Mapping[str, object], found: Mapping[str, object], problems: list[str]) -> dict[str, dict[str, SettingValue]]:
    """Return the settings of single listeners, by listener name in small letters."""
    names = {name.lower() for name in found}
    taken: dict[str, dict[str, SettingValue]] = {}
    for key, value in overrides.items():
        name, _, setting = key.removeprefix(OVERRIDE_PREFIX).partition(".")
        row = SETTING_ROWS.get(setting)
        if name not in names:
            problems.append(f"{key}: there is no listener {name.upper()}; listeners has {_words(found)} (in small letters here)")
        elif row is None or setting not in OVERRIDABLE:
            problems.append(f"{key}: a listener cannot have {setting or 'this'} for itself; it can have {_words(OVERRIDABLE)}")
        elif (problem := setting_problem(row, value)) is not None:
            problems.append(f"{key}: {problem}")
        else:
            assert isinstance(value, str | int | bool)
            taken.setdefault(name, {})[setting] = value
    return taken


def _words(names: object) -> str:
    assert isinstance(names, tuple | list | dict)
    return ", ".join(names) or "none"
