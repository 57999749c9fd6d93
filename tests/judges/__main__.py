"""`python -m tests.judges install` fetches and builds what can be; `… table` prints the rows of tests/README.md.

A suite that cannot be had is said, not fatal: the tests that want it are skipped with the reason. Owned by `install.sh`.
"""

from __future__ import annotations

import sys

from tests.judges import kafka_python, librdkafka
from tests.judges.expectations import read_expectations, table
from tests.judges.suites import SuiteMissing

USAGE = "python -m tests.judges install [kafka-python] [librdkafka] | table"


def main(arguments: list[str]) -> int:
    match arguments:
        case ["table"]:
            for suite in ("kafka-python", "librdkafka"):
                print(f"### {suite}\n\n{table(read_expectations(suite))}")
            return 0
        case ["install", *names] if set(names) <= {"kafka-python", "librdkafka"}:
            suites = {"kafka-python": kafka_python.install, "librdkafka": librdkafka.install}
            code = 0
            for name in names or suites:
                try:
                    suites[name]()
                except SuiteMissing as reason:
                    print(f"judges: {name}: {reason}", file=sys.stderr)
                    code = 1
            return code
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
