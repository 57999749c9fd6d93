"""Logs on disk in Kafka's layout: knows files; no ring, no socket.

The formats and the rules of every file action are in README.md.
"""
