"""DescribeCluster and ListConfigResources over an image."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import BrokerImage, MetadataImage
from appliance.protocol.cluster_apis import OPERATIONS_NOT_ASKED, DescribeClusterRequest, DescribedBroker
from appliance.protocol.config_apis import ListConfigResourcesRequest, ResourceType
from services.acceptor.handlers.metadata import DescribeClusterHandler, ListConfigResourcesHandler


@pytest.fixture
def handler() -> DescribeClusterHandler:
    class NoProxies:
        by_disk: dict[str, Any] = {}

    view = MetadataCache(1, NoProxies())  # type: ignore[arg-type]
    view.set_image(MetadataImage(1, "the-cluster", 2, {1: BrokerImage(1, "one", 9092), 2: BrokerImage(2, "two", 9093, "rack")}, {}))
    return DescribeClusterHandler(view, lambda _connection: None)


def test_brokers_and_controller_are_described(handler: DescribeClusterHandler) -> None:
    described = handler.describe(DescribeClusterRequest(), "")
    assert (described.error_code, described.cluster_id, described.controller_id) == (0, "the-cluster", 2)
    assert described.brokers == (DescribedBroker(1, "one", 9092), DescribedBroker(2, "two", 9093, "rack"))
    assert described.cluster_authorized_operations == OPERATIONS_NOT_ASKED
    assert handler.describe(DescribeClusterRequest(True), "").cluster_authorized_operations > 0


@pytest.mark.parametrize(("endpoint_type", "code"), [(0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE), (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE)])
def test_a_request_for_controllers_is_refused_because_these_are_brokers(handler: DescribeClusterHandler, endpoint_type: int, code: ErrorCode) -> None:
    described = handler.describe(DescribeClusterRequest(False, endpoint_type), "")
    assert (described.error_code, described.brokers) == (code, ())


def test_resources_with_configs_are_listed_by_type() -> None:
    view = MetadataCache(1, SimpleNamespace(by_disk={}))  # type: ignore[arg-type]
    brokers = {1: BrokerImage(1, "one", 9092)}
    view.set_image(MetadataImage(1, "the-cluster", 1, brokers, {}, None, {"workers": {"share.isolation.level": "read_committed"}}))
    handler = ListConfigResourcesHandler(view, lambda _connection: None)

    def listed(version: int, *types: int) -> list[tuple[str, int]]:
        response = handler.list_all(ListConfigResourcesRequest(types), version)
        assert response.error_code == 0
        return [(each.resource_name, each.resource_type) for each in response.config_resources]

    assert listed(1) == [("1", ResourceType.BROKER), ("1", ResourceType.BROKER_LOGGER), ("workers", ResourceType.GROUP)]
    assert listed(1, ResourceType.BROKER_LOGGER) == [("1", ResourceType.BROKER_LOGGER)]
    assert listed(1, ResourceType.GROUP) == [("workers", ResourceType.GROUP)]
    assert listed(1, ResourceType.CLIENT_METRICS) == listed(0) == []
    assert handler.list_all(ListConfigResourcesRequest((3,)), 1).error_code == ErrorCode.UNSUPPORTED_VERSION
