"""Children as data: back-off, states, order of the stop."""

from __future__ import annotations

from appliance.runtime.children import EXIT_OTHER_RELEASE, STABLE_AFTER_MS, Child, ChildState, plan_stop, restart_delay_ms


def test_the_first_restart_is_immediate_and_the_next_ones_back_off_to_five_seconds() -> None:
    assert [restart_delay_ms(failures) for failures in range(9)] == [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]


def test_a_child_that_was_up_long_enough_starts_at_once_again() -> None:
    child = Child("acceptor@0")
    now_ms = 0
    for _ in range(3):
        child.on_started(1, now_ms, 0)
        child.on_exit(1, now_ms)
    assert child.start_at_ms == now_ms + 200
    child.on_started(1, now_ms, 0)
    now_ms += STABLE_AFTER_MS
    child.on_exit(1, now_ms)
    assert child.start_at_ms == now_ms
    assert child.restarts == 4


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


def test_the_stop_goes_from_the_senders_to_zookeeper_and_forgets_nobody() -> None:
    names = ["zookeeper", "controller", "log-writer@d0", "log-reader@d0", "acceptor@0", "acceptor@1", "ingest@0", "console", "stranger"]
    groups = plan_stop(names)
    assert sorted(name for group in groups for name in group) == sorted(names)
    order = {name: index for index, group in enumerate(groups) for name in group}
    assert order["ingest@0"] == order["acceptor@0"] < order["log-writer@d0"] < order["controller"] < order["zookeeper"]
