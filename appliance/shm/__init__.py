"""Shared memory; no other package maps it. Layouts and the memory-order argument: README.md in this
folder."""
