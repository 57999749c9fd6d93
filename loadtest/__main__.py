"""`python -m loadtest`: benchmarks, or one of `COMMANDS`. Each loads its own packages only: users of locust need the extra `loadtest` and nothing else."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from loadtest.machine import ROOT

COMMANDS = {
    "flames": "loadtest.flames",
    "users": "loadtest.users.command",
    "beside_kafka": "loadtest.beside_kafka.command",
    "turns": "loadtest.turns",
    "model": "loadtest.model",
}
BENCHMARKS = "loadtest.benchmark_runs"


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = COMMANDS.get(words[0]) if words else None
    # As a user's box would have it: peers of install.sh on the path, and compiled modules kept, or every start would compile all again.
    os.environ["PATH"] = f"{ROOT}/.venv/peers/bin:{os.environ.get('PATH', '')}"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    exit_code: int = importlib.import_module(command or BENCHMARKS).main(words[1:] if command else words, say)
    return exit_code


def say(words: str) -> None:
    """Progress goes to stderr, results to stdout."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
