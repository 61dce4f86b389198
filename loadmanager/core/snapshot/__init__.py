"""Snapshots: the state of a cluster as one JSON document, for decisions elsewhere or later.

The format is described in ``docs/snapshot-format.md``. A running leader writes complete
snapshots; a plain dump of a Pulsar cluster's ``/loadbalance/brokers`` is also a valid snapshot.
"""

from loadmanager.core.snapshot.agreement import agreed
from loadmanager.core.snapshot.decoding import decode_snapshot
from loadmanager.core.snapshot.document import (
    Choice,
    InForce,
    RunningLoad,
    Snapshot,
    view_of_snapshot,
)
from loadmanager.core.snapshot.encoding import encode_snapshot, in_force, in_force_to_json
from loadmanager.core.snapshot.rounds import Round, run_rounds

__all__ = [
    "Choice",
    "InForce",
    "Round",
    "RunningLoad",
    "Snapshot",
    "agreed",
    "decode_snapshot",
    "encode_snapshot",
    "in_force",
    "in_force_to_json",
    "run_rounds",
    "view_of_snapshot",
]
