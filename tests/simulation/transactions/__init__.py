"""Transactions of KIP-890 and of KIP-98 under every interleaving: clients, acceptors, a coordinator, log-writers, markers, and their deaths."""
