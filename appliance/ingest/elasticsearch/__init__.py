"""Elasticsearch's _bulk, and what its clients ask before it."""
