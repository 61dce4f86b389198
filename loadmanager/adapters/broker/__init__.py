"""Brokers as an agent commands them: the HTTP contract, and an in-memory broker that keeps it."""
