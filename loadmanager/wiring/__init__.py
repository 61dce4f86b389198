"""Joins the parts of a sidecar to one another and to the adapters."""
