"""Users in ZooKeeper, as Kafka 3.9 keeps them: `/config/users/NAME` with SCRAM credentials and quotas by their names.

Pure. Names are URL-encoded as Kafka's `Sanitizer` does it. Weak: a credential that cannot be read is skipped, so
that its user cannot log in with that mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote_plus

from appliance.security.scram import SCRAM_MECHANISMS, ScramCredential

CONFIG_USERS: Final = "/config/users"
DEFAULT_USER: Final = "<default>"
"""A node with quotas for all users."""
ENTITY_PREFIX: Final = "users/"


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
