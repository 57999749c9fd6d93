"""`python -m loadtest beside_kafka`: the appliance and real Kafka brokers under the same loads, in turns; see command.py."""
