"""The first query of docs/read.md, as it stands there: what a user pastes is what is tested and measured."""

from __future__ import annotations

import re

from lab.running_box import ROOT


def first_query() -> str:
    """The Python of the first fenced block that begins with an import of pyspark."""
    found = re.search(r"```python\n(from pyspark.*?)```", (ROOT / "docs/read.md").read_text(), re.DOTALL)
    assert found is not None, "docs/read.md has no query"
    return found.group(1)
