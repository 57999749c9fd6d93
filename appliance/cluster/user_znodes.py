"""Users in ZooKeeper, as Kafka 3.9 keeps them: `/config/users/NAME` with SCRAM credentials and quotas by their names.

Quotas of client ids are in `/config/clients/ID`, those of a client id of a user in `/config/users/NAME/clients/ID`,
those of addresses in `/config/ips/ADDRESS`.

Pure. Names are URL-encoded as Kafka's `Sanitizer` does it. Weak: a credential that cannot be read is skipped, so
that its user cannot log in with that mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote_plus

from appliance.security.quotas import DEFAULT_NAME, QuotaEntity
from appliance.security.scram import SCRAM_MECHANISMS, ScramCredential

CONFIG_USERS: Final = "/config/users"
DEFAULT_USER: Final = "<default>"
"""A node with quotas for all users."""
ENTITY_PREFIX: Final = "users/"
CLIENTS: Final = "clients"
CONFIG_CLIENTS: Final = "/config/clients"
ADDRESSES: Final = "ips"
CONFIG_ADDRESSES: Final = f"/config/{ADDRESSES}"


def sanitized(name: str) -> str:
    return quote(name, safe="").replace("~", "%7E")


def user_path(name: str) -> str:
    return f"{CONFIG_USERS}/{sanitized(name)}"


def user_entity(name: str) -> str:
    """Return what a notification calls the user."""
    return f"{ENTITY_PREFIX}{sanitized(name)}"


def user_of_node(node: str) -> str | None:
    """Return the user of a node's name; None for one that is no user."""
    return None if node == DEFAULT_USER or "/" in node or not node else unquote_plus(node)


def user_of_entity(entity: str | None) -> str | None:
    """Return the user whose config a notification names; None for other entities."""
    if entity is None or not entity.startswith(ENTITY_PREFIX):
        return None
    return user_of_node(entity.removeprefix(ENTITY_PREFIX))


def name_of_node(node: str) -> str:
    """Return the name of an entity with quotas, or `DEFAULT_NAME`."""
    return DEFAULT_NAME if node == DEFAULT_USER else unquote_plus(node)


def entity_path(entity: QuotaEntity) -> str:
    """Return the path of an entity with quotas below `/config`, as notifications name it."""
    user, client_id, address = (None if name is None else sanitized(name) or DEFAULT_USER for name in entity)
    if address is not None:
        return f"{ADDRESSES}/{address}"
    client = f"{CLIENTS}/{client_id}"
    if user is None:
        return client
    return f"{ENTITY_PREFIX}{user}" if client_id is None else f"{ENTITY_PREFIX}{user}/{client}"


def entity_of_path(path: str | None) -> QuotaEntity | None:
    """Inverse of `entity_path`; None for other paths."""
    match (path or "").split("/"):
        case ["users", str(user)] if user:
            return QuotaEntity(name_of_node(user))
        case ["users", str(user), "clients", str(client_id)] if user and client_id:
            return QuotaEntity(name_of_node(user), name_of_node(client_id))
        case ["clients", str(client_id)] if client_id:
            return QuotaEntity(None, name_of_node(client_id))
        case ["ips", str(address)] if address:
            return QuotaEntity(address=name_of_node(address))
    return None


def scram_texts(config: Mapping[str, str]) -> dict[str, str]:
    """Return the readable credentials of a user's config, by mechanism."""
    found = {}
    for label in SCRAM_MECHANISMS:
        if label in config:
            try:
                ScramCredential.decode(config[label])
            except ValueError:
                continue
            found[label] = config[label]
    return found
