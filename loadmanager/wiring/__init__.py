"""Builds a sidecar from its parts and the adapters."""
