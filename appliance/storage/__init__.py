"""Logs on disk in Kafka's layout: knows files; no ring, no socket.

README.md has the formats, the docstrings of the modules the steps of every file action.
"""
