"""Adapters: each implements a port with one technology."""
