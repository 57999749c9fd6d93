"""Two clocks that must go together for records to be deleted by their age."""

from __future__ import annotations

from appliance.base.clock import TOLERANCE_MS, ClockAgreement, ManualClock


def test_clocks_agree_however_long_they_run() -> None:
    clock = ManualClock()
    agreement = ClockAgreement(clock)
    clock.advance_ms(10**12)
    assert agreement.holds() and agreement.disagreement_ms() == 0


def test_a_wall_clock_that_jumps_over_an_hour_either_way_disagrees_and_agrees_again_when_it_is_put_right() -> None:
    clock = ManualClock()
    agreement = ClockAgreement(clock)
    for jump, holds in ((TOLERANCE_MS, True), (TOLERANCE_MS + 1, False), (-TOLERANCE_MS - 1, False)):
        clock.jump_wall_ms(jump)
        assert (agreement.disagreement_ms(), agreement.holds()) == (jump, holds)
        clock.jump_wall_ms(-jump)
    assert agreement.holds()
