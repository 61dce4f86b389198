"""The reference broker: it keeps the broker contract in memory."""
