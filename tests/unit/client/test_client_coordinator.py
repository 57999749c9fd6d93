"""Find and query coordinators (`client/coordinator.py`) while boxes die: a registered box may be
down.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.client.cluster import Backoff, ClusterClient
from appliance.client.coordinator import GROUP, CoordinatorClient, ask_every_broker
from appliance.client.errors import BrokerUnreachable
from appliance.client.messages import DESCRIBE_GROUPS, FIND_COORDINATOR, LIST_GROUPS, ClientApi
from appliance.protocol.group_apis import DescribeGroupsRequest, ListGroupsRequest


class Boxes:
    """Brokers 1 to 3, of which those in `dead` do not answer; broker 3 coordinates everything. `expires_after`: so many failures until a dead one is
    registered no longer."""

    def __init__(self, dead: set[int], expires_after: int = 1_000) -> None:
        self.registered, self.dead, self.expires_after = {1, 2, 3}, dead, expires_after
        self.asked: list[tuple[int, ClientApi[Any, Any]]] = []
        self.coordinated = {3: ["g"]}
        self._clock = ManualClock()

    def as_cluster(self) -> ClusterClient:
        return cast(ClusterClient, self)

    def metadata(self, _topics: object) -> Any:
        return SimpleNamespace(brokers=dict.fromkeys(self.registered))

    def backoff(self, _give_up_ms: int | None = None) -> Backoff:
        return Backoff(self._clock, 10_000, lambda seconds: self._clock.advance_ms(int(seconds * 1000) + 1))

    def ask_broker(self, broker: int, api: ClientApi[Any, Any], request: Any) -> Any:
        self.asked.append((broker, api))
        if broker in self.dead:
            self.expires_after -= 1
            if not self.expires_after:
                self.registered.discard(broker)
                self.coordinated[1] = self.coordinated.pop(broker, [])
            raise BrokerUnreachable(f"no broker {broker}")
        if api is FIND_COORDINATOR:
            return SimpleNamespace(coordinators=[SimpleNamespace(error_code=0, node_id=3)])
        return SimpleNamespace(error_code=ErrorCode.NONE, groups=self.coordinated.get(broker, []))


def ask(boxes: Boxes) -> Any:
    def error_of(body: Any) -> tuple[int, str | None]:
        return body.error_code, None

    return CoordinatorClient(boxes.as_cluster(), GROUP, "g").ask(DESCRIBE_GROUPS, DescribeGroupsRequest(("g",)), "describe group 'g'", error_of)


def test_any_running_box_can_find_the_coordinator() -> None:
    boxes = Boxes(dead={1})
    assert ask(boxes).groups == ["g"]
    assert boxes.asked == [(1, FIND_COORDINATOR), (2, FIND_COORDINATOR), (3, DESCRIBE_GROUPS)]


def test_if_no_box_answers_the_last_error_is_raised() -> None:
    with pytest.raises(BrokerUnreachable, match="no broker 3"):
        ask(Boxes(dead={1, 2, 3}))


def test_all_brokers_are_queried_again_if_a_box_leaves_the_cluster_meanwhile() -> None:
    boxes = Boxes(dead={3}, expires_after=3)
    answers = ask_every_broker(boxes.as_cluster(), LIST_GROUPS, ListGroupsRequest(), "list the groups")
    assert {broker: body.groups for broker, body in answers.items()} == {1: ["g"], 2: []}


def test_the_error_names_a_registered_box_that_does_not_answer() -> None:
    with pytest.raises(BrokerUnreachable, match="no broker 2"):
        ask_every_broker(Boxes(dead={2}).as_cluster(), LIST_GROUPS, ListGroupsRequest(), "list the groups")
