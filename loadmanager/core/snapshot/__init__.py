"""A cluster at one moment as one JSON document, to decide on later and elsewhere.

The format is in ``docs/snapshot-format.md``. A live leader writes it with everything
in it; a plain dump of a Pulsar cluster's ``/loadbalance/brokers`` is one too.
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
