"""Shared memory; no other package maps it. The memory-order argument: README.md in this
folder."""
