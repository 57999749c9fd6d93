"""Transactions and producer ids: rules and formats, no socket, file, clock or chance."""
