"""`python -m tests.simulation --seed N`: one run, with its trace; `--from N --count M`: many runs, those that fail by their seeds; `--mutation NAME`: a rule is
broken in it; `--mutations`: which there are."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.invariants import Broken
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.simulation import Simulation, run


def _one(seed: int) -> int:
    simulation = Simulation(seed)
    try:
        print(simulation.run())
    except Broken as broken:
        print("\n".join(simulation.world.trace))
        print(str(broken).split("\n", 1)[0])
        return 1
    print("\n".join(simulation.world.trace))
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
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
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
