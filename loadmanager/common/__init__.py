"""Shared by all parts of one sidecar: its context, cluster state, settings."""
