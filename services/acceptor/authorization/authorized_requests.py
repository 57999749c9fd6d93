"""Fetch and dispatch with an authorizer: the same as without one, and a check before each partition.

Acceptors without an authorizer use the base classes, so the check costs them nothing. With one, a partition costs
one look-up in a dict of decisions. Owned by one acceptor.
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.protocol.fetch import CONSUMER_REPLICA_ID, TOPIC_IDS_SINCE, FetchPartitionResult
from appliance.security.acl import AclOperation, AclResource
from appliance.security.authorizer import Authorizer
from services.acceptor.connection import Connection
from services.acceptor.dispatch import Dispatch, Handler
from services.acceptor.fetch.partition_read import PartitionRead
from services.acceptor.handlers.fetch import FetchHandler
from services.acceptor.handlers.produce import ProduceHandler
from services.acceptor.request_memory import ArenaSlot


class AuthorizedDispatch(Dispatch):
    """Gives each connection its rights before its first request, and again when its principal has changed."""

    def __init__(self, produce: ProduceHandler, handlers: dict[int, Handler], authorizer: Authorizer) -> None:
        super().__init__(produce, handlers)
        self._authorizer = authorizer

    def on_request(self, connection: Connection, buffer: memoryview, position: int, limit: int, body_slot: ArenaSlot | None) -> bool:
        if connection.rights is None:
            origin = connection.origin
            connection.rights = self._authorizer.rights_of(str(origin.principal), connection.address, origin.is_privileged)
        return super().on_request(connection, buffer, position, limit, body_slot)


class AuthorizedPartitionRead(PartitionRead):
    """READ on the topic; followers need CLUSTER_ACTION. Checked at each evaluation: a session may outlive a permission."""

    __slots__ = ()

    def step(self, space_bytes: int, is_first: bool) -> FetchPartitionResult | None:
        pending = self.pending
        rights = pending.reply.connection.rights
        if pending.request.replica_id != CONSUMER_REPLICA_ID:
            is_allowed = rights is not None and rights.allows_on_cluster(AclOperation.CLUSTER_ACTION)
        else:
            name = self.wanted.topic
            if pending.version >= TOPIC_IDS_SINCE:
                topic = self.shared.view.image.topics_by_id.get(self.wanted.topic_id)
                if topic is None:
                    return super().step(space_bytes, is_first)  # refuses the unknown id
                name = topic.name
            is_allowed = rights is not None and rights.allows(AclOperation.READ, AclResource.TOPIC, name)
        return super().step(space_bytes, is_first) if is_allowed else self._refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class AuthorizedFetchHandler(FetchHandler):
    """All fetches of one acceptor with an authorizer."""

    read_class = AuthorizedPartitionRead
