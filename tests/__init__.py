"""Tests. `lab` has what is real (boxes, clusters, clients), `tests/support` what is stepped or made up; helpers are imported as `tests.…`."""
