"""Balancing a Pulsar cluster from outside: nothing is installed in its brokers."""
