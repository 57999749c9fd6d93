"""Benchmarks of the whole appliance: one harness, one file a benchmark, run by hand (`python -m loadtest --help`)."""
