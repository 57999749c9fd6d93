"""Steps of a growing box: which figures come of them, and the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from loadtest.benchmarks.growing import MEASURES, figures_from, figures_of_growth
from loadtest.growth_chart import draw_growth, steps_of

FIRST = {measure.name: 100.0 for measure in MEASURES}
LAST = {**FIRST, "append CPU": 150.0, "append": 80.0}


def test_the_last_step_is_compared_with_the_first_and_less_speed_is_worse() -> None:
    figures = figures_from({0.0: FIRST, 25.0: FIRST, 50.0: LAST})
    assert figures["append CPU worse by"] == 1.5 and figures["append worse by"] == 1.25 and figures["fetch worse by"] == 1.0
    assert (figures["append CPU first"], figures["append CPU last"]) == (100.0, 150.0)
    assert {figure.name for figure in figures_of_growth()} <= figures.keys()


def test_the_steps_are_found_again_in_what_is_recorded_as_medians_of_its_runs() -> None:
    runs = [figures_from({0.0: FIRST, 50.0: {**LAST, "fetch": speed}}) for speed in (10.0, 30.0, 20.0)]
    steps = steps_of({"runs": [{"figures": figures} for figures in runs]}, MEASURES)
    assert list(steps) == [0.0, 50.0]
    assert steps[50.0]["fetch"] == 20.0 and steps[50.0]["append CPU"] == 150.0 and steps[0.0] == FIRST


def test_the_picture_has_a_panel_for_each_curve_and_higher_values_stand_higher() -> None:
    picture = ElementTree.fromstring(draw_growth(MEASURES, {0.0: FIRST, 50.0: LAST}, "GB stored"))
    lines = [element for element in picture.iter() if element.tag.endswith("polyline")]
    assert len(lines) == len(MEASURES)
    (_, low), (_, high) = (map(float, point.split(",")) for point in lines[0].attrib["points"].split())
    assert high < low
