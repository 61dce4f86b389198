"""Snapshots: the state of a cluster as one JSON document, for decisions elsewhere or later.

The format is described in ``docs/snapshot-format.md``. A running leader writes complete
snapshots; a plain dump of a Pulsar cluster's ``/loadbalance/brokers`` is also a valid snapshot.
"""
