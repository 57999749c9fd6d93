"""GELF over UDP, TCP and HTTP."""
