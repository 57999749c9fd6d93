"""Loki's push."""
