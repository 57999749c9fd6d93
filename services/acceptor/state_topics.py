"""A state topic that is not there yet is made before what needs it goes on. Owned by one acceptor.

Weak spot: what the controller takes too long for goes on without the topic, and is answered as if its coordinator were away, which clients try again.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from appliance.cluster.metadata_cache import MetadataCache
from appliance.ipc.controller_frames import AUTO_CREATE
from appliance.ipc.controller_link import ControllerLink

CREATE_TIMEOUT_MS = 5_000


def with_state_topic(view: MetadataCache, controller: ControllerLink, topic: str, then: Callable[[], None]) -> None:
    """Call `then` now if `topic` is in the image, otherwise when the controller has made it, or cannot."""
    if topic in view.image.topics:
        then()
    else:
        controller.request(AUTO_CREATE, orjson.dumps({"topics": [topic]}), CREATE_TIMEOUT_MS, lambda _created: then())
