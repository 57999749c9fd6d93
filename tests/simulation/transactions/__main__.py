"""`python -m tests.simulation.transactions --seed N`: one run, with its trace; `--from N --count M`: many runs, those that fail by their seeds;
`--mutation NAME`: a rule is broken in it; `--mutations`: which there are."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.mutations import Mutation
from tests.simulation.transactions.mutations import MUTATIONS
from tests.simulation.transactions.simulation import TransactionSimulation, run


def _one(seed: int) -> int:
    simulation = TransactionSimulation(seed)
    try:
        ended = str(simulation.run())
    except AssertionError as broken:
        ended = str(broken).split("\n", 1)[0]
    print("\n".join(simulation.world.trace))
    print(ended)
    return 0


def _many(first: int, count: int) -> int:
    failed = 0
    for seed in range(first, first + count):
        try:
            run(seed)
        except AssertionError as broken:
            failed += 1
            print(seed, str(broken).split("\n", 1)[0], flush=True)
    print(f"{failed} of {count} schedules from seed {first} on broke a rule")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.transactions", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--mutation", choices=sorted(MUTATIONS))
    parser.add_argument("--mutations", action="store_true")
    options = parser.parse_args()
    if options.mutations:
        print("\n".join(MUTATIONS))
        return 0
    mutation = MUTATIONS[options.mutation] if options.mutation else Mutation(())
    with mutation.applied():
        return _one(options.seed) if options.seed is not None else _many(options.first, options.count)


if __name__ == "__main__":
    sys.exit(main())
