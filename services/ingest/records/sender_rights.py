"""What the principals of listeners and tokens may write: WRITE on the topic, by the authorizer of the box.

A listener without a principal needs no right, and neither does any without an authorizer. Owned by one ingest
agent; no sender is read before the first access control lists are there. Weak: rights are those at the time when
the record is routed, not when its batch is written.
"""

from __future__ import annotations

from typing import Final

from appliance.base.logging import Logger
from appliance.cluster.security_image import AuthorizerFollower
from appliance.runtime.agent import ServiceContext
from appliance.security.acl import AclOperation, AclResource
from appliance.security.authorizer import Authorizer, Rights

RIGHTS_KEPT_MAX: Final = 1_000
"""Principals and addresses whose rights are kept."""


class SenderRights:
    """`load` when the controller has published something."""

    def __init__(self, context: ServiceContext, authorizer: Authorizer) -> None:
        self._log: Logger = context.log
        self._follower = AuthorizerFollower(context.layout, authorizer, context.log, self._on_changed)
        self._kept: dict[tuple[str, bytes], Rights] = {}
        self._logged: set[tuple[str, str]] = set()
        """Principals and topics that were refused since the lists changed."""

    @property
    def has_image(self) -> bool:
        return self._follower.has_image

    def load(self) -> None:
        self._follower.load()

    def _on_changed(self) -> None:
        self._logged.clear()

    def may_write(self, principal: str, host: bytes, topic: str) -> bool:
        """Return whether the principal may write to the topic, from this address."""
        rights = self._kept.get((principal, host))
        if rights is None:
            if len(self._kept) >= RIGHTS_KEPT_MAX:
                self._kept.clear()
            rights = self._kept[principal, host] = self._follower.authorizer.rights_of(principal, host.decode("ascii", "replace"))
        if rights.would_allow(AclOperation.WRITE, AclResource.TOPIC, topic):
            return True
        if (principal, topic) not in self._logged and len(self._logged) < RIGHTS_KEPT_MAX:
            self._logged.add((principal, topic))
            do = f"allow it with `millrace acl add --principal {principal} --operation Write --topic {topic}`"
            self._log.warning(f"refusing records: {principal} may not write to topic {topic}; {do}", topic=topic, principal=principal, reason="unauthorized")
        return False
