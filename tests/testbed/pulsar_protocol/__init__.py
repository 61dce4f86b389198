"""Pulsar's binary protocol, as far as tests of real clients need it to produce and to consume."""
