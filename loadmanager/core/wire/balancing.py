"""How far the leader goes by itself, as it stands in ZooKeeper."""

from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bounds import TIME_MS
from loadmanager.core.fields import parse_fields, to_json


def encode_balancing(balancing: Balancing) -> bytes:
    """Return the content of ``/loadbalance/balancing``."""
    return to_json(
        {
            "mode": balancing.mode.value,
            "sinceMs": balancing.since_ms,
            "by": balancing.by,
            "reason": balancing.reason,
        }
    )


def decode_balancing(where: str, data: bytes) -> Balancing:
    """Return what the node says."""
    fields = parse_fields(where, data)
    mode = fields.text("mode")
    if mode not in set(BalancingMode):
        fields.refuse("mode", " or ".join(BalancingMode))
    return Balancing(
        mode=BalancingMode(mode),
        since_ms=fields.count("sinceMs", bound=TIME_MS),
        by=fields.text("by", default=""),
        reason=fields.text("reason", default=""),
    )
