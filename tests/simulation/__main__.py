"""Run the simulation of replication, or with `--transactions` that of transactions.

`--seed N` runs one seed and prints its trace. `--from N --count M` runs many seeds and prints those that break a rule.
"""

from __future__ import annotations

import argparse
import sys

from tests.simulation import mutations, simulation
from tests.simulation.transactions import mutations as transaction_mutations
from tests.simulation.transactions import simulation as transaction_simulation


def _run_one(started: simulation.Simulation | transaction_simulation.TransactionSimulation) -> int:
    try:
        ended, status = str(started.run()), 0
    except AssertionError as broken:
        ended, status = _first_line(broken), 1
    print("\n".join(started.world.trace))
    print(ended)
    return status


def _run_many(transactions: bool, first: int, count: int) -> int:
    run = transaction_simulation.run if transactions else simulation.run
    failed = 0
    for seed in range(first, first + count):
        try:
            run(seed)
        except AssertionError as broken:
            failed += 1
            print(seed, _first_line(broken), flush=True)
    print(f"{failed} of {count} schedules from seed {first} on broke a rule")
    return 1 if failed else 0


def _first_line(broken: AssertionError) -> str:
    return str(broken).split("\n", 1)[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--transactions", action="store_true", help="simulate transactions instead of replication")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--mutation", metavar="NAME", help="break this rule in each run")
    parser.add_argument("--mutations", action="store_true", help="list the rules that can be broken")
    options = parser.parse_args()
    known = transaction_mutations.MUTATIONS if options.transactions else mutations.MUTATIONS
    if options.mutations:
        print("\n".join(known))
        return 0
    if options.mutation not in (None, *known):
        parser.error(f"unknown mutation {options.mutation!r}; --mutations lists them")
    with (known[options.mutation] if options.mutation else mutations.Mutation(())).applied():
        if options.seed is None:
            return _run_many(options.transactions, options.first, options.count)
        simulated = transaction_simulation.TransactionSimulation if options.transactions else simulation.Simulation
        return _run_one(simulated(options.seed))


if __name__ == "__main__":
    sys.exit(main())
