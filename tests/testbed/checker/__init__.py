"""Checks of a run's invariants by the records of its brokers and clients. Pure.

The checker asks neither the sidecars nor ZooKeeper nor the brokers, because it checks them. The
records say when which broker process served which bundle, and which message was acknowledged
when, by which broker and under which grant.
"""
