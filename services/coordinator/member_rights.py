"""What members of consumer groups may see of the topics that their regular expressions match (KIP-848), and which topics members of streams groups
may create (KIP-1071).

A heartbeat comes with the principal of its member; the log has none. After a restart of the coordinator, a member whose
heartbeat has not come yet keeps the topics that it has. Owned by the coordinator process; only with an authorizer.
Weak spot: of more than `MEMBERS_MAX` members, the ones that were silent longest keep what they have until their next
heartbeat.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from appliance.cluster.security_image import AuthorizerFollower
from appliance.security.acl import AclOperation, AclResource
from appliance.security.authorizer import Rights
from appliance.security.principals import RequestOrigin

MEMBERS_MAX: Final = 100_000


class MemberRights:
    """The rights of members, by group and member id."""

    def __init__(self, follower: AuthorizerFollower) -> None:
        self.follower = follower
        self._rights: OrderedDict[tuple[str, str], Rights] = OrderedDict()

    @property
    def generation(self) -> int:
        """Another one after each change of the access control lists."""
        return self.follower.generation

    def on_heartbeat(self, group_id: str, member_id: str, origin: RequestOrigin, address: str) -> None:
        key = group_id, member_id
        self._rights[key] = self.of(origin, address)
        self._rights.move_to_end(key)
        if len(self._rights) > MEMBERS_MAX:
            self._rights.popitem(last=False)

    def of(self, origin: RequestOrigin, address: str) -> Rights:
        """Return the rights of a request's sender."""
        return self.follower.authorizer.rights_of(str(origin.principal), address, origin.is_privileged)

    def not_created(self, group_id: str, member_id: str, names: Iterable[str]) -> list[str]:
        """Return the names of topics that a member may not create."""
        rights = self._rights.get((group_id, member_id))
        if rights is None:
            return list(names)
        if rights.would_allow_on_cluster(AclOperation.CREATE):
            return []
        return [name for name in names if not rights.allows(AclOperation.CREATE, AclResource.TOPIC, name)]

    def visible(self, group_id: str, member_id: str, names: frozenset[str]) -> frozenset[str] | None:
        """Return the names that a member may describe, or None while its principal is not known."""
        rights = self._rights.get((group_id, member_id))
        if rights is None:
            return None
        return frozenset(name for name in names if rights.allows(AclOperation.DESCRIBE, AclResource.TOPIC, name))
