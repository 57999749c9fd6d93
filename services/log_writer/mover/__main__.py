"""log-mover: copies one log from another disk, started by the log-writer of the disk it goes to; it
ends with its copy, or with its log-writer.

Standard input is one end of a socket pair; the first packet on it is the job.
"""

from __future__ import annotations

import socket
import sys

from appliance.base.clock import SystemClock
from appliance.base.errors import StorageFailed
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicId
from appliance.runtime.scheduling import take_idle_priority
from appliance.runtime.service_main import name_process
from appliance.runtime.spawning import bind_to_parent
from appliance.storage.move_record import FAILED, PACKET_BYTES_MAX, MoveJob, MoveSaid
from services.log_writer.mover.agent import LogMover, MovingSource

NICENESS = 10
"""Not the last: when a copy is completed, producers wait for it."""


def main() -> int:
    if not bind_to_parent():
        return 1
    name_process(f"log-mover@{sys.argv[1]}" if len(sys.argv) > 1 else "log-mover")
    take_idle_priority(NICENESS)
    clock = SystemClock()
    with socket.socket(fileno=0) as channel:
        job = MoveJob.decode(channel.recv(PACKET_BYTES_MAX))
        rows = MovingSource(BoxLayout(job.runtime_directory), job.source_disk, TopicId.from_text(job.topic_id), job.partition, clock)
        try:
            mover = LogMover(job, channel, rows, clock)
        except StorageFailed as failure:
            channel.send(MoveSaid(FAILED, reason=str(failure)).encode())
            return 0
        while not mover.step():
            pass
        mover.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
