"""Lookups of the owners of topics: the owner resolver and the lookup service."""
