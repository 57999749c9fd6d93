"""Fixtures of the tests with a scripted broker: each module says by SCRIPTED what it talks through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Goes on where a source has changed."""
    made = request.module.SCRIPTED()
    yield made
    made.broker.close()


@pytest.fixture
def strict(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Stops where a source has changed."""
    made = request.module.SCRIPTED("stop")
    yield made
    made.broker.close()
