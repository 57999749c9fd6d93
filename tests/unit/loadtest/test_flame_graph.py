"""A profile's samples are all accounted for in words, and as many of them as one can see in a graph that stays small."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from loadtest.flame_graph import SIZE_MAX, WIDTH, draw_flame_graph, parse_stacks, where_time_goes

START = "0x7f (libc.so.6);_run_module_as_main (<frozen runpy>:173);"
RAW = f"""\
{START}Runner.turn (appliance/runtime/runner.py:48);Poller.poll (appliance/runtime/poller.py:44);epoll_wait (libc.so.6) 10
{START}Runner.turn (appliance/runtime/runner.py:48);Receiver.receive (services/acceptor/receiver.py:82);recv (libc.so.6) 30
{START}Runner.turn (appliance/runtime/runner.py:48);Receiver.receive (services/acceptor/receiver.py:82);s_unpack_internal (_struct.c:1555) 20
{START}Runner.turn (appliance/runtime/runner.py:48);Receiver.receive (services/acceptor/receiver.py:82);memcpy (libc.so.6) 20
{START}Runner.turn (appliance/runtime/runner.py:48);Receiver.receive (services/acceptor/receiver.py:82) 15
_Py_Dealloc (object.c:2389) 5
"""
SVG = "{http://www.w3.org/2000/svg}"


def test_time_in_a_system_call_has_its_name_and_all_other_time_the_package_that_spent_it() -> None:
    shares = dict(where_time_goes(parse_stacks(RAW)))
    assert shares == pytest.approx({"acceptor": 0.55, "recv()": 0.3, "epoll_wait()": 0.1, "interpreter": 0.05})


def test_no_sample_is_lost_and_what_lies_below_the_loop_is_left_out() -> None:
    stacks = parse_stacks(RAW)
    assert stacks.total() == 100
    assert {stack[0].partition(" ")[0] for stack in stacks} == {"Runner.turn", "_Py_Dealloc"}


def test_a_frame_is_as_wide_as_its_share() -> None:
    page = ElementTree.fromstring(draw_flame_graph("acceptor <under> load", "100 samples", parse_stacks(RAW)))
    widths = {group.findtext(f"{SVG}title"): float(group.find(f"{SVG}rect").get("width")) for group in page.iter(f"{SVG}g")}  # type: ignore[union-attr,arg-type]
    whole = widths["Runner.turn (appliance/runtime/runner.py:48): 95.0 %"]
    assert whole == pytest.approx(0.95 * (WIDTH - 20), abs=1)
    assert widths["recv (libc.so.6): 30.0 %"] == pytest.approx(whole * 30 / 95, abs=1)


def test_a_graph_stays_small_however_many_functions_there_are() -> None:
    raw = "\n".join(f"Runner.turn (appliance/runtime/runner.py:48);{';'.join(f'f{n}_{depth} (x.py:1)' for depth in range(30))} 7" for n in range(300))
    drawn = draw_flame_graph("many", "many", parse_stacks(raw))
    assert len(drawn.encode()) <= SIZE_MAX + 1000
    ElementTree.fromstring(drawn)


def test_a_profile_without_samples_says_nothing() -> None:
    assert where_time_goes(parse_stacks("")) == []
