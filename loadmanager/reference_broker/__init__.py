"""The reference broker: an implementation of the broker contract in memory."""
