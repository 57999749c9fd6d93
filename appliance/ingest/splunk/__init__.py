"""Splunk's HTTP event collector."""
