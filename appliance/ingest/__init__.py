"""Bytes from senders in, records out: framing, parsing, batching and the ledger's arithmetic. No socket, no clock, no shared memory."""
