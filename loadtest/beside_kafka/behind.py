"""Why a row is behind, and what would change it: written by people who looked at its profile, put beside the row by page.py when it is behind.

Weak spot: words here are not held against figures; a reason that no longer holds stays unseen until its row is behind again.
"""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN = "not examined yet."


class Reason(NamedTuple):
    """For rows of a part whose names have `words` in them."""

    part: str
    words: str
    text: str


REASONS: tuple[Reason, ...] = (
    Reason(
        "requests",
        "50 connections",
        "one acceptor is one Python thread, and it is full: [flame graph](flames/replay_small-acceptor.svg). 63 % of its samples receive and handle requests "
        "(24 % hand them to the log-writer, 11 % decode), 20 % take completions, 12 % send; only 14 % are `send` and `recv`. Kafka compiles the same work "
        "and spreads it over all cores. What would change it: several small produces of one turn to one partition in one descriptor and one completion; after "
        "that decoding and the life of a request in C. A second acceptor (`--acceptors 2`) helps where a core is free.",
    ),
    Reason(
        "consume",
        "consume",
        "the acceptor reads what is resident with RWF_NOWAIT and sends the copy, so that no hung disk can ever hold it "
        "(`services/acceptor/fetch/residency.py` says why); "
        "Kafka's sendfile copies nothing, and may wait for a disk. Of the acceptor's samples 52 % are `send`, 15 % `epoll_wait`, 7 % `preadv2`, 20 % Python "
        "([flame graph](flames/consume-acceptor.svg)). In turns, two runs each, mincore and sendfile needed 0.1 to 0.15 cpu-s/GB less of 0.75. "
        "What would change it: sendfile while the disk is known to answer, at the price of that promise.",
    ),
    Reason(
        "latency",
        "produces of 300 B a second",
        "a produce passes through two processes, and on a quiet box each has to be woken: the acceptor, the log-writer, the acceptor again. At higher rates "
        "they stay awake. Half of the acceptor's samples and two thirds of the log-writer's are in `epoll_wait`, waking up; of the acceptor's 15 % are `send`, "
        "11 % `write` (the doorbell), 20 % Python ([acceptor](flames/latency-acceptor.svg), [log-writer](flames/latency-log_writer.svg)). What "
        "would change it: a few microseconds of spinning before they sleep, which idle boxes would pay for.",
    ),
    Reason(
        "latency",
        "produced and consumed by librdkafka",
        "as with produces at a fixed rate, above; the consumer's long poll is one more process that has to be woken.",
    ),
    Reason(
        "partitions",
        "small produces to all in turn",
        "as with small produces over 50 connections: the acceptor's thread is full (above).",
    ),
    Reason(
        "start",
        "idle CPU",
        "a box is eleven processes where Kafka 3.9 is one and ZooKeeper. Each Python process wakes ten times a second (log-writers and console fifteen, the "
        "supervisor once) to look at its clock, its counters and its disk, and needs 0.13 to 0.4 ms for that with cold caches (switches and time on a "
        "core in 20 s): 0.15 to 0.55 % of a core each. What would change it: fewer checks by processes that have nothing to do.",
    ),
    Reason(
        "replicated",
        "produces of 300 B a second",
        "as with produces at a fixed rate to one box, above: on quiet boxes each process on the way has to be woken, with acks=all also the follower's "
        "replica-fetcher and log-writer and the leader's acceptor once more. The slow ones are quicker than Kafka's: p99.",
    ),
    Reason(
        "replicated",
        "produce 1 KB, acks=1",
        "the two cores are full from the first byte until the last follower has the last one (0.1 of a core idle at most), so the row is the CPU of a copy. "
        "Millrace needs the same for a GB whatever acks is: acceptors 3.7 to 4.0 cpu-s, log-writers 3.3 to 4.0, replica-fetchers 2.4 to 2.6, for three copies. "
        "Kafka needs less with acks=1 than with acks=all (8.9 after 12.6): its followers are behind then, ask for more at once, and sendfile copies nothing; "
        "ours read with RWF_NOWAIT and send the copy (as with consume, above). What would change it: larger fetches of a follower that is behind, and sendfile "
        "to followers.",
    ),
)
"""The first that fits counts."""


def reason_for(part: str, row: str, reasons: tuple[Reason, ...] = REASONS) -> str:
    return next((reason.text for reason in reasons if reason.part == part and reason.words in row), UNKNOWN)
