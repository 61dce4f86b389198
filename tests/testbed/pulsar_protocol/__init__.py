"""Pulsar's binary protocol, as far as its clients need it to produce and to consume."""
