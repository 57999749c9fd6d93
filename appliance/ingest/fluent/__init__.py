"""Fluentd's forward protocol."""
