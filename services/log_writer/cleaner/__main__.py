"""log-cleaner: one cleaning run over one log, started by a log-writer when compaction is due; it
ends with its run, or with its log-writer.

The job is read from standard input (a file in memory), reports go to standard output, line by line.
The log's directory is an open descriptor.
"""

from __future__ import annotations

import os
import sys

from appliance.runtime.scheduling import take_idle_priority
from appliance.runtime.service_main import name_process
from appliance.runtime.spawning import bind_to_parent
from appliance.storage.cleaner import run_cleaning
from appliance.storage.cleaning_plan import DIRECTORY_FD, CleaningJob, RunReport


def main() -> int:
    if not bind_to_parent():
        return 1
    name_process(f"log-cleaner@{sys.argv[1]}" if len(sys.argv) > 1 else "log-cleaner")
    take_idle_priority()
    job = CleaningJob.decode(os.pread(0, os.fstat(0).st_size, 0))
    os.fchdir(DIRECTORY_FD)  # its topic may be deleted meanwhile, and another one created under its name
    os.close(DIRECTORY_FD)

    def report(said: RunReport) -> None:
        os.write(1, said.encode())

    run_cleaning(job, report, ".")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
