"""The ingest table: listeners and routes."""
