"""Checks of a run's invariants by the records of its brokers and clients. Pure.

The checker does not ask the sidecars, ZooKeeper or the brokers, which are what it checks.
It reads when which broker process served which bundle, and which message was acknowledged
when, by which broker and under which grant.
"""
