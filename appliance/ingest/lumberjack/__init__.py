"""Lumberjack, which Beats and Logstash speak."""
