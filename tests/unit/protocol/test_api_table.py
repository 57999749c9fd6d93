"""README.md, and what acceptors may import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance import protocol
from appliance.protocol.apis import api_table

PACKAGE = Path(protocol.__path__[0])


def test_the_readme_shows_the_apis_that_are_served() -> None:
    readme = (PACKAGE / "README.md").read_text()
    assert readme.split("<!-- apis -->\n")[1].split("<!-- /apis -->")[0] == api_table()


def test_the_readme_names_every_module() -> None:
    readme = (PACKAGE / "README.md").read_text()
    missing = [path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py" and f"`{path.name}`" not in readme]
    assert missing == []


@pytest.mark.slow
def test_no_module_imports_kio_before_it_is_needed() -> None:
    modules = ", ".join(f"appliance.protocol.{path.stem}" for path in PACKAGE.glob("*.py"))
    heavy = "{'kio', 'numpy', 'asyncio', 'rich', 'typer', 'subprocess', 'argparse'} & {name.split('.')[0] for name in sys.modules}"
    program = f"import sys, {modules}; sys.exit(str({heavy}) if {heavy} else 0)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=PACKAGE.parent.parent)
    assert found.returncode == 0, found.stderr
