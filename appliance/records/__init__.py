"""Kafka's record batch format, magic 2: bytes in, facts out.

Owns no file, socket, clock or chance.
"""
