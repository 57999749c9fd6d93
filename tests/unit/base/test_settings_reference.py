from __future__ import annotations

from pathlib import Path

from appliance.base.setting_rows import GROUPS, SETTING_ROWS
from appliance.base.settings_reference import reference_page


def test_the_reference_page_is_in_step_with_the_rows() -> None:
    page = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
    assert page == reference_page(), "run: millrace config check --reference > docs/settings.md"


def test_every_setting_stands_once_on_the_page() -> None:
    page = reference_page()
    assert sum(len(rows) for rows in GROUPS.values()) == len(SETTING_ROWS)
    assert all(page.count(f"| `{name}` |") == 1 for name in SETTING_ROWS)
