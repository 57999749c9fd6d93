"""Tests. `tests/support` is what they share; helpers are imported as `tests.…`."""
