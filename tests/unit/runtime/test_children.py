"""Children as data: back-off, states, order of the stop."""

from __future__ import annotations

from appliance.runtime.children import EXIT_OTHER_RELEASE, SERVED_BACKOFF_MS_MAX, STABLE_AFTER_MS, Child, ChildState, plan_stop, restart_delay_ms


def test_the_first_restart_is_immediate_and_the_next_ones_back_off_to_five_seconds() -> None:
    assert [restart_delay_ms(failures) for failures in range(9)] == [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]


def _delay_ms(child: Child, serves: bool, lived_ms: int = 300) -> int:
    """Run one process from 0 to `lived_ms`; how long the next start has to wait, in ms."""
    child.on_started(1, 0, 0)
    if serves:
        child.on_ready(0)
    child.on_exit(1, lived_ms)
    return child.start_at_ms - lived_ms


def test_a_child_that_never_serves_waits_longer_and_longer_however_long_it_tries() -> None:
    child = Child("acceptor@0")
    assert [_delay_ms(child, serves=False, lived_ms=60_000) for _ in range(8)] == [0, 100, 200, 400, 800, 1600, 3200, 5000]


def test_a_child_that_serves_is_back_at_once_however_often_it_is_killed() -> None:
    child = Child("acceptor@0")
    delays = [_delay_ms(child, serves=True) for _ in range(20)]
    assert delays == [0, 100, *[SERVED_BACKOFF_MS_MAX] * 18]
    assert child.restarts == 20
    assert _delay_ms(child, serves=True, lived_ms=STABLE_AFTER_MS) == 0


def test_a_process_that_served_resets_the_restart_delay() -> None:
    child = Child("log-writer@d0")
    for _ in range(6):
        _delay_ms(child, serves=False)
    assert _delay_ms(child, serves=True) == 0
    assert _delay_ms(child, serves=False) == 0
    assert _delay_ms(child, serves=False) == 100


def test_a_child_is_due_when_its_delay_is_over_and_not_before() -> None:
    child = Child("console")
    assert child.is_due(0)
    child.on_started(1, 0, 0)
    assert not child.is_due(0)
    child.on_exit(1, 0)
    child.on_started(2, 0, 0)
    child.on_exit(1, 0)
    assert not child.is_due(99) and child.is_due(100)


def test_a_child_of_another_release_is_not_started_again() -> None:
    child = Child("log-writer@d0")
    child.on_started(1, 0, 0)
    child.on_exit(EXIT_OTHER_RELEASE, 5)
    assert child.state is ChildState.FAILED and not child.is_due(10**9)


def test_names_are_kind_and_instance() -> None:
    assert (Child("log-writer@d0").kind, Child("log-writer@d0").instance) == ("log-writer", "d0")
    assert (Child("console").kind, Child("console").instance) == ("console", "")


def test_the_stop_goes_from_ingest_to_zookeeper_and_includes_every_process() -> None:
    names = ["zookeeper", "controller", "log-writer@d0", "log-reader@d0", "acceptor@0", "acceptor@1", "ingest@0", "console", "stranger"]
    groups = plan_stop(names)
    assert sorted(name for group in groups for name in group) == sorted(names)
    order = {name: index for index, group in enumerate(groups) for name in group}
    assert order["ingest@0"] == order["acceptor@0"] < order["log-writer@d0"] < order["controller"] < order["zookeeper"]
