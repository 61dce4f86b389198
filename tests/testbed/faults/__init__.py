"""Runs the whole service in one process, in virtual time, under injected faults."""
