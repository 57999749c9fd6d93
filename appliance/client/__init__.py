"""How a box, and the command, talk Kafka to brokers: blocking with time-outs, for paths that may wait (never for an event loop)."""
