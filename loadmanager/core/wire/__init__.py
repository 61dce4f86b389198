"""Values to and from the JSON in znodes, in Pulsar's own forms where Pulsar has them.

Fields added to a form of Pulsar's are in one nested object, ``"loadmanager"``, so
that they never collide with fields that Pulsar may add. Unknown fields are ignored;
content that is truncated, foreign or of a wrong type raises `MalformedContent`, which names
the field, what was found and what was expected.
"""

from loadmanager.core.wire.policies import (
    decode_anti_affinity,
    decode_boundaries,
    decode_failure_domain,
    decode_isolation,
    encode_boundaries,
)
from loadmanager.core.wire.records import (
    AgentRecord,
    DrainMark,
    LeaderRecord,
    LockRecord,
    decode_agent,
    decode_drain_mark,
    decode_leader,
    decode_lock,
    decode_partitions,
    encode_agent,
    encode_drain_mark,
    encode_leader,
    encode_lock,
    encode_partitions,
)
from loadmanager.core.wire.registrations import decode_registration, encode_registration
from loadmanager.core.wire.reports import decode_loads, encode_loads
from loadmanager.core.wire.standby import Standby, decode_standby, encode_standby

__all__ = [
    "AgentRecord",
    "DrainMark",
    "LeaderRecord",
    "LockRecord",
    "Standby",
    "decode_agent",
    "decode_anti_affinity",
    "decode_boundaries",
    "decode_drain_mark",
    "decode_failure_domain",
    "decode_isolation",
    "decode_leader",
    "decode_loads",
    "decode_lock",
    "decode_partitions",
    "decode_registration",
    "decode_standby",
    "encode_agent",
    "encode_boundaries",
    "encode_drain_mark",
    "encode_leader",
    "encode_loads",
    "encode_lock",
    "encode_partitions",
    "encode_registration",
    "encode_standby",
]
