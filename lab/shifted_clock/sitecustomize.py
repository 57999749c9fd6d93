"""Moves the wall clock of every process of a box by what a file says (eight bytes, milliseconds), at any time. Stands on the path of a box that a test starts
with `Cluster(shifts_clocks=True)`; the monotonic clock is the machine's. Weak spot: ZooKeeper's JVM does not see it."""

import mmap
import os
import struct
import time

from appliance.base.clock import SystemClock

_file = os.open(os.environ["MILLRACE_TEST_SHIFT"], os.O_RDONLY)
_shift = mmap.mmap(_file, 8, prot=mmap.PROT_READ)
os.close(_file)
SystemClock.wall_ms = staticmethod(lambda: time.time_ns() // 1_000_000 + struct.unpack_from("<q", _shift)[0])  # type: ignore[method-assign]
