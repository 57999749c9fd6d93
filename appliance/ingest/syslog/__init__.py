"""Syslog and RELP: frames, messages, sessions."""
