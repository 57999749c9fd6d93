"""Load generators: programs of their own that a benchmark starts, and what builds their input."""
