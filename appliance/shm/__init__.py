"""Shared memory: the only package that maps it. Layouts, their drawings and the memory-order argument: README.md here."""
