"""`python -m tests.fuzz TARGET`: mutates inputs under coverage with atheris until a time or a number of inputs is reached, or one is a finding.

The seeds are written to a corpus directory first; `--corpus DIR` keeps it and what was found worth keeping. A finding leaves
its input in the working directory as `crash-…` (`timeout-…`, `oom-…`) and an exit code that is not 0; `--input FILE` runs it again.
Memory is bounded by libFuzzer's watch on the whole process. Weak spot: native code (kio, cramjam) is run, but not seen by coverage.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

MEMORY_MIB = 600
"""Of the whole process, atheris and the corpus included; inputs have a few KiB."""
SECONDS_AN_INPUT = 10
INSTRUMENTED = ["appliance.protocol", "appliance.records", "appliance.ingest"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzzes one target under coverage.")
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, help="how many inputs (default: as many as --seconds allows)")
    parser.add_argument("--seconds", type=int, help="for how long (default: 10, or no limit with --runs)")
    parser.add_argument("--seed", type=int, default=1, help="libFuzzer's seed; the same one gives the same inputs")
    parser.add_argument("--corpus", type=Path, help="a directory that keeps the corpus")
    parser.add_argument("--input", type=Path, help="run this one input and nothing else")
    options = parser.parse_args()

    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.targets import TARGETS
    if options.target not in TARGETS:
        parser.error(f"no target {options.target}; there are {', '.join(TARGETS)}")
    target = TARGETS[options.target]
    if options.input is not None:
        target.run(options.input.read_bytes())
        return
    seconds = options.seconds or (0 if options.runs else 10)
    corpus = options.corpus or Path(tempfile.mkdtemp(prefix=f"millrace-fuzz-{options.target}-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    arguments = [
        sys.argv[0],
        f"-seed={options.seed}",
        f"-max_total_time={seconds}",
        f"-runs={options.runs or -1}",
        f"-max_len={target.length_max}",
        f"-timeout={SECONDS_AN_INPUT}",
        f"-rss_limit_mb={MEMORY_MIB}",
        "-print_final_stats=1",
        "-verbosity=0",
        str(corpus),
    ]
    atheris.Setup(arguments, target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
