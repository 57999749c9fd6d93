"""Produce with an authorizer: the same as without one, and a check before each partition. Owned by one acceptor.

A module of its own because it is compiled with its base class (`appliance/base/compiled.py`).
"""

from __future__ import annotations

from appliance.base.errors import ErrorCode
from appliance.protocol.produce import ProducePartition
from appliance.security.acl import AclOperation, AclResource
from services.acceptor.handlers.produce import ProduceHandler
from services.acceptor.produce.produce_answers import PendingProduce
from services.acceptor.request_memory import ArenaSlot


class AuthorizedProduceHandler(ProduceHandler):
    """WRITE on the transactional id, then on each topic."""

    def _offer(self, pending: PendingProduce, index: int, partition: ProducePartition, position: int, slot: ArenaSlot, charged: set[str]) -> None:
        rights = pending.reply.connection.rights
        transactional_id = pending.transactional_id
        if rights is None:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif transactional_id is not None and not rights.allows(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, transactional_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not rights.allows(AclOperation.WRITE, AclResource.TOPIC, partition.topic):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            super()._offer(pending, index, partition, position, slot, charged)
            return
        slot.release()
        self._refuse(pending, index, partition, code, "")
