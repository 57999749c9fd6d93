from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.layout import BoxLayout
from lab.scratch_layout import scratch_layout


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made
