"""Whatever a client without rights, or with some, asks of the coordinator or the controller, it gets an answer and the acceptor goes on."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.base.model import TopicId
from appliance.cluster.metadata_cache import MetadataCache
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.forwarded_apis import CONTROLLER_APIS, COORDINATED_APIS
from appliance.security.acl import SUPPORTED_OPERATIONS, AclBinding, AclPermission, PatternType
from appliance.security.authorizer import Authorizer
from lab.protocol_messages import bodies
from services.acceptor.authorization.request_judge import RULES, RequestJudge


class _View:
    image = MetadataImage(1, "", 1, {}, {name: TopicImage(name, TopicId(name.encode() * 16), (), {}) for name in "ab"})


JUDGE = RequestJudge(cast(MetadataCache, _View()))
GRANTS = st.lists(
    st.sampled_from([(kind, operation) for kind, operations in SUPPORTED_OPERATIONS.items() for operation in sorted(operations)]), max_size=4, unique=True
)
VERSIONS = [(key, version) for key in sorted(RULES) for version in sorted({SERVED_APIS[key].version_min, SERVED_APIS[key].version_max})]


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=[f"{key.name}-{version}" for key, version in VERSIONS])
@given(data=st.data())
def test_every_request_is_judged_with_any_rights(key: ApiKey, version: int, data: st.DataObject) -> None:
    api = COORDINATED_APIS.get(key) or CONTROLLER_APIS[key]
    request: Any = api[0]
    response: Any = api[1]
    authorizer = Authorizer()
    grants = data.draw(GRANTS)
    authorizer.replace([AclBinding(kind, "*", PatternType.LITERAL, "User:a", "*", operation, AclPermission.ALLOW) for kind, operation in grants])
    body = request.encode(version, request.widened(version, data.draw(bodies(request.shape(version), version))))
    judged = JUDGE.judge(authorizer.rights_of("User:a", "10.0.0.1"), key, version, body)
    message, encoded = (response, judged.answer) if judged.body is None else (request, judged.body)
    assert message.encode(version, message.decode(encoded, 0, len(encoded), version)) == encoded
