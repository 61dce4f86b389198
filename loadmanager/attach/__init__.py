"""Pulsar's own brokers as they are, seen and judged from outside: nothing is installed there."""
