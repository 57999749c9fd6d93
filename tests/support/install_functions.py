"""The functions of install.sh, called one by one in a shell of their own, with a prefix, a scratch directory and a settings file below a test's directory.

Nothing outside of that directory is touched. Weak spot: what a function asks of the machine it asks of this one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parents[2]


class Answer(NamedTuple):
    code: int
    output: str
    """What it printed, on both streams."""

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


def run_functions(directory: Path, code: str, tree: Path = TREE) -> Answer:
    """Run `code` where every function of the tree's install.sh is known."""
    for name in ("prefix", "scratch"):
        (directory / name).mkdir(exist_ok=True)
    names = f'PREFIX="{directory}/prefix" SCRATCH="{directory}/scratch" SETTINGS_FILE="{directory}/millrace.toml"'
    names += f' COMMAND_LINK="{directory}/bin/millrace" SHARE="{directory}/share"'
    done = subprocess.run(
        ["bash", "-c", f'. "{tree}/install.sh"\n{names}\n{code}'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )
    return Answer(done.returncode, done.stdout)
